"""What the store hands out: frozen values, one class a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from paribus.store.states import RECORDED, TERMINAL, RunState
from paribus.study.plan import Plan

FailureKind = Literal["program", "infrastructure", "storage"]
"""What failed: the program, what it ran on, or the disk that it wrote to."""

Unit = Literal["gpu", "cpu"]
"""What is counted: seconds of a GPU, or of a CPU slot."""

TINY_S = 1e-3
"""Seconds that sums may differ by: they are added in another order."""


def unit_of(gpus: float) -> Unit:
    """Return what an attempt that holds so many GPUs is charged in."""
    return "gpu" if gpus > 0 else "cpu"


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """A study, last submitted at ``submitted_at``. Times here and below: seconds since 1970, the database's clock.

    Attributes:
        paused: why none of its runs is claimed; empty if they are.
        priority: studies of a higher one are served first.
        weight: its share among those of its priority.
    """

    id: int
    name: str
    plan: Plan
    submitted_at: float
    paused: str
    priority: int
    weight: float


class Terms(TypedDict, total=False):
    """How a study is served beside others; what is absent stays as it is."""

    priority: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class StudyEntry:
    """A study without its plan.

    Attributes:
        open: some of its runs have not come to their end.
    """

    id: int
    name: str
    submitted_at: float
    paused: str
    priority: int
    weight: float
    open: bool


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as a study sees it.

    Attributes:
        fingerprint: identity across studies, 64 hexadecimal digits.
        arm: key of the arm in the study that was asked for.
        state: where it stands; ``CANCELLED`` also if this study has cancelled it and it goes on for another.
        label: label of this arm.
        token: newest fence token; 0 before the first attempt. It names the newest attempt's folder.
        lease_until: end of the lease while an attempt holds the run.
        reason: why it last failed, was put back or was stopped early; empty for a run without trouble.
        signature: traceback signature of the last failure of the program.
    """

    id: int
    fingerprint: str
    arm: str
    label: str
    seed: int
    position: int
    state: RunState
    token: int
    lease_until: float | None
    program_failures: int
    infrastructure_failures: int
    cancel_requested: bool
    reason: str
    signature: str

    @property
    def terminal(self) -> bool:
        """Whether the state is never left."""
        return self.state in TERMINAL

    @property
    def recorded(self) -> bool:
        """Whether the run has a result."""
        return self.state in RECORDED


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to make one attempt at a run, as long as the lease is renewed under the token.

    Attributes:
        gpus: GPUs held; 0: a CPU slot.
        devices: names of those that were leased from the store; empty where the engine's cluster chooses.
    """

    run_id: int
    fingerprint: str
    arm: str
    seed: int
    token: int
    submit_name: str
    gpus: float
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One try at a run.

    Attributes:
        outcome: the move that ended it, e.g. ``succeed``; empty while it is live.
        study_id: the study that it was claimed for, and is charged to.
        gpus: GPUs held; 0: a CPU slot.
        cpus: CPU cores held of ``worker``; 0: they are not counted.
        cap: what its study might spend when it was claimed; ``None``: anything. This and the next two: see
            :class:`BudgetRecord` for the unit.
        reserved: set aside for it until its end.
        charged: what it has cost, from ``started_at``; ``None`` before its end.
    """

    run_id: int
    study_id: int
    fingerprint: str
    token: int
    engine: str
    worker: str
    submit_name: str
    external_id: str
    gpus: float
    cpus: float
    claimed_at: float
    started_at: float | None
    ended_at: float | None
    outcome: str
    reason: str
    signature: str
    cap: float | None
    reserved: float
    charged: float | None


@dataclass(frozen=True, kw_only=True)
class DeviceRecord:
    """What runs can hold of a host: a GPU, or its CPU cores together.

    Attributes:
        name: UUID or number of a GPU; ``cpu``.
        amount: 1 for a GPU, else cores.
        memory: GiB of a GPU; 0: unknown.
        idle: GiB that were in use when none of our runs held it, the least that was seen.
        cordoned: why no run gets it; empty if runs do.
        held: how much of it the attempts that have not ended hold.
    """

    id: int
    host: str
    kind: str
    name: str
    amount: float
    memory: float
    idle: float
    cordoned: str
    held: float


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """What an attempt holds of a device until it ends."""

    run_id: int
    token: int
    device_id: int
    share: float


@dataclass(frozen=True, kw_only=True)
class BudgetRecord:
    """What all plans of one name may spend and have spent in one unit; all numbers but the last in its seconds.

    Attributes:
        cap: the most that may be spent; ``None``: anything.
        stated: what the study file says that a run takes at most; 0 if it says nothing.
        reserved: set aside for attempts in flight.
        spent: charged to attempts that have ended.
        wasted: the part of it that left neither a result nor a checkpoint.
        longest: the most that an attempt was charged that left one of them.
        live: used by the attempts in flight, not charged yet.
        beyond: the part of it that is more than was reserved for them.
        results: results that these attempts have brought.
    """

    study: str
    unit: Unit
    cap: float | None
    stated: float
    reserved: float
    spent: float
    wasted: float
    longest: float
    live: float
    beyond: float
    results: int

    @property
    def used(self) -> float:
        """What is gone."""
        return self.spent + self.live

    @property
    def estimate(self) -> float:
        """The most that one more attempt may need, as far as known: from this study, else as stated, else 0."""
        return self.longest or self.stated

    @property
    def allows_another(self) -> bool:
        """Whether one more attempt may be claimed."""
        taken = self.spent + self.reserved + self.beyond
        return self.cap is None or (taken < self.cap and taken + self.estimate <= self.cap + TINY_S)

    def allows(self, count: int) -> int:
        """Return how many attempts may be claimed at once, of so many at most."""
        budget, allowed = self, 0
        while allowed < count and budget.allows_another:
            budget = replace(budget, reserved=budget.reserved + budget.estimate)
            allowed += 1
        return allowed

    @property
    def used_up(self) -> bool:
        """Whether the attempts in flight must end."""
        return self.cap is not None and self.used >= self.cap

    def expected(self, remaining: int) -> float | None:
        """Return what the whole study was said to take at most, before any run; ``None`` if nothing was said."""
        return self.stated * (self.results + remaining) or None

    def forecast(self, remaining: int) -> float | None:
        """Return what the study will have spent after so many more results; ``None`` if nothing is known."""
        each = self.spent / self.results if self.results else self.stated
        return self.spent + remaining * each if each or not remaining else None


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """A run that has been attempted, as the shipper sees it; ``ended_at`` is ``None`` while no attempt has ended."""

    fingerprint: str
    token: int
    state: RunState
    began_at: float
    ended_at: float | None

    @property
    def terminal(self) -> bool:
        """Whether no attempt will follow."""
        return self.state in TERMINAL


@dataclass(frozen=True, kw_only=True)
class ResultRecord:
    """The one result of a run; ``token`` names the attempt whose folder holds the evaluations."""

    fingerprint: str
    token: int
    payload: Mapping[str, Any]
    at: float


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """One line of the append-only log."""

    run_id: int
    at: float
    token: int
    move: str
    source: str
    target: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """The answer to a heartbeat that was accepted."""

    lease_s: float
    cancel: bool


@dataclass(frozen=True, kw_only=True)
class Cancellation:
    """What became of the runs that were cancelled.

    Attributes:
        queued: cancelled at once.
        running: asked to stop.
        shared: left alone, because another study asks for them.
        ended: had come to their end before.
    """

    queued: int
    running: int
    shared: int
    ended: int


@dataclass(frozen=True, kw_only=True)
class Revival:
    """What became of a study that is to be tried again.

    Attributes:
        queued: runs that are queued again.
        kept: running ones that had been asked to stop, and go on.
        lifted: whether the study was paused.
    """

    queued: int
    kept: int
    lifted: bool
