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
    LAPSE = "lapse"
    WITHDRAW = "withdraw"
    CANCEL = "cancel"
    RERUN = "rerun"


class Condition(StrEnum):
    """What the row must say, beside the state, for a move to be allowed."""

    READY = "any wait after a failure is over"
    LEASE_OVER = "the lease is over"
    CANCEL_ASKED = "cancellation was asked for"
    CANCEL_NOT_ASKED = "no cancellation was asked for"


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One allowed move.

    Attributes:
        move: what happens.
        source: state before.
        target: state after.
        fenced: only the holder of the newest fence token may do it.
        conditions: what else the row must say.
        note: when it happens, or what it does beside, in words.
    """

    move: Move
    source: RunState
    target: RunState
    fenced: bool
    conditions: tuple[Condition, ...] = ()
    note: str = ""


LIVE = (RunState.LEASED, RunState.RUNNING)
"""States in which an attempt holds the run; only in these is a lease renewed."""

TERMINAL = (
    RunState.SUCCEEDED,
    RunState.FAILED,
    RunState.STOPPED_EARLY,
    RunState.CANCELLED,
    RunState.QUARANTINED,
)
"""States in which nothing happens by itself. Those without a result are left when somebody asks for it."""

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
        *_each((s.RUNNING,), m.SUCCEED, s.SUCCEEDED, fenced=True, note="also if cancellation was asked for"),
        *_each((s.RUNNING,), m.STOP_EARLY, s.STOPPED_EARLY, fenced=True, note="also if cancellation was asked for"),
        *_each(
            LIVE, m.RELEASE, s.QUEUED, c.CANCEL_NOT_ASKED, fenced=True, note="interrupted: not counted as a failure"
        ),
        *_each(LIVE, m.RETRY, s.QUEUED, c.CANCEL_NOT_ASKED, fenced=True, note="it failed and has tries left"),
        *_each(LIVE, m.FAIL, s.FAILED, fenced=True, note="the infrastructure failed too often"),
        *_each(
            LIVE, m.QUARANTINE, s.QUARANTINED, fenced=True, note="the program failed, or came no further, too often"
        ),
        *_each(LIVE, m.EXPIRE, s.QUEUED, c.LEASE_OVER, c.CANCEL_NOT_ASKED, fenced=False),
        *_each(LIVE, m.ABANDON, s.FAILED, c.LEASE_OVER, fenced=False, note="for the last time"),
        *_each(LIVE, m.LAPSE, s.CANCELLED, c.LEASE_OVER, c.CANCEL_ASKED, fenced=False),
        *_each((s.QUEUED,), m.WITHDRAW, s.CANCELLED, fenced=False, note="no study asks for it any more"),
        *_each(LIVE, m.CANCEL, s.CANCELLED, c.CANCEL_ASKED, fenced=True),
        *_each(unrecorded, m.RERUN, s.QUEUED, fenced=False, note="somebody asks for it: begins a new generation"),
    )


TRANSITIONS = _table()
"""Every move that there is. A move with several sources has them in the order in which a run passes through them."""


def target_of(move: Move, source: RunState) -> RunState | None:
    """Return the state after ``move`` from ``source``; ``None`` if the move is not allowed there."""
    return next((t.target for t in TRANSITIONS if t.move == move and t.source == source), None)


def steps_of(move: Move) -> tuple[Transition, ...]:
    """Return the lines of the table for a move."""
    return tuple(t for t in TRANSITIONS if t.move == move)


def states_page() -> str:
    """Return the table of transitions in Markdown, for ``docs/reference``."""
    lines = ["| move | from | to | needs the token | condition | |", "|---|---|---|---|---|---|"]
    for t in TRANSITIONS:
        cells = (f"`{t.move}`", t.source, t.target, "yes" if t.fenced else "no", ", ".join(t.conditions), t.note)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
