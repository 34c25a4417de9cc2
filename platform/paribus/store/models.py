"""Row types: the frozen values that the store returns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from pydantic import TypeAdapter

from paribus.errors import StoreError, did_you_mean
from paribus.store.states import RECORDED, TERMINAL, RunState
from paribus.study.plan import Plan

PLAN = TypeAdapter(Plan)
"""Reads and writes the plan column of the study table."""

FailureKind = Literal["program", "infrastructure", "storage"]
"""What failed: the program, the infrastructure under it, or the disk that it wrote to."""

Unit = Literal["gpu", "cpu"]
"""The unit of a budget: seconds of a GPU, or of a CPU slot."""

TINY_S = 1e-3
"""Tolerance for sums of seconds, which are added in different orders."""


def unit_of(gpus: float) -> Unit:
    """Return the unit in which an attempt with this many GPUs is charged."""
    return "gpu" if gpus > 0 else "cpu"


@dataclass(frozen=True, kw_only=True)
class _Study:
    """A study, last submitted at ``submitted_at``. All times are seconds since 1970 on the database's clock.

    Attributes:
        first_submitted_at: when it was submitted for the first time; 0: not recorded.
        paused: why none of its runs is claimed; empty if it is not paused.
        priority: studies with a higher priority are served first.
        weight: its share among studies of the same priority.
    """

    id: int
    name: str
    submitted_at: float
    first_submitted_at: float
    paused: str
    priority: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class StudyRecord(_Study):
    """A study with its plan."""

    plan: Plan

    def arm_key(self, named: str) -> str:
        """Return the key of an arm, given by label or key.

        Raises:
            StoreError: the study has no such arm; the message lists its arms.
        """
        keys = {arm.label: arm.key for arm in self.plan.arms} | {arm.key: arm.key for arm in self.plan.arms}
        if named not in keys:
            labels = [arm.label for arm in self.plan.arms]
            near = did_you_mean(named, labels)
            raise StoreError(f"the study `{self.name}` has no arm `{named}`.{near} Arms: {', '.join(labels)}.")
        return keys[named]


@dataclass(frozen=True, kw_only=True)
class StudySummary(_Study):
    """A study without its plan; ``open``: some of its runs have not ended."""

    open: bool


class Terms(TypedDict, total=False):
    """How a study shares a scheduler with others. Absent keys keep their value."""

    priority: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as a study sees it.

    Attributes:
        fingerprint: identity across studies, 64 hexadecimal digits.
        arm: key of the arm in this study.
        state: as this study sees it: ``CANCELLED`` also if this study cancelled a run that goes on for another study.
        label: label of the arm.
        token: newest fence token; 0 before the first attempt. The folder of the newest attempt is named after it.
        lease_until: end of the lease while an attempt holds the run.
        reason: why it last failed, was requeued or stopped early; empty if none of these happened, or it goes on.
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
        """Whether the run has ended."""
        return self.state in TERMINAL

    @property
    def recorded(self) -> bool:
        """Whether the run has a result."""
        return self.state in RECORDED


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to make one attempt at a run, as long as the lease is renewed with the token.

    Attributes:
        gpus: GPUs held; 0: a CPU slot.
        devices: names of the GPUs that the store chose; empty where a cluster chooses.
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
    """One attempt at a run.

    Attributes:
        outcome: the move that ended it, e.g. ``succeed``; empty while it is live.
        study_id: the study that claimed it and is charged for it; ``None``: that study was deleted.
        gpus: GPUs held; 0: a CPU slot.
        cpus: CPU cores held on ``worker``; 0: not counted.
        cap: budget of its study at the claim, in the unit of :class:`BudgetRecord` like the next two; ``None``: none.
        reserved: reserved for it until its end.
        charged: its cost since ``started_at``; ``None`` before its end.
    """

    run_id: int
    study_id: int | None
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
    """A device of a host: a GPU, or all its CPU cores together.

    Attributes:
        name: UUID or number of a GPU; ``cpu``.
        amount: 1 for a GPU, otherwise the number of cores.
        memory: GiB of a GPU; 0: unknown.
        held: how much of it attempts hold now.
    """

    id: int
    host: str
    kind: str
    name: str
    amount: float
    memory: float
    held: float


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """The share of a GPU that an attempt holds until it ends."""

    run_id: int
    token: int
    device_id: int
    share: float


@dataclass(frozen=True, kw_only=True)
class BudgetRecord:
    """What all plans of one name may spend and have spent in one unit; in seconds of that unit, except ``results``.

    Attributes:
        cap: the limit; ``None``: no limit.
        stated: most time of one run according to the study file; 0 if it does not say.
        reserved: reserved for live attempts.
        spent: charged to attempts that have ended.
        wasted: the part of ``spent`` that went into attempts that failed, were lost or were cancelled.
        longest: the largest charge of any other attempt.
        live: used by live attempts, not charged yet.
        beyond: the part of ``live`` that exceeds their reservations.
        results: number of results.
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
        """Spent, including the use of live attempts."""
        return self.spent + self.live

    @property
    def estimate(self) -> float:
        """Upper estimate for one more attempt: the longest of this study, else the stated time, else 0."""
        return self.longest or self.stated

    @property
    def allows_another(self) -> bool:
        """Whether one more attempt may be claimed."""
        taken = self.spent + self.reserved + self.beyond
        return self.cap is None or (taken < self.cap and taken + self.estimate <= self.cap + TINY_S)

    def allows(self, count: int) -> int:
        """Return how many of ``count`` attempts may be claimed at once."""
        budget, allowed = self, 0
        while allowed < count and budget.allows_another:
            budget = replace(budget, reserved=budget.reserved + budget.estimate)
            allowed += 1
        return allowed

    @property
    def used_up(self) -> bool:
        """Whether live attempts must stop."""
        return self.cap is not None and self.used >= self.cap

    def expected(self, remaining: int) -> float | None:
        """Return the upper estimate for the whole study before any run; ``None`` if the study states none."""
        return self.stated * (self.results + remaining) or None

    def forecast(self, remaining: int) -> float | None:
        """Return what the study will have spent after ``remaining`` more results; ``None`` if there is no estimate."""
        each = self.spent / self.results if self.results else self.stated
        return self.spent + remaining * each if each or not remaining else None


@dataclass(frozen=True, kw_only=True)
class AttemptedRun:
    """A run with at least one attempt; ``ended_at`` is ``None`` until an attempt has ended."""

    fingerprint: str
    token: int
    state: RunState
    began_at: float
    ended_at: float | None

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.state in TERMINAL


@dataclass(frozen=True, kw_only=True)
class ResultRecord:
    """The result of a run; ``token`` names the attempt whose folder holds the evaluations."""

    fingerprint: str
    token: int
    payload: Mapping[str, Any]
    at: float


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """One line of the append-only event log."""

    run_id: int
    at: float
    token: int
    move: str
    source: str
    target: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """The answer to an accepted heartbeat."""

    lease_s: float
    cancel: bool


@dataclass(frozen=True, kw_only=True)
class CancelResult:
    """Numbers of runs after a cancellation.

    Attributes:
        queued: cancelled at once.
        running: asked to stop.
        shared: untouched, because another study needs them.
        ended: had ended before.
    """

    queued: int
    running: int
    shared: int
    ended: int


@dataclass(frozen=True, kw_only=True)
class RetryResult:
    """What a retry has changed.

    Attributes:
        queued: number of runs that are queued again.
        kept: number of live runs that had been asked to stop and now go on.
        lifted: whether the study was paused.
    """

    queued: int
    kept: int
    lifted: bool


def payload_hash(text: str) -> str:
    """Return the hash of a result's canonical JSON."""
    return hashlib.sha256(text.encode()).hexdigest()
