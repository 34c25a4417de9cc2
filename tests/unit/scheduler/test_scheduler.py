"""The scheduler's turns, with a fake engine: budget, settlement, expiry, orphans."""

import json
import shutil
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.contract import Checkpoints, Hashes, Job, Timeouts
from paribus.engines.base import PATIENCE_S, JobState, Reach, Status
from paribus.errors import EngineError, RunnerError, StoreError, TooLarge
from paribus.run_folder.folder import RunFolder, write_json
from paribus.scheduler import active_attempts, scheduler
from paribus.scheduler import setup_jobs as preparation
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.home_lock import lock_home, lock_owner
from paribus.scheduler.scheduler import Ending, Scheduler
from paribus.scheduler.serve import ServingLoop
from paribus.store.database import StudyDeleted, Unreachable
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from paribus.testing.fake_engine import FakeEngine
from support.lines import Lines
from support.plans import small_plan


class Case:
    """A store on a clock, a study, an engine, a scheduler."""

    def __init__(self, home, engine=None, **plan):
        self.now = 1000.0
        self.said = []
        self.store = Store.open(home, clock=lambda: self.now)
        self.study = self.store.add_study(small_plan(**plan))
        self.engine = engine or FakeEngine()
        self.scheduler = self.another(self.engine)

    def another(self, engine):
        """Return a scheduler with a new engine that serves the study."""
        worker = "here" if engine.patience_s == PATIENCE_S else "/here"
        made = Scheduler(self.store, engine, self.store.home / "server", say=self.said.append, worker=worker)
        made.take_up(self.study)
        return made

    def turn(self):
        """Take a turn; return why the study is not served any more, or `None`."""
        return self.scheduler.turn().get(self.study.id)

    def supervisor(self, name):
        """Return run, token and folder of a job, as its supervisor would know them."""
        folder, _, run = self.engine.specs[name].arguments
        return int(run), Job.model_validate_json(RunFolder(self.path(name)).job.read_bytes()).token, folder

    def path(self, name):
        """Return the attempt folder of a job."""
        return self.store.home / "runs" / name.split("-")[1] / name.split("-")[2]

    def start(self, name):
        """Do what a supervisor does first."""
        run, token, _ = self.supervisor(name)
        self.store.start(run, token)

    def finish(self, name):
        """Do what a supervisor does last."""
        run, token, _ = self.supervisor(name)
        self.store.finish(run, token, {"status": "succeeded"})
        self.engine.ended[name] = 0

    def states(self):
        """Return the states in queue order."""
        return [str(r.state) for r in self.store.runs_of(self.study.id)]


@pytest.fixture
def case(tmp_path):
    """Make cases."""
    made = []

    def make(**keywords):
        made.append(Case(tmp_path, **keywords))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


def test_a_study_is_brought_to_its_end_in_queue_order(case):
    """Each free slot takes the next run, and the end comes when all are recorded."""
    one = case()
    seen = []
    while (ending := one.turn()) is None:
        for name in [n for n in one.engine.specs if n not in one.engine.ended]:
            seen.append(name)
            one.start(name)
            one.finish(name)
    assert ending is Ending.COMPLETE
    assert one.scheduler.idle
    wanted = [f"paribus-{r.fingerprint[:12]}-a1" for r in one.study.plan.runs]
    assert seen == wanted


def test_the_job_of_an_attempt_says_everything(case):
    """Recipe, seed, evaluation, hashes, cache and token are in job.json, in a folder of the attempt's own."""
    planned = Hashes(code="1" * 64, data="2" * 64, model="3" * 64)
    one = case(stop_on=("nan",), checkpoint=Checkpoints(every=7, keep=2), hashes=planned, timeouts=Timeouts(reward=9.0))
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    job = Job.model_validate_json((one.path(name) / "job.json").read_bytes())
    run = one.study.plan.runs[0]
    assert (job.run, job.arm, job.seed, job.token) == (run.fingerprint, "arm 0", 0, 1)
    assert (job.recipe, job.evaluate) == (one.study.plan.arms[0].recipe, one.study.plan.evaluate)
    assert (job.stop_on, job.cache) == (("nan",), str(one.store.home / "cache"))
    assert job.checkpoint == one.study.plan.checkpoint == Checkpoints(every=7, keep=2)
    assert job.timeouts == Timeouts(reward=9.0)
    assert job.hashes == planned
    assert [a.external_id for a in one.store.attempts_of(one.study.id)] == [f"fake-{n}" for n in one.engine.specs]


def test_a_supervisor_that_ends_without_a_report_costs_an_attempt(case):
    """The run is queued again as a failure of the infrastructure."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    one.start(name)
    one.engine.ended[name] = -9
    one.scheduler.turn()
    assert [n.split("-")[2] for n in one.engine.specs] == ["a1", "a2"]
    assert one.store.runs_of(one.study.id)[0].infrastructure_failures == 1


def test_a_job_that_is_said_to_run_after_its_end_is_ended(case, monkeypatch):
    """Slurm goes on saying so when it has lost the process; the slot would stay taken, and the study never end."""
    monkeypatch.setattr(active_attempts, "HOLD_S", 0.0)
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    one.start(name)
    one.scheduler.turn()
    one.finish(name)
    del one.engine.ended[name]
    assert [one.scheduler.turn() for _ in range(2)] == [{}, {}]
    assert one.engine.cancelled == []
    monkeypatch.setattr(active_attempts, "GRACE_S", 0.0)
    one.scheduler.turn()
    assert one.engine.cancelled == [(name, 0.0)]
    assert one.scheduler.turn() == {one.study.id: Ending.COMPLETE}


def test_an_outcome_that_could_not_be_delivered_is_found_in_the_folder(case):
    """A result that is on disk is recorded, not trained again."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    one.start(name)
    run, token, _ = one.supervisor(name)
    outcome = {"do": "finish", "run": run, "token": token, "payload": {"status": "succeeded"}, "stopped_early": False}
    write_json(RunFolder(one.path(name)).outcome, {**outcome, "exit_code": 0})
    one.engine.ended[name] = 1
    assert one.turn() is Ending.COMPLETE
    assert one.states() == ["SUCCEEDED"]


UNUSABLE = (
    {"do": "fail", "kind": "program", "reason": ["\ud83d"], "signature": ""},
    {"do": "finish", "stopped_early": False, "payload": {"loss": float("nan")}},
    {"do": "finish", "stopped_early": False, "payload": None},
    {"do": "release", "reason": "", "wait_s": 0.0, "step": 10**30},
)


def ended_with(case, texts):
    """Return a case in which attempts have ended with these reports, and another scheduler has cleared up."""
    one = case(engine=FakeEngine(slots=len(texts)), arms=1, seeds=len(texts))
    one.scheduler.turn()
    for name, text in zip(one.engine.specs, texts, strict=True):
        one.start(name)
        RunFolder(one.path(name)).outcome.write_text(text)
    one.another(FakeEngine()).reconcile()
    return one


def test_a_report_that_cannot_be_recorded_fails_its_attempt(case):
    """The scheduler begins all the same; the program is to blame, and what is wrong with its report is told."""
    one = ended_with(case, list(map(json.dumps, UNUSABLE)))
    runs = one.store.runs_of(one.study.id)
    assert {(r.state, r.program_failures, r.infrastructure_failures) for r in runs} == {(RunState.QUEUED, 1, 0)}
    assert all(a.reason.startswith("its report cannot be used: ") for a in one.store.attempts_of(one.study.id))


def test_what_lies_in_place_of_a_report_counts_as_none(case):
    """A damaged disk says nothing about the program: the next scheduler queues the run."""
    one = ended_with(
        case, ["", "[]", "{}", '{"do": "release"}', '{"run": "x"', '"text"', '{"do": "renew"}', "[" * 3000]
    )
    assert {(r.state, r.program_failures) for r in one.store.runs_of(one.study.id)} == {(RunState.QUEUED, 0)}


def test_a_result_with_half_a_character_is_recorded(case):
    """A text that was cut within a pair of surrogates costs no training."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    run, token, _ = one.supervisor(next(iter(one.engine.specs)))
    one.store.start(run, token)
    for _ in range(2):
        one.store.finish(run, token, {"status": "succeeded", "note": "\ud83d"})
    assert [r.payload["note"] for r in one.store.results([one.study.plan.runs[0].fingerprint]).values()] == ["?"]
    assert audit(snapshot(one.store, folders=False)) == ()


def test_a_scheduler_that_comes_after_a_killed_one_queues_its_attempts(case):
    """At once, not after the lease; nothing is counted against the runs; attempts of other hosts are left alone."""
    one = case()
    one.scheduler.turn()
    other = one.store.claim(one.study.id, engine="fake", worker="elsewhere")
    new = FakeEngine()
    second = one.another(new)
    second.reconcile()
    assert one.states() == ["QUEUED", "QUEUED", "LEASED", "QUEUED"]
    assert {r.infrastructure_failures for r in one.store.runs_of(one.study.id)} == {0}
    second.turn()
    assert {n.split("-")[2] for n in new.specs} == {"a2"}
    assert other.token == 1


def tell(one, state, **more):
    """Let the engine say the same of all jobs."""
    one.engine.statuses = {name: Status(state=state, **more) for name in one.engine.specs}


def later(one, monkeypatch, seconds):
    """Let time go by, for the store and for the scheduler."""
    before, booted = scheduler.time.monotonic(), active_attempts.since_boot()
    one.now += seconds
    monkeypatch.setattr(scheduler.time, "monotonic", lambda: before + seconds)
    monkeypatch.setattr(active_attempts, "since_boot", lambda: booted + seconds)


def test_attempts_that_wait_in_the_queue_of_the_engine_keep_their_runs(case, monkeypatch):
    """However long they wait no lease runs out, the reason is said once, and nothing is counted."""
    one = case()
    one.scheduler.turn()
    tell(one, JobState.PENDING, reason="Priority")
    for _ in range(5):
        later(one, monkeypatch, LEASE_S / 2)
        one.scheduler.turn()
    assert one.states() == ["LEASED", "LEASED", "QUEUED", "QUEUED"]
    assert {r.infrastructure_failures for r in one.store.runs_of(one.study.id)} == {0}
    assert [line for line in one.said if "Priority" in line] == ["jobs wait in the queue of fake: Priority"]


def test_an_outage_longer_than_a_lease_takes_nothing_from_those_that_wait(case, monkeypatch):
    """They are held again before anything is taken back, however soon after the end of the outage."""
    one = case()
    one.scheduler.turn()
    tell(one, JobState.PENDING)

    def away():
        raise Unreachable("the database is away")

    later(one, monkeypatch, active_attempts.HOLD_S + 1)
    with monkeypatch.context() as outage:
        outage.setattr(one.store, "live_attempts", away)
        with pytest.raises(Unreachable):
            one.scheduler.turn()
    one.now += LEASE_S + 10
    one.scheduler.turn()
    assert one.engine.cancelled == []
    assert one.states() == ["LEASED", "LEASED", "QUEUED", "QUEUED"]


def test_a_machine_that_slept_takes_nothing_from_those_that_wait(case, monkeypatch):
    """The clock of the leases goes on meanwhile, and so does the one by which they are renewed."""
    one = case()
    one.scheduler.turn()
    tell(one, JobState.PENDING)
    one.scheduler.turn()
    slept = active_attempts.since_boot() + 3600
    one.now += 3600
    monkeypatch.setattr(active_attempts, "since_boot", lambda: slept)
    one.scheduler.turn()
    assert one.engine.cancelled == []
    assert one.states() == ["LEASED", "LEASED", "QUEUED", "QUEUED"]


def test_a_job_may_be_slow_to_start_but_not_forever(case, monkeypatch):
    """Between its start and its supervisor's first word a job holds its run for five minutes and a lease."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    for _ in range(9):
        later(one, monkeypatch, LEASE_S / 2)
        one.scheduler.turn()
    assert one.states() == ["LEASED"]
    assert len(one.engine.specs) == 1
    for _ in range(5):
        later(one, monkeypatch, LEASE_S / 2)
        one.scheduler.turn()
    assert len(one.engine.specs) == 2


def cancelled_in_the_queue(case, monkeypatch):
    """Return a case whose only attempt waited for its place when the study was cancelled."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    tell(one, JobState.PENDING)
    one.store.cancel("small")
    later(one, monkeypatch, active_attempts.HOLD_S + 1)
    one.scheduler.turn()
    return one


def test_a_waiting_attempt_is_cancelled_without_a_supervisor(case, monkeypatch):
    """Nobody else could obey."""
    one = cancelled_in_the_queue(case, monkeypatch)
    assert one.states() == ["CANCELLED"]
    assert one.engine.cancelled == [(next(iter(one.engine.specs)), 0.0)]


def test_a_job_that_is_cancelled_while_the_engine_cannot_reach_it_finds_that_it_is_over(case, monkeypatch):
    """Should its cluster start it first, its supervisor sees so in its folder, without a scheduler."""
    one = cancelled_in_the_queue(case, monkeypatch)
    (name,) = one.engine.specs
    assert RunFolder(one.path(name)).revoked.exists()


def test_an_outage_of_a_cluster_is_one_line_and_so_is_its_end(case):
    """Turns go on meanwhile; other commands can read why."""
    one = case(arms=1, seeds=1)
    with lock_home(one.store.home, "paribus run", "fake"):
        one.turn()
        (name,) = one.engine.specs
        one.start(name)
        one.said.clear()
        one.engine.trouble = "Fake does not answer (look: no reply in 5 s)."
        for _ in range(3):
            one.turn()
        assert one.said == ["Fake does not answer (look: no reply in 5 s). Runs that have begun go on; trying again."]
        assert lock_owner(one.store.home).trouble == one.engine.trouble
        one.finish(name)
        one.engine.trouble = ""
        assert one.turn() is Ending.COMPLETE
        assert one.said[1:] == ["The engine fake answers again, after 0 s."]
        assert lock_owner(one.store.home).trouble == ""


def test_a_job_that_the_engine_does_not_know_holds_its_run_until_the_lease_is_over(case, monkeypatch):
    """Engines forget jobs that run: only a heartbeat that fails to come ends an attempt."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    one.start(name)
    tell(one, JobState.UNKNOWN)
    for _ in range(4):
        later(one, monkeypatch, LEASE_S / 2)
        one.store.renew(*one.supervisor(name)[:2])
        one.scheduler.turn()
    assert one.states() == ["RUNNING"]
    later(one, monkeypatch, LEASE_S + 1)
    one.scheduler.turn()
    assert (name, 0.0) in one.engine.cancelled
    one.engine.ended[name] = -9
    one.scheduler.turn()
    assert [n.split("-")[2] for n in one.engine.specs] == ["a1", "a2"]


def test_a_job_that_the_engine_has_lost_gives_its_place_back(case):
    """Its attempt has ended: what may be left of it is ended, too, instead of counted for ever."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    one.start(name)
    tell(one, JobState.UNKNOWN)
    assert one.turn() is None
    assert one.engine.cancelled == []
    run, token, _ = one.supervisor(name)
    one.store.finish(run, token, {"status": "succeeded"})
    one.scheduler.turn()
    assert one.engine.cancelled == [(name, 0.0)]


def test_an_engine_that_cannot_be_asked_does_not_end_a_service(case):
    """Which study is to blame is not known: all go on when it answers; somebody who asks to stop is not kept."""
    one = case(arms=1, seeds=1)
    scheduler = Scheduler(one.store, one.engine, one.store.home / "server", say=one.said.append, pause=True)
    display = Lines()
    loop = ServingLoop(one.store, scheduler, display, Adaptive())
    loop.take_up(one.study)
    poll, troubles = one.engine.poll, [EngineError("who knows"), EngineError("who knows")]

    def at_first_not(names):
        if troubles:
            raise troubles.pop()
        return poll(names)

    one.engine.poll = at_first_not
    loop._is_done = lambda _: len(one.engine.specs) == 1
    loop.run()
    assert [line for line in display.said if "who knows" in line] == ["who knows Trying again; Ctrl-C stops."]
    troubles.append(EngineError("who knows"))
    scheduler.interrupt()
    with pytest.raises(EngineError, match="who knows"):
        loop.run()


@pytest.fixture
def deleted(case):
    """Return a function that makes a serving loop whose study has ended; it is deleted before or after the turn."""

    def make(pause, *, before):
        one = case(arms=1, seeds=1)
        scheduler = Scheduler(one.store, one.engine, one.store.home / "server", say=one.said.append, pause=pause)
        loop = ServingLoop(one.store, scheduler, Lines(), Adaptive())
        loop.take_up(one.study)
        one.store.cancel("small")
        turn = scheduler.turn

        def with_deletion():
            found = {} if before else turn()
            if one.store.summaries([one.study.id]):
                one.store.delete_study(one.store.what_goes("small"), "me")
            return turn() if before else found

        scheduler.turn = with_deletion
        return loop

    return make


@pytest.mark.parametrize("before", [True, False])
def test_a_study_that_is_deleted_when_it_ends_does_not_end_the_scheduler(deleted, before):
    """The scheduler drops it and serves the others."""
    loop = deleted(pause=True, before=before)
    loop.run()
    assert (loop.ended, loop._alerts) == ([], {})


@pytest.mark.parametrize("before", [True, False])
def test_a_session_whose_study_is_deleted_ends_with_a_sentence(deleted, before):
    """The command that serves this one study has nothing left to show."""
    with pytest.raises(StudyDeleted, match="was deleted meanwhile"):
        deleted(pause=False, before=before).run()


def test_a_study_that_is_deleted_does_not_grow(case):
    """The rule isn't asked."""
    one = case(arms=1, seeds=1)
    one.store.cancel("small")
    one.store.delete_study(one.store.what_goes("small"), "me")
    assert Adaptive().grow(one.store, one.study) is None


def test_jobs_that_outlived_their_scheduler_go_on(case, monkeypatch):
    """The next scheduler finds them by name and submits nothing twice, even when their leases are over."""
    one = case()
    one.scheduler.turn()
    tell(one, JobState.PENDING)
    one.now += 10 * LEASE_S
    second = one.another(one.engine)
    second.reconcile()
    assert second.turn() == {}
    assert one.states() == ["LEASED", "LEASED", "QUEUED", "QUEUED"]
    assert len(one.engine.specs) == 2
    one.engine.statuses = {}
    for name in list(one.engine.specs):
        one.start(name)
        one.finish(name)
    second.turn()
    assert one.states() == ["SUCCEEDED", "SUCCEEDED", "LEASED", "LEASED"]


@pytest.fixture
def patient(case):
    """Make cases whose engine looks like a cluster: jobs outlive the scheduler."""

    def make(**keywords):
        engine = FakeEngine()
        engine.patience_s = inf
        one = case(engine=engine, **keywords)
        one.scheduler = one.another(engine)
        return one

    return make


def outcome(one, name, **more):
    """Let a supervisor end alone."""
    run, token, _ = one.supervisor(name)
    report = {"do": "finish", "run": run, "token": token, "payload": {"status": "succeeded"}, "stopped_early": False}
    write_json(RunFolder(one.path(name)).outcome, {**report, "exit_code": 0, **more})
    one.engine.ended[name] = 1


def alone_for_an_hour(patient):
    """Return a case, and the names of two attempts that began an hour ago, when the scheduler was last there."""
    one = patient(arms=1, seeds=2)
    one.scheduler.turn()
    names = tuple(one.engine.specs)
    for name in names:
        one.start(name)
    one.now += 3600
    return one, names


def test_attempts_that_went_on_for_an_hour_without_a_scheduler_are_adopted_under_their_tokens(patient, monkeypatch):
    """One trains on, one has ended: both keep their run although their leases ended long ago; nothing is counted."""
    one, (trains, ends) = alone_for_an_hour(patient)
    outcome(one, ends)
    monkeypatch.setattr(active_attempts, "_age", lambda *_: 3000.0)
    second = one.another(one.engine)
    second.reconcile()
    second.turn()
    assert one.states() == ["RUNNING", "SUCCEEDED"]
    later(one, monkeypatch, 10 * LEASE_S)
    second.turn()
    assert one.states() == ["RUNNING", "SUCCEEDED"]
    one.finish(trains)
    assert second.turn() == {one.study.id: Ending.COMPLETE}
    runs = one.store.runs_of(one.study.id)
    assert {(r.token, r.infrastructure_failures) for r in runs} == {(1, 0)}
    charged = {a.submit_name: a.charged for a in one.store.attempts_of(one.study.id)}
    assert charged[ends] == pytest.approx(600.0)
    assert audit(snapshot(one.store, folders=False)) == ()


def test_an_attempt_that_began_and_ended_without_a_scheduler_is_recorded(patient, monkeypatch):
    """It left the queue while nobody was there, under the token it was queued with; its time is charged."""
    one = patient(arms=1, seeds=1)
    one.scheduler.turn()
    (name,) = one.engine.specs
    one.now += 3600
    outcome(one, name, seconds=500.0)
    monkeypatch.setattr(active_attempts, "_age", lambda *_: 100.0)
    second = one.another(one.engine)
    second.reconcile()
    assert second.turn() == {one.study.id: Ending.COMPLETE}
    (attempt,) = one.store.attempts_of(one.study.id)
    assert (attempt.outcome, attempt.token) == ("succeed", 1)
    assert attempt.charged == pytest.approx(500.0)
    assert audit(snapshot(one.store, folders=False)) == ()


def test_a_result_of_another_token_in_the_folder_counts_for_nothing(patient):
    """A folder that was copied: the attempt has ended without a result."""
    one = patient(arms=1, seeds=1)
    one.scheduler.turn()
    (name,) = one.engine.specs
    one.start(name)
    outcome(one, name, token=2)
    one.another(one.engine).reconcile()
    assert one.states() == ["QUEUED"]


def test_a_job_that_the_engine_does_not_know_after_a_restart_keeps_its_run_for_a_lease(patient, monkeypatch):
    """Its supervisor may report any moment; if it doesn't, the run goes on elsewhere, and nothing is counted."""
    one, (reports, silent) = alone_for_an_hour(patient)
    tell(one, JobState.UNKNOWN)
    one.engine.find = lambda name: None
    second = one.another(one.engine)
    second.reconcile()
    second.turn()
    assert one.states() == ["RUNNING", "RUNNING"]
    later(one, monkeypatch, LEASE_S - 1)
    one.store.renew(*one.supervisor(reports)[:2])
    second.turn()
    later(one, monkeypatch, LEASE_S + 1)
    one.now -= LEASE_S - 1
    second.turn()
    runs = {r.fingerprint[:12]: r for r in one.store.runs_of(one.study.id)}
    assert (runs[reports.split("-")[1]].state, runs[silent.split("-")[1]].token) == (RunState.RUNNING, 2)
    assert {r.infrastructure_failures for r in runs.values()} == {0}
    assert RunFolder(one.path(silent)).revoked.exists()


def test_jobs_of_the_engine_that_was_used_before_are_ended(patient):
    """They would start later and hold a GPU; their runs go on here, and those that can't be ended find a word."""
    one = patient(arms=1, seeds=2)
    one.scheduler.turn()
    old, names = one.engine, list(one.engine.specs)
    new = FakeEngine()
    new.name = "other"
    asked = []

    def others(name):
        asked.append(name)
        return old

    second = Scheduler(one.store, new, one.store.home / "server", worker="/here", others=others, say=one.said.append)
    second.take_up(one.study)
    second.reconcile()
    assert asked == ["fake"]
    assert [n for n, _ in old.cancelled] == names
    assert one.states() == ["QUEUED", "QUEUED"]
    assert all(RunFolder(one.path(n)).revoked.exists() for n in names)
    second.turn()
    assert {n.split("-")[2] for n in new.specs} == {"a2"}


def test_a_job_that_somebody_cancels_in_the_queue_is_no_failure(patient, monkeypatch):
    """Ten times: the run is queued again after a while, and nothing is counted."""
    one = patient(arms=1, seeds=1)
    for i in range(10):
        one.scheduler.turn()
        assert len(one.engine.specs) == i + 1
        tell(one, JobState.ENDED, reason="CANCELLED", interrupted=True)
        one.scheduler.turn()
        one.engine.statuses = {}
        one.engine.ended = dict.fromkeys(one.engine.specs, 0)
        one.now += active_attempts.OUTSIDE_WAIT_S + 1
    (run,) = one.store.runs_of(one.study.id)
    assert (run.state, run.infrastructure_failures, run.reason) == (
        RunState.QUEUED,
        0,
        "the job was ended from outside (CANCELLED)",
    )


def test_a_refused_job_ends_the_session_and_gives_its_run_back(case):
    """The user reads the engine's words; nothing is counted against the run."""
    one = case()
    one.engine.refusal = EngineError("no such partition")
    with pytest.raises(EngineError, match="no such partition"):
        one.scheduler.turn()
    assert set(one.states()) == {"QUEUED"}
    assert {r.infrastructure_failures for r in one.store.runs_of(one.study.id)} == {0}


def test_the_engines_word_for_an_end_is_kept(case):
    """OUT_OF_MEMORY says more than that there was no report."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    tell(one, JobState.ENDED, exit_code=-9, reason="OUT_OF_MEMORY")
    one.scheduler.turn()
    attempts = one.store.attempts_of(one.study.id)
    assert attempts[0].reason == "the supervisor ended without a report (OUT_OF_MEMORY)"


GONE = {
    "killed": Status(state=JobState.ENDED, exit_code=-9),
    "cancelled": Status(state=JobState.ENDED, reason="CANCELLED"),
    "node": Status(state=JobState.ENDED, reason="NODE_FAIL"),
    "lost": Status(state=JobState.UNKNOWN),
}


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("how", GONE)
def test_a_preparation_that_is_killed_or_lost_is_tried_again_as_a_run_is(case, monkeypatch, how, pause):
    """Up to five times with growing pauses; then the study ends or is paused, and nothing of it began."""
    one = case()
    one.engine.reach = Reach(host="here")
    service = Scheduler(one.store, one.engine, one.store.home / "s", say=one.said.append, worker="here", pause=pause)
    service.take_up(one.study)
    one.engine.setup_status = GONE[how]
    longest = max(preparation.LOST_S, 1.2 * 120) + 1
    for tried in range(1, 5):
        for _ in range(2 if how == "lost" else 1):
            assert service.turn() == {}
            later(one, monkeypatch, longest)
        assert len(one.engine.setups) == tried
    said = [line for line in one.said if "trying again" in line]
    assert "trying again at once (try 2 of 5)" in said[0]
    assert len(said) == 4
    last = r"could not prepare the study in 5 tries; last, .*\n.*ended before it wrote anything.*Do the nodes see"
    if how == "lost":
        assert service.turn() == {}
        later(one, monkeypatch, longest)
    if pause:
        assert service.turn() == {one.study.id: Ending.PAUSED}
        assert "could not prepare the study in 5 tries" in one.store.paused(one.study.id)
    else:
        with pytest.raises(RunnerError, match=last):
            service.turn()
    assert len(one.engine.setups) == 5
    assert one.engine.specs == {}


def test_a_preparation_that_was_killed_once_costs_nothing_but_time(case):
    """The second job makes it, and the runs begin."""
    one = case()
    one.engine.setup_status = GONE["killed"]
    assert one.turn() is None
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=0)
    assert one.turn() is None
    assert (len(one.engine.setups), len(one.engine.specs)) == (2, 2)


@pytest.mark.parametrize(("started", "state"), [(True, "QUARANTINED"), (False, "QUEUED")])
def test_jobs_that_are_preempted_without_a_new_step_are_not_repeated_for_ever(case, monkeypatch, started, state):
    """Five in a row that had begun; a job that waits in the queue may be cancelled as often as anybody likes."""
    one = case(arms=1, seeds=1, engine=FakeEngine(slots=1))
    for number in range(1, 6):
        one.turn()
        name = list(one.engine.specs)[-1]
        assert name.endswith(f"a{number}")
        if started:
            one.start(name)
        one.engine.statuses[name] = Status(state=JobState.ENDED, reason="PREEMPTED", interrupted=True)
        one.engine.ended[name] = -9
        monkeypatch.setattr(one.engine, "capacity", lambda need=None: 0)
        one.turn()
        monkeypatch.undo()
        one.now += 1000
    assert one.states() == [state]


def test_live_attempts_end_before_a_study_that_cannot_be_prepared_does(case):
    """An error at once would cancel jobs that may have waited in a queue for days."""
    one = case(engine=FakeEngine(slots=4), arms=1, seeds=2)
    one.turn()
    live = list(one.engine.specs)
    for record in (one.store.home / "prepare").glob("*.done.json"):
        record.unlink()
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=1)
    second = one.another(one.engine)
    second.reconcile()
    assert [second.turn(), second.turn()] == [{}, {}]
    assert sum("could not prepare" in line and "2 runs go on" in line for line in one.said) == 1
    assert one.engine.cancelled == []
    for name in live:
        one.start(name)
        one.finish(name)
    with pytest.raises(RunnerError, match="could not prepare"):
        second.turn()
    assert list(one.engine.specs) == live


def test_a_refused_job_leaves_those_that_run(case):
    """The same with a job that the engine refuses: no more are started, and the error comes last."""
    one = case()
    one.turn()
    first, second = one.engine.specs
    one.engine.refusal = EngineError("no such partition")
    one.start(first)
    one.finish(first)
    assert [one.turn(), one.turn()] == [None, None]
    assert (one.engine.cancelled, len(one.engine.specs)) == ([], 2)
    one.start(second)
    one.finish(second)
    with pytest.raises(EngineError, match="no such partition"):
        one.turn()


def test_the_next_scheduler_knows_what_is_prepared(case):
    """It queues no job again, unless what was made has gone from the cache or was made by other code."""
    one = case()
    cache = one.store.home / "cache"
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "weights").write_text("made")
    (cache / "models" / "of.lock").write_text("")
    one.engine.setup_status = Status(state=JobState.RUNNING)
    one.turn()
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=0)
    one.turn()
    (cache / "models" / "of.lock").unlink()

    def setups(study):
        engine = FakeEngine()
        made = Scheduler(one.store, engine, one.store.home / "server", worker="elsewhere")
        made.take_up(study)
        made.turn()
        return len(engine.setups)

    assert setups(one.study) == 0
    (cache / "models" / "weights").write_text("mad")
    assert setups(one.study) == 1
    assert setups(one.study) == 0
    next(iter((one.store.home / "prepare").glob("*.done.json"))).write_text("[]")
    assert setups(one.study) == 1
    newer = [replace(arm, hashes=Hashes(code="1" * 64, data="2" * 64, model="3" * 64)) for arm in one.study.plan.arms]
    assert setups(replace(one.study, plan=replace(one.study.plan, arms=tuple(newer)))) == 1


@pytest.mark.parametrize("how", ["waits", "runs", "ended"])
def test_the_next_scheduler_takes_over_a_preparation_that_waits_or_runs(case, how):
    """It keeps its place in the queue of the cluster; one that failed under the earlier scheduler does not count."""
    one = case()
    states = {"waits": JobState.PENDING, "runs": JobState.RUNNING, "ended": JobState.ENDED}
    one.engine.setup_status = Status(state=JobState.PENDING)
    one.turn()
    one.engine.statuses = {name: Status(state=states[how], exit_code=1) for name in one.engine.setups}
    second = one.another(one.engine)
    second.turn()
    assert len(one.engine.setups) == (2 if how == "ended" else 1)
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=0)
    one.engine.statuses = {}
    second.turn()
    assert len(one.engine.specs) == 2


@pytest.mark.parametrize("refused", [False, True])
def test_a_study_that_could_not_be_prepared_begins_nothing_while_the_database_is_away(case, monkeypatch, refused):
    """What is wrong with it is not forgotten before it is written down: in the end it is paused, and no run began."""
    one = case()
    service = Scheduler(one.store, one.engine, one.store.home / "server", worker="here", pause=True)
    service.take_up(one.study)
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=1)
    submit = one.engine.submit

    def refuse(spec, name):
        if spec.module == "paribus.scheduler.setup_jobs":
            raise EngineError("no such partition")
        return submit(spec, name)

    if refused:
        one.engine.submit = refuse

    def away(*_):
        raise Unreachable("the database is away")

    with monkeypatch.context() as outage:
        outage.setattr(one.store, "pause", away)
        for _ in range(3):
            with pytest.raises(Unreachable):
                service.turn()
    assert service.turn() == {one.study.id: Ending.PAUSED}
    assert ("no such partition" if refused else "could not prepare") in one.store.paused(one.study.id)
    assert one.engine.specs == {}


def test_an_attempt_without_heartbeats_is_killed_and_its_run_queued(case):
    """When the lease is over the engine is told to end what is left."""
    one = case(arms=1, seeds=1)
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    one.start(name)
    one.now += LEASE_S + 1
    one.scheduler.turn()
    assert (name, 0.0) in one.engine.cancelled
    assert len(one.engine.specs) == 2


def test_when_too_little_of_the_budget_is_left_nothing_more_is_claimed(case):
    """What the longest run took would not fit any more; the study says so, and ends."""
    one = case(engine=FakeEngine(slots=1, gpus_per_run=1.0), gpu_hours=1.0)
    one.scheduler.turn()
    name = next(iter(one.engine.specs))
    one.start(name)
    one.now += 1900
    one.finish(name)
    assert one.turn() is Ending.BUDGET
    assert len(one.engine.specs) == 1
    told = [line for line in one.said if "too little left" in line]
    assert len(told) == 1
    assert "(0.528 of 1 GPU-hours used; another run may need 0.528)" in told[0]


def test_what_is_in_flight_may_make_room_again(case):
    """As long as something runs that has reserved more than it may need, the end has not come."""
    one = case(engine=FakeEngine(gpus_per_run=1.0), gpu_hours=1.0, run_hours=0.6)
    assert one.turn() is None
    first = next(iter(one.engine.specs))
    assert len(one.engine.specs) == 1
    one.start(first)
    one.now += 60
    one.finish(first)
    assert one.turn() is None
    assert len(one.engine.specs) == 3


@pytest.mark.parametrize("gpus", [0.0, 0.5, 1.0])
def test_the_cap_ends_what_is_in_flight_and_the_overrun_is_within_what_was_printed(case, monkeypatch, gpus):
    """Eight runs of unknown length hit it together: they write checkpoints, nothing is counted against them."""
    hours = {"cpu_hours": 0.5} if gpus == 0 else {"gpu_hours": 0.5 * gpus}
    one = case(engine=FakeEngine(slots=8, gpus_per_run=gpus), arms=4, seeds=4, **hours)
    one.engine.cancel = lambda name, grace: one.engine.cancelled.append((name, grace))
    one.scheduler.turn()
    for name in one.engine.specs:
        one.start(name)
    elapsed, begun = 0, scheduler.time.monotonic()
    while not one.engine.cancelled:
        elapsed, one.now = elapsed + 20, one.now + 20
        monkeypatch.setattr(scheduler.time, "monotonic", lambda now=begun + elapsed: now)
        for name in one.engine.specs:
            one.store.renew(*one.supervisor(name)[:2])
        assert one.turn() is None
    assert elapsed == 240  # eight of them use half an hour in 225 s
    assert one.engine.cancelled == [(name, active_attempts.GRACE_S) for name in one.engine.specs]
    assert one.turn() is None
    assert len(one.engine.cancelled) == 8
    one.now += active_attempts.GRACE_S
    for number, name in enumerate(one.engine.specs):
        if number < 7:
            one.store.release(*one.supervisor(name)[:2], "asked to stop")
        one.engine.ended[name] = 0
    assert one.turn() is Ending.BUDGET
    runs = one.store.runs_of(one.study.id)
    assert {(r.state, r.infrastructure_failures) for r in runs} == {(RunState.QUEUED, 0)}
    budget = one.store.budget("small", "gpu" if gpus else "cpu")
    printed = next(float(line.split()[-2]) for line in one.said if "used up" in line)
    assert budget.cap < budget.spent <= budget.cap + printed * 3600
    assert audit(snapshot(one.store, folders=False)) == ()


def test_what_is_in_flight_for_a_plan_that_was_replaced_keeps_to_the_lower_budget_of_the_new_one(case, monkeypatch):
    """The new plan is not served, as it cannot be afforded; the runs of the old one end with grace all the same."""
    one = case(cpu_hours=48.0)
    one.scheduler.turn()
    for name in one.engine.specs:
        one.start(name)
    one.scheduler.drop(one.study.id)
    one.store.add_study(small_plan(steps=8, cpu_hours=0.01))
    later(one, monkeypatch, LEASE_S / 2)
    one.scheduler.turn()
    assert one.engine.cancelled == [(name, active_attempts.GRACE_S) for name in one.engine.specs]
    assert "the budget is used up (0.0167 of 0.01 CPU run-hours used)" in one.said[-1]


def test_an_interrupt_stops_with_grace_and_a_second_one_by_force(case):
    """No attempt is claimed any more; the end is told as interrupted."""
    one = case()
    one.scheduler.turn()
    one.engine.cancel = lambda name, grace: one.engine.cancelled.append((name, grace))
    one.scheduler.interrupt()
    assert one.turn() is None
    graces = [g for _, g in one.engine.cancelled]
    assert len(graces) == 2
    assert min(graces) > 0
    one.scheduler.interrupt()
    one.scheduler.turn()
    assert [g for _, g in one.engine.cancelled[2:]] == [0.0, 0.0]
    one.engine.ended = dict.fromkeys(one.engine.specs, -9)
    assert one.turn() is Ending.INTERRUPTED
    assert set(one.states()) == {"QUEUED"}


def test_a_third_interrupt_leaves_what_the_engine_cannot_end(case):
    """A cluster that does not answer must not keep its user: the next scheduler finds the jobs."""
    one = case()
    one.scheduler.turn()
    one.engine.cancel = lambda name, grace: None
    for _ in range(2):
        one.scheduler.interrupt()
        assert one.turn() is None
    one.scheduler.interrupt()
    assert one.turn() is Ending.INTERRUPTED
    assert one.scheduler.idle
    assert one.said[-1].startswith("2 runs have not stopped")
    second = one.another(one.engine)
    second.reconcile()
    second.turn()
    assert one.states() == ["LEASED", "LEASED", "QUEUED", "QUEUED"]
    assert len(one.engine.specs) == 2


def test_a_paused_study_comes_to_its_end_when_nothing_runs_any_more(case):
    """What runs may finish; nothing more is claimed; the end is told as paused."""
    one = case(engine=FakeEngine(slots=4), arms=5, seeds=1)
    one.scheduler.turn()
    good, *bad = list(one.engine.specs)
    for name in (good, *bad):
        one.start(name)
    for name in bad:
        run, token, _ = one.supervisor(name)
        one.store.fail(run, token, "program", "ValueError", "ValueError")
        one.engine.ended[name] = 0
    assert one.turn() is None
    one.finish(good)
    assert one.turn() is Ending.PAUSED
    assert len(one.engine.specs) == 4
    assert "3 arms failed with the same error" in one.store.paused(one.study.id)


def test_the_folder_of_a_lost_store_is_not_written_over(case):
    """Results that nobody remembers are still somebody's; nor must an old job's exit status count as a new one's."""
    one = case()
    folder = RunFolder.of(one.store.home, one.study.plan.runs[0].fingerprint, 1)
    folder.path.mkdir(parents=True)
    jobs = rf"files paribus-{folder.path.parent.name}-\* in the folders of {one.store.home}/engine"
    with pytest.raises(StoreError, match=f"exists already.*{jobs}"):
        one.scheduler.turn()
    assert one.store.runs_of(one.study.id)[0].state is RunState.QUEUED


def test_what_runs_share_is_prepared_once_and_before_the_first_run(case):
    """One job for each distinct model and task; a failure ends the session with the end of the log."""
    one = case()
    one.engine.setup_status = Status(state=JobState.RUNNING)
    one.turn()
    (spec,) = one.engine.setups.values()
    assert json.loads(Path(spec.arguments[1]).read_text())["model"]["name"] == "tiny"
    assert one.engine.specs == {}
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=0)
    one.turn()
    assert len(one.engine.specs) == 2
    one.scheduler.drop(one.study.id)
    one.scheduler.take_up(one.study)
    one.turn()
    assert len(one.engine.setups) == 1

    shutil.rmtree(one.store.home / "prepare")
    engine = FakeEngine()
    engine.setup_status = Status(state=JobState.RUNNING)
    second = one.another(engine)
    second.turn()
    Path(next(iter(engine.setups.values())).arguments[3]).write_text("OSError: no space left")
    engine.setup_status = Status(state=JobState.ENDED, exit_code=1)
    with pytest.raises(RunnerError, match="no space left"):
        second.turn()


def test_what_is_wrong_with_one_study_pauses_it_and_no_other(case):
    """A refused job and a failed preparation: the others go on, the reason is kept, a retry lifts it."""
    one = case(engine=FakeEngine(slots=8))
    service = Scheduler(one.store, one.engine, one.store.home / "server", worker="here", pause=True)
    other = one.store.add_study(small_plan("other", arms=2, seeds=1, steps=9))
    one.engine.refusal = EngineError("no such partition")
    service.take_up(one.study)
    assert service.turn() == {one.study.id: Ending.PAUSED}
    assert one.store.paused(one.study.id) == "no such partition"
    one.engine.refusal = None
    service.take_up(other)
    assert service.turn() == {}
    assert len(one.engine.specs) == 2
    third = one.store.add_study(small_plan("third", arms=1, seeds=1, steps=10))
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=1)
    shutil.rmtree(one.store.home / "prepare")
    service.take_up(third)
    assert service.turn() == {third.id: Ending.PAUSED}
    assert "could not prepare" in one.store.paused(third.id)
    one.store.retry("small", author="me", reason="mended")
    one.engine.setup_status = Status(state=JobState.ENDED, exit_code=0)
    service.take_up(one.store.study("small"))
    assert service.turn() == {}
    assert len(one.engine.specs) == 6


def test_studies_get_their_shares_of_one_slot_and_a_higher_priority_comes_first(case):
    """Weight 2 begins two runs for one of weight 1, each study in its own design order; then priority changes that."""
    one = case(engine=FakeEngine(slots=1), arms=1, seeds=6)
    heavy = one.store.add_study(small_plan("heavy", arms=1, seeds=6, steps=9), weight=2.0)
    one.scheduler.take_up(heavy)
    begun = []

    def go(runs):
        for _ in range(runs):
            one.scheduler.turn()
            name = next(n for n in one.engine.specs if n not in one.engine.ended)
            job = Job.model_validate_json((one.path(name) / "job.json").read_bytes())
            begun.append((job.study, job.seed))
            one.start(name)
            one.finish(name)

    go(6)
    assert [study for study, _ in begun].count("heavy") == 4
    one.scheduler.take_up(one.store.add_study(one.study.plan, priority=1))
    go(4)
    assert [study for study, _ in begun[6:]] == ["small"] * 4
    assert [seed for study, seed in begun if study == "small"] == list(range(6))


def test_a_run_that_several_studies_ask_for_has_the_highest_of_their_priorities(case):
    """It is begun when the first of them would begin it, and once for all."""
    one = case(engine=FakeEngine(slots=1), arms=2, seeds=2)
    urgent = one.store.add_study(small_plan("urgent", arms=1, seeds=2), priority=3)
    one.scheduler.take_up(urgent)
    shared = [r.fingerprint for r in urgent.plan.runs]
    for _ in range(2):
        one.scheduler.turn()
        name = next(n for n in one.engine.specs if n not in one.engine.ended)
        one.start(name)
        one.finish(name)
    assert [name.split("-")[1] for name in one.engine.specs] == [f[:12] for f in shared]
    assert one.scheduler.turn() == {urgent.id: Ending.COMPLETE}
    assert one.states() == ["SUCCEEDED", "LEASED", "SUCCEEDED", "QUEUED"]


def test_a_folder_that_cannot_be_made_pauses_the_study(case):
    """Every other run would fail there, too; the reason is kept, and no attempt is counted."""
    one = case()
    (one.store.home / "runs").write_text("")
    assert one.scheduler.turn() == {one.study.id: Ending.PAUSED}
    assert "Not a directory" in one.store.paused(one.study.id)
    assert set(one.states()) == {"QUEUED"}
    assert one.engine.specs == {}


def test_runs_that_a_lost_answer_has_claimed_are_put_back(case, monkeypatch):
    """Nobody will start them; nothing is counted, what another scheduler has claimed is left alone, and both go on."""
    monkeypatch.setattr(active_attempts, "HOLD_S", 0.0)
    c = case(arms=2, seeds=2, engine=FakeEngine(slots=4))
    (lost,) = c.store.claim_many(c.study.id, 1, engine="fake", worker="here")
    (others,) = c.store.claim_many(c.study.id, 1, engine="fake", worker="there")
    c.turn()
    assert [r.token for r in c.store.runs_of(c.study.id)] == [lost.token + 1, 1, 1, 1]
    assert len(c.engine.specs) == 3
    assert {a.outcome for a in c.store.attempts_of(c.study.id) if a.token == 1} == {"release", ""}
    assert sum(r.infrastructure_failures for r in c.store.runs_of(c.study.id)) == 0
    assert others.submit_name in {a.submit_name for a in c.store.live_attempts()}


def test_edited_resources_count_from_the_next_run_on(case):
    """What is in flight keeps what it holds; what can never be had changes nothing."""
    c = case(engine=FakeEngine(slots=1))
    c.turn()
    c.engine.gpus_per_run = 2.0
    c.scheduler.take_up(c.study)
    (first,) = c.engine.specs
    c.start(first)
    c.finish(first)
    c.turn()
    assert [spec.need.gpus for spec in c.engine.specs.values()] == [0.0, 2.0]
    assert [a.gpus for a in c.store.attempts_of(c.study.id)] == [0.0, 2.0]

    def refuse(resources):
        raise TooLarge("9 GPUs", "there are 2", "Ask for less.")

    c.engine.need = refuse
    with pytest.raises(TooLarge):
        c.scheduler.take_up(c.store.add_study(c.study.plan, priority=4))
    assert c.scheduler.studies[c.study.id].priority == 0
