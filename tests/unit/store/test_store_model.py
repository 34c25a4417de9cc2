"""The store against a model: whatever the order of calls, with right and stale tokens, both agree."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.errors import LostLease
from paribus.store import tables as t
from paribus.store.attempts import INFRASTRUCTURE_TRIES, INTERRUPTION_TRIES, PROGRAM_TRIES, REQUEUE_TRIES, backoff_s
from paribus.store.control import SAME_FAILURES
from paribus.store.database import Database
from paribus.store.states import LIVE, RECORDED, TERMINAL, RunState, target_of
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from support.databases import memory_database, postgresql
from support.plans import small_plan

RUNS = 3


@dataclass
class Run:
    """What the model knows of a run."""

    state: RunState = RunState.QUEUED
    token: int = 0
    lease_until: float = 0.0
    ready_at: float = 0.0
    program: int = 0
    infrastructure: int = 0
    cancel: bool = False
    signature: str = ""
    generation: int = 0
    requeues: int = 0
    step: int = 0
    results: list = field(default_factory=list)
    ends: dict = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    """Claims, heartbeats, ends and clock jumps in any order, by right and stale holders."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.store = Store(self.database(), Path("unused"))
        self.study = self.store.add_study(small_plan(arms=RUNS, seeds=1))
        self.ids = [r.id for r in self.store.runs_of(self.study.id)]
        self.model = {i: Run() for i in self.ids}
        self.paused = False

    def database(self):
        """Return an empty database on this machine's clock."""
        return memory_database(lambda: self.now)

    def teardown(self):
        """The auditor finds nothing but leases that are long over, which only a scheduler takes back."""
        self.the_log_replays_to_the_rows()  # nothing is taken out of a log, so that the last one shows all before it
        found = audit(snapshot(self.store, folders=False))
        self.store.close()
        assert [v for v in found if v.level == "critical"] == []

    runs = st.integers(0, RUNS - 1)
    ages = st.integers(0, 2)

    def holder(self, index, age):
        """Return a run's number, its model, a token that is ``age`` claims old, and whether this one holds the run."""
        run_id = self.ids[index]
        run = self.model[run_id]
        token = run.token - age
        return run_id, run, token, age == 0 and run.state in LIVE

    def call(self, allowed, function, *arguments, news=True, **keywords):
        """Call the store; it must refuse exactly what the model does not allow, and change nothing without news."""
        before = None if allowed and news else self.everything()
        try:
            answer = function(*arguments, **keywords)
        except LostLease:
            assert not allowed
            answer = None
        else:
            assert allowed
        assert before is None or self.everything() == before
        return answer

    def call_end(self, holder, told, function, *arguments, **keywords):
        """Call what ends an attempt: its holder may, once; told the same again it has the same answer."""
        run_id, run, token, holds = holder
        again = run.ends.get(token) if not holds else None
        allowed = holds or (again is not None and again[0] == told)
        state = self.call(allowed, function, run_id, token, *arguments, news=holds, **keywords)
        assert holds or not allowed or state in (None, again[1])
        return state

    def everything(self):
        """Return all rows of all tables."""
        with self.store.database.read() as connection:
            return [connection.execute(sa.select(table)).all() for table in t.metadata.sorted_tables]

    def end(self, run, state, signature="", wait=0.0):
        """End an attempt of the model without a result, and pause its study if the failure is common."""
        run.state, run.signature = (RunState.CANCELLED if run.cancel else state), signature
        if run.state is RunState.QUEUED:
            run.ready_at = self.now + wait
        alike = [r for r in self.model.values() if r.signature == signature != "" and r.state not in RECORDED]
        self.paused = self.paused or (not run.cancel and len(alike) >= SAME_FAILURES)

    @rule()
    def claim(self):
        """The first run in queue order that is ready is claimed."""
        queued = [] if self.paused else [i for i in self.ids if self.model[i].state is RunState.QUEUED]
        ready = [i for i in queued if self.model[i].ready_at <= self.now]
        claim = self.store.claim(self.study.id, engine="test", worker="here")
        assert (claim.run_id if claim else None) == (ready[0] if ready else None)
        if claim:
            run = self.model[claim.run_id]
            run.state, run.token = RunState.LEASED, run.token + 1
            run.lease_until = self.now + LEASE_S
            assert claim.token == run.token

    @rule(index=runs, age=ages)
    def start(self, index, age):
        """Only the holder of a lease starts; again, where the answer was lost, it renews."""
        run_id, run, token, holds = self.holder(index, age)
        self.call(holds, self.store.start, run_id, token)
        if holds:
            run.state, run.lease_until = RunState.RUNNING, self.now + LEASE_S

    @rule(index=runs, age=ages)
    def renew(self, index, age):
        """Only the holder prolongs its lease, and it hears of a request to cancel."""
        run_id, run, token, holds = self.holder(index, age)
        answer = self.call(holds, self.store.renew, run_id, token)
        if holds:
            run.lease_until = self.now + LEASE_S
            assert answer.cancel == run.cancel

    @rule(index=runs, age=ages, payload=st.integers(0, 1), early=st.booleans())
    def finish(self, index, age, payload, early):
        """The first result of a running holder counts; the same again is no news; all else is refused."""
        run_id, run, token, holds = self.holder(index, age)
        fresh = holds and run.state is RunState.RUNNING
        allowed = fresh or (token, payload) in run.results
        self.call(allowed, self.store.finish, run_id, token, {"payload": payload}, stopped_early=early, news=fresh)
        if fresh:
            run.state, run.signature = (RunState.STOPPED_EARLY if early else RunState.SUCCEEDED), ""
            run.results.append((token, payload))

    @rule(index=runs, age=ages, wait=st.sampled_from([0.0, 5.0]))
    def release(self, index, age, wait):
        """A run that was interrupted from outside goes back into the queue, as often as it is."""
        _, run, token, holds = holder = self.holder(index, age)
        self.call_end(holder, "release", self.store.release, "interrupted", wait_s=wait)
        if holds:
            self.end(run, RunState.QUEUED, wait=wait)
            run.ends[token] = ("release", run.state)

    @rule(index=runs, age=ages, step=st.integers(0, 3))
    def ask_to_be_queued(self, index, age, step):
        """A run that asks for it by itself goes back as long as it comes further in between."""
        holder = self.holder(index, age)
        state = self.call_end(holder, "ask", self.store.release, "asked", step=step)
        self.goes_back(holder, "ask", state, step, REQUEUE_TRIES, "asked to be queued again without coming further")

    @rule(index=runs, age=ages, step=st.integers(0, 3))
    def preempt(self, index, age, step):
        """A run that is interrupted goes back, with growing pauses where it comes no further in between."""
        holder = self.holder(index, age)
        state = self.call_end(holder, "preempt", self.store.release, "preempted", reached=step)
        self.goes_back(holder, "preempt", state, step, INTERRUPTION_TRIES, "interrupted without a new step", backoff_s)

    def goes_back(self, holder, name, state, step, tries, reason, pause=lambda *_: 0.0):
        """A run comes back after an end at a step, until it has come no further too often in a row."""
        run_id, run, token, holds = holder
        if not holds:
            return
        further, run.step = step > run.step, max(step, run.step)
        run.requeues = 0 if further else run.requeues + 1
        if run.requeues >= tries:
            self.end(run, RunState.QUARANTINED, reason)
        else:
            self.end(run, RunState.QUEUED, wait=pause(run.requeues, run_id, token))
        run.ends[token] = (name, run.state)
        assert state is run.state

    @rule(index=runs, age=ages, program=st.booleans(), signature=st.sampled_from(["", "one", "other"]))
    def fail(self, index, age, program, signature):
        """Failures of program and infrastructure are counted apart; the same one in several arms pauses the study."""
        _, run, token, holds = holder = self.holder(index, age)
        kind = "program" if program else "infrastructure"
        state = self.call_end(holder, ("fail", signature), self.store.fail, kind, "why", signature)
        if not holds:
            return
        run.program += program
        run.infrastructure += not program
        after = RunState.QUEUED
        if program and run.program >= PROGRAM_TRIES:
            after = RunState.QUARANTINED
        elif not program and run.infrastructure >= INFRASTRUCTURE_TRIES:
            after = RunState.FAILED
        self.end(run, after, signature, 0.0 if program else backoff_s(run.infrastructure, holder[0], token))
        run.ends[token] = (("fail", signature), run.state)
        assert state is run.state

    @rule(index=runs)
    def cancel(self, index):
        """A queued run is cancelled at once, a live one is asked."""
        run = self.model[self.ids[index]]
        done = self.store.cancel("small", f"arm{index}")
        assert (done.queued, done.running) == (run.state is RunState.QUEUED, run.state in LIVE)
        assert (done.ended, done.shared) == (run.state in TERMINAL, 0)
        if run.state is RunState.QUEUED:
            run.state, run.signature = RunState.CANCELLED, ""
        elif run.state in LIVE:
            run.cancel = True

    @rule(index=runs)
    def retry(self, index):
        """A run without a result begins anew, a live one goes on, and the pause is lifted."""
        run = self.model[self.ids[index]]
        revived = run.state in TERMINAL and run.state not in RECORDED
        done = self.store.retry("small", f"arm{index}", author="me", reason="why not")
        assert (done.queued, done.kept, done.lifted) == (revived, run.state in LIVE and run.cancel, self.paused)
        self.paused = False
        if run.state in LIVE or revived:
            run.cancel = False
        if revived:
            run.state, run.ready_at, run.signature = RunState.QUEUED, self.now, ""
            run.program = run.infrastructure = run.requeues = 0
            run.generation += 1

    @rule(index=runs, age=ages)
    def cancelled(self, index, age):
        """The holder notes that it has obeyed; without a request there is nothing to obey."""
        run_id, run, token, holds = self.holder(index, age)
        obeys = holds and run.cancel
        allowed = obeys or (not holds and run.ends.get(token, ("",))[0] == "cancelled")
        self.call(allowed, self.store.cancelled, run_id, token, news=obeys)
        if obeys:
            run.state, run.signature = RunState.CANCELLED, ""
            run.ends[token] = ("cancelled", run.state)

    @rule(seconds=st.sampled_from([1.0, 30.0, LEASE_S + 1, 3600.0]))
    def pass_time(self, seconds):
        """The clock goes on."""
        self.now += seconds

    @precondition(lambda self: any(r.state in LIVE and r.lease_until < self.now for r in self.model.values()))
    @rule()
    def expire(self):
        """Exactly the runs whose lease is over are taken back."""
        over = {i: r for i, r in self.model.items() if r.state in LIVE and r.lease_until < self.now}
        lost = self.store.expire()
        assert {(a.run_id, a.token) for a in lost} == {(i, r.token) for i, r in over.items()}
        for run_id, run in over.items():
            wait = backoff_s(run.infrastructure + 1, run_id, run.token)
            run.infrastructure += 1
            failed = run.infrastructure >= INFRASTRUCTURE_TRIES
            self.end(run, RunState.FAILED if failed else RunState.QUEUED, wait=wait)

    @invariant()
    def rows_are_what_the_model_says(self):
        """States, tokens and counts agree."""
        for record in self.store.runs_of(self.study.id):
            run = self.model[record.id]
            assert (record.state, record.token) == (run.state, run.token)
            assert (record.program_failures, record.infrastructure_failures) == (run.program, run.infrastructure)
            assert (record.lease_until is not None) == (run.state in LIVE)
            assert (record.signature, record.cancel_requested) == (run.signature, run.cancel)
        assert (self.store.paused(self.study.id) != "") == self.paused

    @invariant()
    def a_run_has_one_result_exactly_if_it_is_recorded(self):
        """Its token is the newest one."""
        with self.store.database.read() as connection:
            rows = connection.execute(sa.select(t.result.c.run_id, t.result.c.token)).all()
        recorded = {i: r for i, r in self.model.items() if r.state in RECORDED}
        assert sorted(rows) == sorted((i, r.token) for i, r in recorded.items())

    def the_log_replays_to_the_rows(self):
        """Each line of the log is an allowed move from the state that the line before left."""
        for run_id, run in self.model.items():
            state, claims, generation = RunState.PLANNED, 0, 0
            for event in self.store.events_of(run_id):
                assert event.source == state
                assert (state in TERMINAL) == (event.move == "rerun")
                generation += event.move == "rerun"
                state = target_of(event.move, state)
                claims += event.move == "claim"
                assert (event.target, event.token) == (state, claims)
            assert (state, claims, generation) == (run.state, run.token, run.generation)

    @invariant()
    def an_attempt_is_open_exactly_while_it_holds_its_run(self):
        """One row a claim, and only the newest of a live run has no end."""
        open_attempts = {(a.run_id, a.token) for a in self.store.attempts_of(self.study.id) if a.ended_at is None}
        assert open_attempts == {(i, r.token) for i, r in self.model.items() if r.state in LIVE}
        assert len(self.store.attempts_of(self.study.id)) == sum(r.token for r in self.model.values())


TestStoreMachine = pytest.mark.slow(StoreMachine.TestCase)
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class PostgresqlStoreMachine(StoreMachine):
    """The same on a server, with one database that is emptied between histories."""

    def database(self):
        """Return the database, empty."""
        database = Database(PostgresqlStoreMachine.url, lambda: self.now)
        with database.write() as connection:
            names = ", ".join(table.name for table in t.metadata.sorted_tables)
            connection.execute(sa.text(f"TRUNCATE {names} RESTART IDENTITY"))
        return database


@pytest.mark.slow
def test_the_model_holds_on_a_server():
    """A short run: what differs between the databases is how they lock."""
    with postgresql() as url:
        PostgresqlStoreMachine.url = url
        short = settings(max_examples=8, stateful_step_count=30, deadline=None)
        run_state_machine_as_test(PostgresqlStoreMachine, settings=short)
