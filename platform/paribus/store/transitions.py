"""State changes of runs: guarded updates that are generated from the table in `states.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.budget import ENTRY, charge, settle
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

THIS_RUN = t.run.c.id == sa.bindparam("this_run", type_=sa.Integer)
"""The run whose number is bound to ``this_run``. :func:`move_runs` caches the statements that use this condition."""

_FENCE = sa.bindparam("fence", type_=sa.Integer)

FENCED = sa.and_(THIS_RUN, t.run.c.token == _FENCE, t.run.c.state.in_(LIVE))
"""The guard of every write by an attempt: it made the latest claim, and it has not ended."""

ATTEMPT = sa.update(t.attempt).where(
    t.attempt.c.run_id == sa.bindparam("this_run", type_=sa.Integer), t.attempt.c.token == _FENCE
)
"""An update of one attempt."""


def before(now: Now, seconds: sa.ColumnElement[float]) -> sa.ColumnElement[float]:
    """Return the time so many seconds ago; of an attempt, not before its start or claim."""
    first = sa.func.coalesce(t.attempt.c.started_at, t.attempt.c.claimed_at)
    return sa.case((now - seconds < first, first), else_=now - seconds)


def fence_params(run_id: int, token: int) -> dict[str, Any]:
    """Return the parameters of :data:`FENCED` and :data:`ATTEMPT`."""
    return {"this_run": run_id, "fence": token}


def move_run(
    connection: sa.Connection,
    now: Now,
    move: Move,
    run_id: int,
    token: int | None = None,
    reason: str = "",
    *,
    signature: str = "",
    wait_s: float = 0.0,
    ago_s: float | None = None,
) -> sa.Row[Any] | None:
    """Move one run, as :func:`move_runs`; return its new row, or ``None`` if the table does not allow the move."""
    given = {"this_run": run_id}
    kwargs: dict[str, Any] = {"token": token, "reason": reason, "signature": signature, "wait_s": wait_s}
    rows = move_runs(connection, now, move, THIS_RUN, given, ago_s=ago_s, **kwargs)
    return rows[0] if rows else None


def move_runs(
    connection: sa.Connection,
    now: Now,
    move: Move,
    which: sa.ColumnElement[bool],
    given: Mapping[str, Any] | None = None,
    *,
    token: int | None = None,
    reason: str = "",
    signature: str = "",
    wait_s: float = 0.0,
    ago_s: float | None = None,
) -> list[sa.Row[Any]]:
    """Move every run that matches ``which`` and whose state allows it, and append to the event log.

    Args:
        connection: a transaction.
        now: the time, in SQL.
        move: what happens.
        which: condition on runs.
        given: values of the parameters in ``which``.
        token: fence token. Without one, a move that needs it changes nothing.
        reason: why, for people.
        signature: class of the failure.
        wait_s: seconds before a requeued run may be claimed.
        ago_s: seconds since the attempt ended, if that is known: it may have gone on after its lease, without a
            scheduler. ``None``: it ends now, and is charged for no longer than its lease.

    Returns:
        The new rows.
    """
    moved: list[sa.Row[Any]] = []
    build = _cached_change if which is THIS_RUN else _change
    for step in steps_of(move):
        if step.fenced and token is None:
            continue
        change = build(step, now, which, token is not None, bool(reason), ago_s is not None)
        guards = {**(given or {}), **({} if token is None else {"fence": token})}
        held = () if change.leases is None else connection.execute(change.leases, guards).all()
        leases = {row.id: {"lease": row.lease_until} for row in held}
        values = {"why": reason, "sign": signature, "wait": wait_s}
        rows = connection.execute(change.update, guards | {k: values[k] for k in change.sets}).all()
        if not rows:
            continue
        if change.end is not None:
            outcome = {"what": move, "why": reason, "sign": signature, "ago": ago_s or 0.0}
            for row in rows:
                params = fence_params(row.id, row.token) | leases.get(row.id, {})
                entry = connection.execute(change.end, params | outcome).one()
                settle(connection, entry, done=step.target in RECORDED)
        line = {"move": move, "source": step.source, "target": step.target, "reason": reason}
        connection.execute(change.log, [{**line, "run_id": row.id, "token": row.token} for row in rows])
        if step.target in RECORDED:
            for row in rows:
                connection.execute(_RECORDED_LINKS, {"this_run": row.id})
        moved += rows
    return moved


# ---- statements --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Change:
    """The statements of one line of the table.

    Attributes:
        update: updates the runs and returns them.
        sets: parameters of ``update`` beyond those of its guard.
        log: inserts into the event log.
        end: updates the attempts that end; ``None`` if none does.
        leases: reads the leases before ``update``, to charge attempts that end without a result; ``None`` otherwise.
    """

    update: sa.UpdateBase
    sets: tuple[str, ...]
    log: sa.Insert
    end: sa.UpdateBase | None
    leases: sa.Select[Any] | None


def _change(
    step: Transition, now: Now, which: sa.ColumnElement[bool], fenced: bool, with_reason: bool, known_end: bool
) -> _Change:
    """Build the statements of one line of the table, with the token's guard if ``fenced``."""
    guard = [which, t.run.c.state == step.source, *(CONDITIONS[c](now) for c in step.conditions)]
    guard += [t.run.c.token == _FENCE] if fenced else []
    values = _values(step, now, with_reason)
    ends, done = step.source in LIVE and step.target not in LIVE, step.target in RECORDED
    leases = sa.select(t.run.c.id, t.run.c.lease_until).where(*guard).with_for_update()
    lease = not (done or known_end)
    until, end = sa.bindparam("lease", type_=sa.Float) if lease else None, before(now, _AGO)
    ended = {"ended_at": end, "outcome": sa.bindparam("what"), "reason": _WHY, "signature": _SIGN}
    binds = {"reason": ("why", "sign"), "not_before": ("wait",)}
    return _Change(
        update=sa.update(t.run).where(*guard).values(values).returning(t.run),
        sets=tuple(name for column in values for name in binds.get(column, ())),
        log=sa.insert(t.event).values(at=now),
        end=ATTEMPT.values(ended | {"charged": charge(end, until)}).returning(*ENTRY) if ends else None,
        leases=leases if ends and lease else None,
    )


_cached_change = lru_cache(maxsize=512)(_change)
_WHY, _SIGN = sa.bindparam("why", type_=sa.Text), sa.bindparam("sign", type_=sa.Text)
_WAIT = sa.bindparam("wait", type_=sa.Float)
_AGO = sa.bindparam("ago", type_=sa.Float)


def _recorded_links() -> sa.Update:
    """Return the update that lets claims of every study skip a run with a result, except links being cancelled now."""
    links, this = t.study_run.c, t.study_run.c.run_id == sa.bindparam("this_run", type_=sa.Integer)
    free = links.study_id.in_(sa.select(links.study_id).where(this).with_for_update(skip_locked=True))
    return sa.update(t.study_run).where(this, free).values(recorded=True)


_RECORDED_LINKS = _recorded_links()


def _values(step: Transition, now: Now, with_reason: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"state": step.target, "lease_until": now + LEASE_S if step.target in LIVE else None}
    if step.move is Move.CLAIM:
        values |= {"token": t.run.c.token + 1, "reason": ""}  # the attempt before keeps its own
    if step.target is RunState.QUEUED:
        # 0, not now: a scheduler whose clock is behind must be able to claim a run that need not wait
        values |= {"not_before": sa.case((_WAIT > 0, now + _WAIT), else_=0.0)}
    if step.target in RECORDED or with_reason:
        values |= {"reason": _WHY, "signature": _SIGN}
    if step.move is Move.RERUN:
        values |= dict.fromkeys(("program_failures", "infrastructure_failures", "requeues"), 0)
        values |= {"generation": t.run.c.generation + 1, "cancel_requested": False}
    return values
