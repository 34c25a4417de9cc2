"""The state machine of a run, as one table. The SQL guards, the tests and the documentation are derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunState(StrEnum):
    """The state of a run."""

    PLANNED = "PLANNED"
    QUEUED = "QUEUED"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED_EARLY = "STOPPED_EARLY"
    CANCELLED = "CANCELLED"
    QUARANTINED = "QUARANTINED"


class Move(StrEnum):
    """What can happen to a run. Each move is one line of the append-only event log."""

    SUBMIT = "submit"
    CLAIM = "claim"
    START = "start"
    SUCCEED = "succeed"
    STOP_EARLY = "stop_early"
    RELEASE = "release"
    RETRY = "retry"
    FAIL = "fail"
    QUARANTINE = "quarantine"
    EXPIRE = "expire"
    ABANDON = "abandon"
    LAPSE = "lapse"
    WITHDRAW = "withdraw"
    CANCEL = "cancel"
    RERUN = "rerun"


class Condition(StrEnum):
    """What a move requires of the row, apart from its state."""

    READY = "the wait after a failure has ended"
    LEASE_OVER = "the lease has ended"
    CANCEL_ASKED = "cancellation was requested"
    CANCEL_NOT_ASKED = "no cancellation was requested"


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One allowed move.

    Attributes:
        move: what happens.
        source: state before.
        target: state after.
        fenced: it requires the newest fence token.
        conditions: further requirements on the row.
        note: when it happens, or what else it does, for the documentation.
    """

    move: Move
    source: RunState
    target: RunState
    fenced: bool
    conditions: tuple[Condition, ...] = ()
    note: str = ""


TRACKED = "tracked"
"""In place of an engine: the attempt is that of a program which trains by itself and reports to no scheduler."""

LIVE = (RunState.LEASED, RunState.RUNNING)
"""States in which an attempt holds the run and renews its lease."""

TERMINAL = (
    RunState.SUCCEEDED,
    RunState.FAILED,
    RunState.STOPPED_EARLY,
    RunState.CANCELLED,
    RunState.QUARANTINED,
)
"""States that a run does not leave by itself. One without a result is left only on request."""

RECORDED = (RunState.SUCCEEDED, RunState.STOPPED_EARLY)
"""Terminal states with a result."""


def _each(
    sources: tuple[RunState, ...], move: Move, target: RunState, *conditions: Condition, fenced: bool, note: str = ""
) -> tuple[Transition, ...]:
    return tuple(
        Transition(move=move, source=s, target=target, fenced=fenced, conditions=conditions, note=note) for s in sources
    )


def _table() -> tuple[Transition, ...]:
    s, m, c = RunState, Move, Condition
    unrecorded = tuple(state for state in TERMINAL if state not in RECORDED)
    return (
        *_each((s.PLANNED,), m.SUBMIT, s.QUEUED, fenced=False),
        *_each((s.QUEUED,), m.CLAIM, s.LEASED, c.READY, fenced=False, note="raises the token by one"),
        *_each((s.LEASED,), m.START, s.RUNNING, fenced=True),
        *_each((s.RUNNING,), m.SUCCEED, s.SUCCEEDED, fenced=True, note="also if cancellation was requested"),
        *_each((s.RUNNING,), m.STOP_EARLY, s.STOPPED_EARLY, fenced=True, note="also if cancellation was requested"),
        *_each(
            LIVE, m.RELEASE, s.QUEUED, c.CANCEL_NOT_ASKED, fenced=True, note="interrupted: not counted as a failure"
        ),
        *_each(LIVE, m.RETRY, s.QUEUED, c.CANCEL_NOT_ASKED, fenced=True, note="a failure with tries left"),
        *_each(LIVE, m.FAIL, s.FAILED, fenced=True, note="the infrastructure failed too often"),
        *_each(
            LIVE, m.QUARANTINE, s.QUARANTINED, fenced=True, note="the program failed, or made no progress, too often"
        ),
        *_each(LIVE, m.EXPIRE, s.QUEUED, c.LEASE_OVER, c.CANCEL_NOT_ASKED, fenced=False),
        *_each(LIVE, m.ABANDON, s.FAILED, c.LEASE_OVER, fenced=False, note="at the last try"),
        *_each(LIVE, m.LAPSE, s.CANCELLED, c.LEASE_OVER, c.CANCEL_ASKED, fenced=False),
        *_each((s.QUEUED,), m.WITHDRAW, s.CANCELLED, fenced=False, note="no study needs it any more"),
        *_each(LIVE, m.CANCEL, s.CANCELLED, c.CANCEL_ASKED, fenced=True),
        *_each(unrecorded, m.RERUN, s.QUEUED, fenced=False, note="on request: begins a new generation"),
    )


TRANSITIONS = _table()
"""All moves. A move with several sources lists them in the order in which a run passes through them."""


def target_of(move: Move, source: RunState) -> RunState | None:
    """Return the state after ``move`` from ``source``; ``None`` if the move is not allowed there."""
    return next((t.target for t in TRANSITIONS if t.move == move and t.source == source), None)


def steps_of(move: Move) -> tuple[Transition, ...]:
    """Return the lines of the table for one move."""
    return tuple(t for t in TRANSITIONS if t.move == move)
