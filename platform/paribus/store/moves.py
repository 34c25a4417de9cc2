"""The one way in which the state of a run changes: guarded updates that the table of transitions writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.budget import settle
from paribus.store.states import LIVE, RECORDED, Condition, Move, RunState, Transition, steps_of

LEASE_S = 60.0
"""Seconds for which a claim or a heartbeat holds a run."""

Now = sa.ColumnElement[float]

CONDITIONS: Mapping[Condition, Callable[[Now], sa.ColumnElement[bool]]] = {
    Condition.READY: lambda now: t.run.c.not_before <= now,
    Condition.LEASE_OVER: lambda now: t.run.c.lease_until < now,
    Condition.CANCEL_ASKED: lambda now: t.run.c.cancel_requested.is_(True),
    Condition.CANCEL_NOT_ASKED: lambda now: t.run.c.cancel_requested.is_(False),
}
"""Each condition of the table in SQL."""


def held_by(run_id: int, token: int) -> sa.ColumnElement[bool]:
    """Return the guard of everything that an attempt may write: it claimed the run last, and nothing has ended it."""
    return sa.and_(t.run.c.id == run_id, t.run.c.token == token, t.run.c.state.in_(LIVE))


def attempt_row(run_id: int, token: int) -> sa.Update:
    """Return the update of an attempt."""
    return sa.update(t.attempt).where(t.attempt.c.run_id == run_id, t.attempt.c.token == token)


def move_runs(
    connection: sa.Connection,
    now: Now,
    move: Move,
    which: sa.ColumnElement[bool],
    *,
    token: int | None = None,
    reason: str = "",
    signature: str = "",
    wait_s: float = 0.0,
) -> list[sa.Row[Any]]:
    """Make a move with every run that ``which`` names and that the table allows it for; write the log.

    Args:
        connection: a transaction.
        now: the time, in SQL.
        move: what happens.
        which: condition on runs.
        token: fence token; without one a move that needs it changes nothing.
        reason: why, for people.
        signature: what the failure is called.
        wait_s: seconds before a run that is queued again may be claimed.

    Returns:
        The rows as they are now.
    """
    moved: list[sa.Row[Any]] = []
    for step in steps_of(move):
        if step.fenced and token is None:
            continue
        guard = [which, t.run.c.state == step.source, *(CONDITIONS[c](now) for c in step.conditions)]
        guard += [] if token is None else [t.run.c.token == token]
        ending = step.source in LIVE and step.target not in LIVE
        held = sa.select(t.run.c.id, t.run.c.lease_until).where(*guard).with_for_update()
        leases = {row.id: row.lease_until for row in connection.execute(held)} if ending else {}
        values = _values(step, now, reason, signature, wait_s)
        rows = connection.execute(sa.update(t.run).where(*guard).values(values).returning(t.run)).all()
        if not rows:
            continue
        if ending:
            ended = {"ended_at": now, "outcome": move, "reason": reason, "signature": signature}
            for row in rows:
                connection.execute(attempt_row(row.id, row.token).values(ended))
                settle(connection, now, row, leases[row.id])
        line = {"move": move, "source": step.source, "target": step.target, "reason": reason}
        log = sa.insert(t.event).values(at=now)
        connection.execute(log, [{**line, "run_id": row.id, "token": row.token} for row in rows])
        if step.target in RECORDED:
            for row in rows:
                mark_recorded(connection, row.id)
        moved += rows
    return moved


def mark_recorded(connection: sa.Connection, run_id: int) -> None:
    """Let the claims of all studies pass over a run that has a result; a link that is being cancelled is left alone."""
    mine = sa.select(t.study_run.c.study_id).where(t.study_run.c.run_id == run_id)
    free = t.study_run.c.study_id.in_(mine.with_for_update(skip_locked=True))
    connection.execute(sa.update(t.study_run).where(t.study_run.c.run_id == run_id, free).values(recorded=True))


def _values(step: Transition, now: Now, reason: str, signature: str, wait_s: float) -> dict[str, Any]:
    values: dict[str, Any] = {"state": step.target, "lease_until": now + LEASE_S if step.target in LIVE else None}
    if step.move is Move.CLAIM:
        values |= {"token": t.run.c.token + 1}
    if step.target is RunState.QUEUED:
        values |= {"not_before": now + wait_s}
    if step.target in RECORDED or reason:
        values |= {"reason": reason, "signature": signature}
    if step.move is Move.RERUN:
        values |= dict.fromkeys(("program_failures", "infrastructure_failures", "requeues"), 0)
        values |= {"generation": t.run.c.generation + 1, "cancel_requested": False}
    return values
