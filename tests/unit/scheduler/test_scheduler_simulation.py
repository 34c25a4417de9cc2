"""The scheduler in a simulated world: its clock, engine, supervisors and faults are drawn from one seed."""

import os
import random
import shutil
from contextlib import suppress
from dataclasses import dataclass
from math import inf

import pytest
import sqlalchemy as sa

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.contract import Job, Resources
from paribus.engines.base import PATIENCE_S, JobState, Status
from paribus.errors import LostLease
from paribus.run_folder.folder import RunFolder, write_json
from paribus.scheduler import active_attempts, scheduler
from paribus.scheduler.scheduler import Ending, Scheduler
from paribus.store import tables as t
from paribus.store.devices import FreeDevice, choose
from paribus.store.states import RECORDED, TERMINAL
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from paribus.testing.fake_engine import FakeEngine
from support.databases import memory_database
from support.plans import small_plan

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
    gpus: tuple = ()
    started: bool = False
    state: JobState = JobState.PENDING
    exit_code: int | None = None
    next_beat: float = 0.0
    stop_at: float | None = None
    paused_to: float = 0.0
    machine: "Machine | None" = None
    folder: RunFolder | None = None
    alone_from: float | None = None


class Machine(FakeEngine):
    """A host and its engine, whose jobs outlive schedulers."""

    def __init__(self, world, host, gpus):
        super().__init__(gpus=gpus, gpus_per_run=1.0, clock=lambda: world.now)
        self.world, self.host, self.back_at = world, host, 0.0
        self.jobs, self.prepared = {}, {}
        self.patience_s = inf if world.alone_s else PATIENCE_S
        self.scheduler = self.hire()

    def hire(self):
        """Return a scheduler that has cleared up after the one before, and serves what can go on; the cache is lost."""
        shutil.rmtree(self.world.store.home / "prepare", ignore_errors=True)
        store, say = self.world.store, self.world.said.append
        worker = f"/{self.host}" if self.world.alone_s else f"{self.host}/home"
        made = Scheduler(store, self, store.home / "server", say=say, worker=worker, pause=True)
        made.reconcile()
        self.look(made)
        return made

    def look(self, scheduler):
        """Let a scheduler take up what was submitted; return whether nothing is left to do."""
        store = self.world.store
        for entry in store.summaries():
            served = scheduler.studies.get(entry.id)
            if served is None:
                new = entry.open and not entry.paused and scheduler.affords(entry.name)
            else:
                new = (served.priority, served.weight) != (entry.priority, entry.weight)
            if new:
                scheduler.take_up(store.study_by_id(entry.id))
        return scheduler.idle

    # ---- the engine ----

    def submit(self, spec, name):
        """Start a job; what becomes of it is drawn now."""
        world, dice = self.world, self.world.dice
        identity = super().submit(spec, name)
        if name in self.setups:
            self.prepared[name] = int(world.submits > 0 and dice.random() < 0.3)
            return identity
        token = Job.model_validate_json(RunFolder(world.store.home.joinpath(spec.arguments[0])).job.read_bytes()).token
        fault = dice.choice(FAULTS) if dice.random() < FAULT_RATE else ""
        begins = world.now + dice.choice((0.0, 10.0, 200.0))
        ends = begins + dice.uniform(20.0, 200.0)
        made = Process(run=int(spec.arguments[2]), token=token, begins=begins, ends=ends, fault=fault, gpus=spec.gpus)
        made.machine, made.folder = self, RunFolder(world.store.home.joinpath(spec.arguments[0]))
        self.jobs[name] = made
        return identity

    def status(self, name):
        """Return what the engine believes of a job; it forgets some that run."""
        if name in self.prepared:
            return Status(state=JobState.ENDED, exit_code=self.prepared[name])
        job = self.jobs.get(name)
        if job is None or (job.fault == "engine forgets" and job.state is JobState.RUNNING):
            return Status(state=JobState.UNKNOWN)
        return Status(state=job.state, exit_code=job.exit_code)

    def cancel(self, name, grace):
        """Stop a job now, or within its grace."""
        job = self.jobs.get(name)
        if job is not None and job.state is not JobState.ENDED:
            job.stop_at = self.world.now + (self.world.dice.uniform(0.0, grace) if grace else 0.0)
            if not grace:
                self.world.end(job, -9)

    def capacity(self, need=None):
        """Return more than ever fit: the leases limit what runs; or what a small cluster has room for."""
        live = sum(job.state is not JobState.ENDED for job in self.jobs.values())
        return 4 - live if self.world.alone_s else 1000


class World:
    """A store, and machines each with a scheduler that is sometimes killed."""

    def __init__(self, home, seed, *, machines=(), gpus=4, asked=({},), restarts=0.01, orders=0, alone_s=0.0, **plan):
        self.now, self.dice, self.restarts = 1000.0, random.Random(seed), restarts
        self.alone_s, self.written, self.taken = alone_s, {}, []
        self.said, self.seen, self.idle = [], set(), set()
        self.orders, self.submits = orders, 0
        self.store = Store(memory_database(lambda: self.now), home)
        for i, resources in enumerate(asked):
            self.store.add_study(small_plan(f"first{i}", resources=Resources(**resources), steps=4 + i, **plan))
        self.machines = [Machine(self, f"host{i}", count) for i, count in enumerate(machines or (gpus,))]

    def jobs(self):
        """Return all jobs that there ever were."""
        return [job for machine in self.machines for job in machine.jobs.values()]

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

    # ---- the supervisors ----

    def end(self, job, code):
        """The processes of a job have ended."""
        job.state, job.exit_code = JobState.ENDED, code

    def live(self, job):
        """Let one supervisor do what is due; whatever the store refuses ends it."""
        try:
            self.act_alone(job) if job.machine.back_at > self.now else self.act(job)
        except LostLease:
            if self.alone_s and job.stop_at is None:
                self.taken.append(job)
            self.end(job, 79)

    def act_alone(self, job):
        """Do what a supervisor does while its scheduler is away: begin, train, and leave the end in the folder."""
        if self.now < max(job.begins, job.paused_to):
            return
        job.state = JobState.RUNNING
        if job.alone_from is None:
            job.alone_from = self.now
        over = self.now >= job.ends
        if job.fault == "silent start":
            self.end(job, 1)
        elif job.fault == "dies" and over:
            self.end(job, -9)
        elif over:
            report = {"do": "finish", "payload": {"status": "succeeded"}, "stopped_early": False}
            if job.fault == "program fails":
                report = {"do": "fail", "kind": "program", "reason": "why", "signature": ""}
            seconds = {} if job.started else {"seconds": self.now - job.alone_from}
            write_json(job.folder.outcome, {"run": job.run, "token": job.token, **report, **seconds})
            self.written[job.folder.outcome] = self.now
            self.end(job, 1)

    def act(self, job):
        """Begin, stop, meet its fault, finish or beat."""
        held = (job.run, job.token)
        if self.now < max(job.begins, job.paused_to):
            return
        job.state = JobState.RUNNING
        if job.fault == "silent start":
            self.end(job, 1)
        elif not job.started:
            self.store.start(*held, ago_s=0.0 if job.alone_from is None else self.now - job.alone_from)
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
        """Let some seconds go by, and each scheduler take a turn; return whether all is done."""
        self.now += TICK_S
        for job in [j for j in self.jobs() if j.state is not JobState.ENDED]:
            self.live(job)
        if self.orders and self.dice.random() < 0.05:
            self.order()
        for machine in self.machines:
            if machine.back_at > self.now:
                continue
            if self.alone_s and self.dice.random() < self.restarts and any(self.jobs()):
                machine.back_at = self.now + self.alone_s
                continue
            if machine.back_at or self.dice.random() < self.restarts:
                machine.back_at, machine.scheduler = 0.0, machine.hire()
            self.seen |= set(machine.scheduler.turn().values())
        here = [m for m in self.machines if not self.alone_s]
        found = {(m.host, n) for m in here for n in m.scheduler.studies if self.is_idle(m, n)}
        assert not found & self.idle, "a GPU was idle for two turns while a run that fits on it was ready"
        self.idle = found
        idle = [machine.look(machine.scheduler) for machine in self.machines]
        return all(idle) and not self.orders

    def is_idle(self, machine, study_id):
        """Return whether a run is ready and what it needs is free."""
        link, run = t.study_run.c, t.run.c
        mine = sa.select(link.run_id).where(link.study_id == study_id, link.withdrawn.is_(False))
        ready = sa.select(run.id).where(run.id.in_(mine), run.state == "QUEUED", run.not_before <= self.now - TICK_S)
        with self.store.database.read() as connection:
            if not connection.execute(ready).first():
                return False
        served = machine.scheduler._active[study_id]
        if served.setup is not None or served.out_of_budget or self.store.paused(study_id):
            return False
        pool = machine.scheduler._pool(served.need)
        rows = [d for d in self.store.devices(machine.host) if d.id in pool.devices]
        devices = [FreeDevice(id=d.id, kind=d.kind, name=d.name, free=d.amount - d.held) for d in rows]
        return choose(devices, served.need) is not None

    def history(self):
        """Live to the end; return it, with everything that was written and said."""
        while not self.tick():
            assert self.now < 1e6, "some run waits for ever"
        for job in self.jobs():  # late words of zombies change nothing
            with suppress(LostLease):
                self.store.release(job.run, job.token, "late")
        with self.store.database.read() as connection:
            events, attempts, leases = (
                connection.execute(sa.select(table).order_by(*table.primary_key)).all()
                for table in (t.event, t.attempt, t.lease)
            )
        found = audit(snapshot(self.store, folders=False))
        endings = {s.id: self.ending(s) for s in self.store.summaries()}
        self.store.close()
        assert found == ()
        return endings, events, (attempts, leases), self.said, self.seen

    def ending(self, entry):
        """Return where a study stands at the end."""
        if not entry.open:
            return Ending.COMPLETE
        if entry.paused:
            return Ending.PAUSED
        assert not self.machines[0].scheduler.affords(entry.name), "it could go on"
        return Ending.BUDGET


@pytest.fixture
def live(tmp_path, monkeypatch):
    """Make a world and live its history."""
    count = iter(range(1000))

    def make(seed, **keywords):
        world = World(tmp_path / f"home{next(count)}", seed, **keywords)
        monkeypatch.setattr(scheduler.time, "monotonic", lambda: world.now)
        monkeypatch.setattr(active_attempts, "since_boot", lambda: world.now)
        monkeypatch.setattr(active_attempts, "_age", lambda *files: world.now - world.written.get(files[0], world.now))
        history = world.history()
        assert world.taken == [], "a run was taken from an attempt that its engine knew, or that reported"
        return history

    return make


@pytest.mark.slow
def test_two_hundred_runs_on_sixteen_gpus_come_to_their_end(live):
    """Every third attempt meets a fault and schedulers die; each run is recorded once or its tries are used up."""
    endings, events, (attempts, _), *_ = live(1, machines=(8, 8), arms=10, seeds=20)
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


@pytest.mark.slow
def test_small_histories_keep_every_promise(live):
    """Other faults each time, a cap that is often hit: nothing is lost, and what is overspent is bounded."""
    endings = set()
    for seed in range(HISTORIES):
        budget = {"gpu_hours": 0.1 + seed % 3 * 0.2, "run_hours": 0.05 if seed % 2 else None} if seed % 3 else {}
        endings.add(live(seed, gpus=4, arms=4, seeds=4, restarts=0.02, **budget)[0][1])
    assert endings == {Ending.COMPLETE, Ending.BUDGET}


@pytest.mark.slow
def test_several_studies_are_submitted_cancelled_and_tried_again_while_others_run(live):
    """With priorities, weights, shared runs, budgets and broken set-ups: whatever can end does, always in one way."""
    endings = set()
    for seed in range(HISTORIES * 2 // 3):
        history = live(seed, gpus=3, arms=2, seeds=2, restarts=0.02, orders=12)
        endings |= history[-1]
        if seed == 0:
            assert live(seed, gpus=3, arms=2, seeds=2, restarts=0.02, orders=12) == history
    assert endings >= {Ending.COMPLETE, Ending.PAUSED, Ending.BUDGET}


@pytest.mark.slow
def test_clusters_whose_schedulers_are_away_for_an_hour_lose_nothing(live):
    """Jobs begin, train and end meanwhile; those that are there keep their runs, on one database with another host."""
    for seed in range(HISTORIES // 4):
        endings, _, (attempts, _), _, _ = live(seed, machines=(0, 0), arms=3, seeds=4, restarts=0.01, alone_s=3600.0)
        assert set(endings.values()) == {Ending.COMPLETE}
        assert {a.worker for a in attempts} == {"/host0", "/host1"}
        assert "expire" not in {a.outcome for a in attempts}


ASKED = ({"gpus": 0.25}, {"gpus": 0.5}, {"gpus": 1}, {"gpus": 3})


@pytest.mark.slow
def test_studies_of_all_sizes_share_the_gpus_of_several_hosts(live):
    """Fractions, whole GPUs and three at once: none is booked twice or idle while a run fits, and all end."""
    for seed in range(HISTORIES // 4):
        endings, _, (attempts, leases), _, _ = live(seed, machines=(4, 3), asked=ASKED, arms=3, seeds=2)
        assert set(endings.values()) == {Ending.COMPLETE}
        assert len(attempts) >= 24
        assert {round(lease.share, 3) for lease in leases} == {0.25, 0.5, 1.0}
        assert {a.worker for a in attempts} == {"host0/home", "host1/home"}
