"""Plays a study through the scheduler and the store on a virtual clock: how long it takes on a cluster that is named.

Nothing here decides which run starts when: :class:`~paribus.scheduler.scheduler.Scheduler` does, on a store of its own
in memory. This module is the world around it: the clock, the jobs of :class:`SimulatedCluster`, and supervisors that
report to the store. A scheduler looks every 0.1 s; looks between two events would change nothing and are left out.
"""

from __future__ import annotations

import heapq
import math
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import sqlalchemy as sa

from paribus.engines.base import JobState
from paribus.scheduler.scheduler import FULL_S, Ending, Scheduler
from paribus.scheduler.simulated_cluster import ClusterShape, Rates, SimulatedCluster, Work
from paribus.store import tables as t
from paribus.store.database import Database
from paribus.store.migrate import create
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from paribus.study.plan import Plan, PlannedRun

LOOKS_A_RUN = 100
"""Looks at a budget during an average run; only studies with a cap are looked at without an event."""

_BEGIN_S = 1000.0


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run that has ended: with a result, or without."""

    arm: str
    seed: int
    at_s: float
    recorded: bool


@dataclass(frozen=True, kw_only=True)
class Played:
    """How a study went.

    Attributes:
        seconds: from its submission to the end of its last attempt.
        ended: its runs that ended, in this order; seconds count from the submission.
        ending: why it is no longer served.
        open: runs that have not ended.
        attempts: attempts of all runs.
        failures: attempts that a failure ended.
        preemptions: attempts that were preempted.
        held_h: device-hours that attempts held.
        lost_h: device-hours of them that trained what a later attempt trained again.
        devices: devices of all clusters.
    """

    seconds: float
    ended: tuple[EndedRun, ...]
    ending: Ending
    open: int
    attempts: int
    failures: int
    preemptions: int
    held_h: float
    lost_h: float
    devices: int

    @property
    def utilisation(self) -> float:
        """Share of the devices' time that attempts held."""
        return self.held_h * 3600 / (self.devices * self.seconds) if self.seconds else 0.0


def play(
    plan: Plan,
    clusters: Sequence[ClusterShape],
    hours: Mapping[str, float],
    *,
    recorded: Collection[str] = (),
    rates: Rates | None = None,
    start_s: float = 0.0,
) -> Played:
    """Play a study; the same arguments give the same result.

    Args:
        plan: the study. What its results may add is not played.
        clusters: where it runs; each has a scheduler, and all share the store.
        hours: wall time of one run of each arm without interruption, by key of the arm.
        recorded: fingerprints of runs that have a result already.
        rates: how often attempts end early; ``None``: never.
        start_s: seconds from a claim to the first report of an attempt.

    Raises:
        TooLarge: a run asks for more than the nodes have.
    """
    left = _without(plan, recorded)
    with tempfile.TemporaryDirectory(prefix="paribus-plan-") as folder:
        return _World(left, clusters, hours, rates or Rates(), start_s, Path(folder)).lived()


class _World:
    """Clock, store, clusters with their schedulers, and the supervisors of their jobs."""

    def __init__(
        self,
        plan: Plan,
        clusters: Sequence[ClusterShape],
        hours: Mapping[str, float],
        rates: Rates,
        start_s: float,
        home: Path,
    ) -> None:
        self._now = _BEGIN_S
        self._plan, dice = plan, Random(rates.seed)  # noqa: S311 - no secret
        database = Database("sqlite://", self._clock)
        create(database)
        self._store = Store(database, home)
        works = {run.fingerprint: _work(plan, run.arm, hours[run.arm]) for run in plan.all_runs}
        self._clusters = [
            SimulatedCluster(shape, works, rates=rates, start_s=start_s, clock=self._clock, dice=dice)
            for shape in clusters
        ]
        self._steps = {arm.key: arm.recipe.schedule.steps for arm in plan.all_arms}
        seconds = [work.seconds for work in works.values()]
        capped = plan.gpu_hours is not None or plan.cpu_hours is not None
        self._stride = max(FULL_S, sum(seconds) / len(seconds) / LOOKS_A_RUN) if capped and seconds else math.inf
        self._runs: Mapping[int, PlannedRun] = {}
        self._done: list[EndedRun] = []
        self._attempts, self._last = 0, _BEGIN_S

    def _clock(self) -> float:
        return self._now

    def lived(self) -> Played:
        """Live until every scheduler is idle."""
        with self._store as store:
            study = store.add_study(self._plan)
            planned = {run.fingerprint: run for run in self._plan.all_runs}
            self._runs = {run.id: planned[run.fingerprint] for run in store.runs_of(study.id)}
            made = [
                Scheduler(store, c, store.home / "server", worker=f"cluster{i}/", pause=True, clock=self._clock)
                for i, c in enumerate(self._clusters)
            ]
            for scheduler in made:
                scheduler.take_up(study)
            endings = list[Ending]()
            while any(not scheduler.idle for scheduler in made):
                self._beat()
                for scheduler in made:
                    endings += scheduler.turn().values()
                self._advance(Scheduler.period_s)
            self._note_lost(study.id)
            counts = store.counts(study.id)
        return Played(
            seconds=self._last - _BEGIN_S,
            ended=tuple(self._done),
            ending=endings[-1],
            open=sum(counts.values()) - len(self._done),
            attempts=self._attempts,
            failures=sum(c.failures for c in self._clusters),
            preemptions=sum(c.preemptions for c in self._clusters),
            held_h=math.fsum(c.held_s for c in self._clusters) / 3600,
            lost_h=math.fsum(c.lost_s for c in self._clusters) / 3600,
            devices=sum(c.shape.total for c in self._clusters),
        )

    def _beat(self) -> None:
        """Renew the leases of all running attempts in one statement: their supervisors would have, three a minute."""
        held = sa.update(t.run).where(t.run.c.state == RunState.RUNNING).values(lease_until=self._now + LEASE_S)
        with self._store.database.write() as connection:
            connection.execute(held)

    def _advance(self, period: float) -> None:
        """Go on to the first look of the schedulers at which something has happened, and let it happen in order."""
        coming = [c.events[0][0] for c in self._clusters if c.events]
        until = min([*coming, self._next_ready(), self._now + self._stride, self._now + 3600.0])
        looks = max(1, math.ceil((until - self._now) / period - 1e-9))
        turn = self._now + looks * period
        while due := [c for c in self._clusters if c.events and c.events[0][0] <= turn]:
            cluster = min(due, key=lambda c: c.events[0])
            when, _, name = heapq.heappop(cluster.events)
            if name in cluster.jobs:
                self._now = max(self._now, when)
                self._happen(cluster, name)
        self._now = turn

    def _next_ready(self) -> float:
        """Return when the next queued run may start that has to wait."""
        waiting = sa.select(sa.func.min(t.run.c.not_before))
        query = waiting.where(t.run.c.state == RunState.QUEUED, t.run.c.not_before > self._now)
        with self._store.database.read() as connection:
            found = connection.execute(query).scalar()
        return math.inf if found is None else float(found)

    def _happen(self, cluster: SimulatedCluster, name: str) -> None:
        """Let the supervisor of a job report its start, or its end if that is due."""
        job = cluster.jobs[name]
        if job.status.state is JobState.PENDING:
            self._store.start(job.run, job.token)
            self._attempts += 1
            cluster.begin(name)
            return
        if self._now < job.ends:
            return
        cluster.end(name)
        self._last = self._now
        if job.how == "finish":
            self._store.finish(job.run, job.token, {"status": "succeeded"})
            run = self._runs[job.run]
            self._done.append(EndedRun(arm=run.arm, seed=run.seed, at_s=self._now - _BEGIN_S, recorded=True))
        elif job.how != "failure":  # of a failure the scheduler learns from its engine
            steps = self._steps[self._runs[job.run].arm]
            reached = int(job.work.done_s / job.work.seconds * steps)
            step = {"reached": reached} if job.how == "preemption" else {}
            self._store.release(job.run, job.token, job.how, **step)

    def _note_lost(self, study_id: int) -> None:
        """Add the runs that ended without a result: their tries were used up."""
        for run in self._store.runs_of(study_id):
            if run.terminal and not run.recorded:
                lost = EndedRun(arm=run.arm, seed=run.seed, at_s=self._last - _BEGIN_S, recorded=False)
                self._done.append(lost)


def _work(plan: Plan, arm: str, hours: float) -> Work:
    """Return a whole run of an arm, with a checkpoint after so many steps as the study says."""
    every = plan.checkpoint.every or plan.evaluate.every
    share = min(1.0, every / plan.arm(arm).recipe.schedule.steps)
    return Work(seconds=3600 * hours, checkpoint_s=3600 * hours * share)


def _without(plan: Plan, recorded: Collection[str]) -> Plan:
    """Return the plan without the runs that have a result: no scheduler would start them."""
    known = frozenset(recorded)
    ranking = plan.ranking
    if ranking is not None:
        ranking = replace(ranking, runs=tuple(run for run in ranking.runs if run.fingerprint not in known))
    return replace(plan, runs=tuple(run for run in plan.runs if run.fingerprint not in known), ranking=ranking)


def lost_runs(played: Played) -> Counter[str]:
    """Return how many runs of each arm ended without a result, by key of the arm."""
    return Counter(run.arm for run in played.ended if not run.recorded)
