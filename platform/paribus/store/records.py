"""What the store hands out: frozen values, one class a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paribus.store.states import RECORDED, TERMINAL, RunState
from paribus.study.plan import Plan

FailureKind = Literal["program", "infrastructure"]


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """A study, last submitted at ``submitted_at``. Times here and below: seconds since 1970, the database's clock.

    Attributes:
        paused: why none of its runs is claimed; empty if they are.
    """

    id: int
    name: str
    plan: Plan
    submitted_at: float
    paused: str


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
        reason: why it last failed or was put back; empty for a run without trouble.
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
    """The right to make one attempt at a run, as long as the lease is renewed under the token."""

    run_id: int
    fingerprint: str
    arm: str
    seed: int
    token: int
    submit_name: str


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One try at a run.

    Attributes:
        outcome: the move that ended it, e.g. ``succeed``; empty while it is live.
        study_id: the study that it was claimed for, and is charged to.
        gpus: GPUs held, charged to the budget from ``claimed_at`` to ``ended_at``.
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
    claimed_at: float
    started_at: float | None
    ended_at: float | None
    outcome: str
    reason: str
    signature: str


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
