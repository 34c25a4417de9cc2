"""The scheduler in a simulated world: its clock, engine, supervisors and faults are drawn from one seed."""

import os
import random
from contextlib import suppress
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from paribus.engines.base import JobState, Status
from paribus.errors import LostLease
from paribus.schedule import scheduler
from paribus.schedule.scheduler import Ending, Scheduler
from paribus.store import tables as t
from paribus.store.audit import audit
from paribus.store.moves import LEASE_S
from paribus.store.snapshot import snapshot
from paribus.store.states import RECORDED, TERMINAL
from paribus.store.store import Store
from paribus.study.job import Job
from paribus.testing.databases import memory_database
from paribus.testing.plans import small_plan
from paribus.track.folder import RunFolder

TICK_S = 10.0
BEAT_S = LEASE_S / 3
HISTORIES = int(os.environ.get("PARIBUS_SIMULATED_HISTORIES", "12"))
"""Small histories in the ordinary suite; a night has time for thousands."""
MIDWAY = ("dies", "program fails", "pauses", "asks again")
FAULTS = ("silent start", "engine forgets", *MIDWAY)
FAULT_RATE = 0.3


@dataclass
class Process:
    """A supervisor and its runner: what it will do, and when."""

    run: int
    token: int
    begins: float
    ends: float
    fault: str
    started: bool = False
    state: JobState = JobState.PENDING
    exit_code: int | None = None
    next_beat: float = 0.0
    stop_at: float | None = None
    paused_to: float = 0.0


class World:
    """A store, an engine whose jobs outlive schedulers, and a scheduler that is sometimes killed."""

    name, reach, about, gpus_per_run = "simulated", None, "", 1.0

    def __init__(self, home, seed, *, gpus, restarts=0.01, orders=0, **plan):
        self.now, self.dice, self.gpus, self.restarts = 1000.0, random.Random(seed), gpus, restarts
        self.jobs, self.said, self.prepared, self.seen = {}, [], {}, set()
        self.orders, self.submits = orders, 0
        self.store = Store(memory_database(lambda: self.now), home)
        self.store.add_study(small_plan(**plan))
        self.scheduler = self.hire()

    def hire(self):
        """Return a scheduler that has cleared up after the one before, and serves what can go on."""
        say = self.said.append
        made = Scheduler(self.store, self, self.store.home / "office", say=say, worker="here", pause=True)
        made.reconcile()
        self.look(made)
        return made

    def look(self, scheduler):
        """Let a scheduler take up what was submitted; return whether nothing is left to do."""
        for entry in self.store.entries():
            served = scheduler.studies.get(entry.id)
            if served is None:
                new = entry.open and not entry.paused and scheduler.affords(entry.name)
            else:
                new = (served.priority, served.weight) != (entry.priority, entry.weight)
            if new:
                scheduler.take_up(self.store.numbered(entry.id))
        return scheduler.idle

    def order(self):
        """Let somebody submit a study, cancel one or an arm of it, or try it again; studies share runs."""
        self.orders -= 1
        names = [f"study{i}" for i in range(self.submits)]
        what = self.dice.choice(("submit", "again", "cancel", "cancel arm", "retry")) if names else "submit"
        if what == "submit":
            arms, seeds, hours = self.dice.randint(1, 4), self.dice.randint(1, 3), self.dice.choice((None, 0.05))
            plan = small_plan(f"study{self.submits}", arms=arms, seeds=seeds, gpu_hours=hours)
            self.store.add_study(plan, priority=self.dice.choice((0, 0, 5)), weight=self.dice.choice((0.5, 1.0, 3.0)))
            self.submits += 1
            return
        name = self.dice.choice(names)
        if what == "again":
            self.store.add_study(self.store.study(name).plan, priority=self.dice.choice((0, 5)))
        elif what == "retry":
            self.store.retry(name, author="somebody", reason="after all")
        else:
            self.store.cancel(name, "arm0" if what == "cancel arm" else None)

    # ---- the engine ----

    def submit(self, spec, name):
        """Start a job; what becomes of it is drawn now."""
        if spec.module == "paribus.schedule.prepare":
            self.prepared[name] = int(self.submits > 0 and self.dice.random() < 0.3)
            return name
        token = Job.model_validate_json(RunFolder(self.store.home.joinpath(spec.arguments[0])).job.read_bytes()).token
        fault = self.dice.choice(FAULTS) if self.dice.random() < FAULT_RATE else ""
        begins = self.now + self.dice.choice((0.0, 10.0, 200.0))
        ends = begins + self.dice.uniform(20.0, 200.0)
        self.jobs[name] = Process(run=int(spec.arguments[2]), token=token, begins=begins, ends=ends, fault=fault)
        return name

    def find(self, name):
        """Return the name of a job that there was."""
        return name if name in self.jobs else None

    def poll(self, names):
        """Return what the engine believes."""
        made = {n: Status(state=JobState.ENDED, exit_code=code) for n, code in self.prepared.items()}
        return {n: made.get(n) or self.believe(self.jobs.get(n)) for n in names}

    def believe(self, job):
        """Return the status of a job; an engine forgets some that run."""
        if job is None or (job.fault == "engine forgets" and job.state is JobState.RUNNING):
            return Status(state=JobState.UNKNOWN)
        return Status(state=job.state, exit_code=job.exit_code)

    def cancel(self, name, grace):
        """Stop a job now, or within its grace."""
        job = self.jobs.get(name)
        if job is not None and job.state is not JobState.ENDED:
            job.stop_at = self.now + (self.dice.uniform(0.0, grace) if grace else 0.0)
            if not grace:
                self.end(job, -9)

    def capacity(self):
        """Return the number of free GPUs."""
        return self.gpus - sum(j.state is not JobState.ENDED for j in self.jobs.values())

    # ---- the supervisors ----

    def end(self, job, code):
        """The processes of a job are gone."""
        job.state, job.exit_code = JobState.ENDED, code

    def live(self, job):
        """Let one supervisor do what is due; whatever the store refuses ends it."""
        try:
            self.act(job)
        except LostLease:
            self.end(job, 79)

    def act(self, job):
        """Begin, stop, meet its fault, finish or beat."""
        held = (job.run, job.token)
        if self.now < max(job.begins, job.paused_to):
            return
        job.state = JobState.RUNNING
        if job.fault == "silent start":
            self.end(job, 1)
        elif not job.started:
            self.store.start(*held)
            job.started, job.next_beat = True, self.now + BEAT_S
        elif job.stop_at is not None and self.now >= job.stop_at:
            self.store.release(*held, "asked to stop")
            self.end(job, 0)
        elif job.fault in MIDWAY and self.now >= (job.begins + job.ends) / 2:
            self.meet(job, *held)
        elif self.now >= job.ends:
            self.store.finish(*held, {"status": "succeeded"})
            self.end(job, 0)
        elif self.now >= job.next_beat:
            self.store.renew(*held)
            job.next_beat = self.now + BEAT_S

    def meet(self, job, *held):
        """Let a fault come."""
        if job.fault == "pauses":
            job.fault, job.paused_to = "", self.now + self.dice.uniform(0.5, 3.0) * LEASE_S
            return
        if job.fault == "program fails":
            self.store.fail(*held, "program", "why")
        if job.fault == "asks again":
            self.store.release(*held, "asked", wait_s=5.0, step=int(self.now))
        self.end(job, -9 if job.fault == "dies" else 0)

    # ---- time ----

    def tick(self):
        """Let some seconds go by; return whether all is done."""
        self.now += TICK_S
        for job in [j for j in self.jobs.values() if j.state is not JobState.ENDED]:
            self.live(job)
        if self.dice.random() < self.restarts:
            self.scheduler = self.hire()
        if self.orders and self.dice.random() < 0.05:
            self.order()
        self.seen |= set(self.scheduler.turn().values())
        return self.look(self.scheduler) and not self.orders

    def history(self):
        """Live to the end; return it, with everything that was written and said."""
        while not self.tick():
            assert self.now < 1e6, "some run waits for ever"
        for job in self.jobs.values():  # late words of zombies change nothing
            with suppress(LostLease):
                self.store.release(job.run, job.token, "late")
        with self.store.database.read() as connection:
            events, attempts = (
                connection.execute(sa.select(table).order_by(table.c.id)).all() for table in (t.event, t.attempt)
            )
        found = audit(snapshot(self.store, folders=False))
        endings = {s.id: self.ending(s) for s in self.store.entries()}
        self.store.close()
        assert found == ()
        return endings, events, attempts, self.said, self.seen

    def ending(self, entry):
        """Return where a study stands at the end."""
        if not entry.open:
            return Ending.COMPLETE
        if entry.paused:
            return Ending.PAUSED
        assert not self.scheduler.affords(entry.name), "it could go on"
        return Ending.BUDGET


@pytest.fixture
def live(tmp_path, monkeypatch):
    """Make a world and live its history."""
    count = iter(range(1000))

    def make(seed, **keywords):
        world = World(tmp_path / f"home{next(count)}", seed, **keywords)
        monkeypatch.setattr(scheduler.time, "monotonic", lambda: world.now)
        return world.history()

    return make


def test_two_hundred_runs_on_sixteen_gpus_come_to_their_end(live):
    """Every third attempt meets a fault and schedulers die; each run is recorded once or its tries are used up."""
    endings, events, attempts, *_ = live(1, gpus=16, arms=10, seeds=20)
    assert endings == {1: Ending.COMPLETE}
    last = {event.run_id: event.target for event in events}
    assert len(last) == 200
    assert set(last.values()) <= set(TERMINAL)
    assert sum(target in RECORDED for target in last.values()) > 150
    assert {a.outcome for a in attempts} >= {"succeed", "retry", "expire", "release"}


def test_the_same_seed_gives_the_same_log(live):
    """Nothing but the seed decides: a history that failed can be lived again."""
    one, two, other = (live(seed, gpus=8, arms=5, seeds=4, gpu_hours=0.9) for seed in (7, 7, 8))
    assert one == two != other


def test_small_histories_keep_every_promise(live):
    """Other faults each time, a cap that is often hit: nothing is lost, and what is overspent is bounded."""
    endings = set()
    for seed in range(HISTORIES):
        budget = {"gpu_hours": 0.1 + seed % 3 * 0.2, "run_hours": 0.05 if seed % 2 else None} if seed % 3 else {}
        endings.add(live(seed, gpus=4, arms=4, seeds=4, restarts=0.02, **budget)[0][1])
    assert endings == {Ending.COMPLETE, Ending.BUDGET}


def test_several_studies_are_submitted_cancelled_and_tried_again_while_others_run(live):
    """With priorities, weights, shared runs, budgets and broken set-ups: whatever can end does, always in one way."""
    endings = set()
    for seed in range(HISTORIES // 3):
        history = live(seed, gpus=3, arms=2, seeds=2, restarts=0.02, orders=12)
        endings |= history[-1]
        if seed == 0:
            assert live(seed, gpus=3, arms=2, seeds=2, restarts=0.02, orders=12) == history
    assert endings >= {Ending.COMPLETE, Ending.PAUSED, Ending.BUDGET}
