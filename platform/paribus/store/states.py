"""The states of a run and the moves between them, as one table: it guards the SQL, drives the tests and the docs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunState(StrEnum):
    """Where a run stands."""

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
    """What can happen to a run. Each is one line of the append-only event log."""

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
    WITHDRAW = "withdraw"
    CANCEL = "cancel"


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One allowed move.

    Attributes:
        move: what happens.
        source: state before.
        target: state after.
        fenced: only the holder of the newest fence token may do it.
        guard: what else must hold, in words.
    """

    move: Move
    source: RunState
    target: RunState
    fenced: bool
    guard: str = ""


LIVE = (RunState.LEASED, RunState.RUNNING)
"""States in which an attempt holds the run; only in these is a lease renewed."""

TERMINAL = (
    RunState.SUCCEEDED,
    RunState.FAILED,
    RunState.STOPPED_EARLY,
    RunState.CANCELLED,
    RunState.QUARANTINED,
)
"""States that are never left."""

RECORDED = (RunState.SUCCEEDED, RunState.STOPPED_EARLY)
"""Terminal states with a result."""


def _from_live(move: Move, target: RunState, guard: str = "", *, fenced: bool = True) -> tuple[Transition, ...]:
    return tuple(Transition(move=move, source=s, target=target, fenced=fenced, guard=guard) for s in LIVE)


TRANSITIONS: tuple[Transition, ...] = (
    Transition(move=Move.SUBMIT, source=RunState.PLANNED, target=RunState.QUEUED, fenced=False),
    Transition(
        move=Move.CLAIM,
        source=RunState.QUEUED,
        target=RunState.LEASED,
        fenced=False,
        guard="any wait after a failure is over; raises the token by one",
    ),
    Transition(move=Move.START, source=RunState.LEASED, target=RunState.RUNNING, fenced=True),
    Transition(move=Move.SUCCEED, source=RunState.RUNNING, target=RunState.SUCCEEDED, fenced=True),
    Transition(move=Move.STOP_EARLY, source=RunState.RUNNING, target=RunState.STOPPED_EARLY, fenced=True),
    *_from_live(Move.RELEASE, RunState.QUEUED, "the attempt was interrupted; nothing is counted against the run"),
    *_from_live(Move.RETRY, RunState.QUEUED, "the attempt failed and the run has tries left"),
    *_from_live(Move.FAIL, RunState.FAILED, "the infrastructure failed too often"),
    *_from_live(Move.QUARANTINE, RunState.QUARANTINED, "the program failed too often"),
    *_from_live(Move.EXPIRE, RunState.QUEUED, "the lease is over", fenced=False),
    *_from_live(Move.ABANDON, RunState.FAILED, "the lease is over, too often", fenced=False),
    Transition(move=Move.WITHDRAW, source=RunState.QUEUED, target=RunState.CANCELLED, fenced=False),
    *_from_live(Move.CANCEL, RunState.CANCELLED, "cancellation was asked for"),
)


def target_of(move: Move, source: RunState) -> RunState | None:
    """Return the state after ``move`` from ``source``; ``None`` if the move is not allowed there."""
    return next((t.target for t in TRANSITIONS if t.move == move and t.source == source), None)


def is_fenced(move: Move) -> bool:
    """Return whether ``move`` needs the newest fence token."""
    return any(t.fenced for t in TRANSITIONS if t.move == move)


def states_page() -> str:
    """Return the table of transitions in Markdown, for ``docs/reference``."""
    lines = ["| move | from | to | needs the token | condition |", "|---|---|---|---|---|"]
    lines += [
        f"| `{t.move}` | {t.source} | {t.target} | {'yes' if t.fenced else 'no'} | {t.guard} |" for t in TRANSITIONS
    ]
    return "\n".join(lines) + "\n"
