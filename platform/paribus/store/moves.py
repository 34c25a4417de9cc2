"""The one way in which the state of a run changes: guarded updates that the table of transitions writes."""

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
"""Names one run to :func:`move_runs`, whose statements are then built once: given ``this_run``, its number."""

_FENCE = sa.bindparam("fence", type_=sa.Integer)

HELD = sa.and_(THIS_RUN, t.run.c.token == _FENCE, t.run.c.state.in_(LIVE))
"""The guard of everything that an attempt may write: it claimed the run last, and nothing has ended it."""

ATTEMPT = sa.update(t.attempt).where(
    t.attempt.c.run_id == sa.bindparam("this_run", type_=sa.Integer), t.attempt.c.token == _FENCE
)
"""The update of an attempt."""


def holder(run_id: int, token: int) -> dict[str, Any]:
    """Return what :data:`HELD` and :data:`ATTEMPT` are given."""
    return {"this_run": run_id, "fence": token}


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
) -> list[sa.Row[Any]]:
    """Make a move with every run that ``which`` names and that the table allows it for; write the log.

    Args:
        connection: a transaction.
        now: the time, in SQL.
        move: what happens.
        which: condition on runs.
        given: values of the parameters that ``which`` has.
        token: fence token; without one a move that needs it changes nothing.
        reason: why, for people.
        signature: what the failure is called.
        wait_s: seconds before a run that is queued again may be claimed.

    Returns:
        The rows as they are now.
    """
    moved: list[sa.Row[Any]] = []
    build = _kept_change if which is THIS_RUN else _change
    for step in steps_of(move):
        if step.fenced and token is None:
            continue
        change = build(step, now, which, token is not None, bool(reason))
        guards = {**(given or {}), **({} if token is None else {"fence": token})}
        held = () if change.leases is None else connection.execute(change.leases, guards).all()
        leases = {row.id: {"lease": row.lease_until} for row in held}
        values = {"why": reason, "sign": signature, "wait": wait_s}
        rows = connection.execute(change.update, guards | {k: values[k] for k in change.sets}).all()
        if not rows:
            continue
        if change.end is not None:
            told = {"what": move, "why": reason, "sign": signature}
            for row in rows:
                mine = holder(row.id, row.token) | leases.get(row.id, {})
                entry = connection.execute(change.end, mine | told).one()
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
        update: of the runs; returns them.
        sets: what it is given beside what its guard is given.
        log: the lines of the log.
        end: of the attempts that end by it; ``None``: none do.
        leases: asked before ``update``, for the charge of an attempt that leaves no result; ``None``: none does.
    """

    update: sa.UpdateBase
    sets: tuple[str, ...]
    log: sa.Insert
    end: sa.UpdateBase | None
    leases: sa.Select[Any] | None


def _change(step: Transition, now: Now, which: sa.ColumnElement[bool], fenced: bool, told: bool) -> _Change:
    """Write the statements of a line of the table; with the guard of the token, and a reason, if there is one."""
    guard = [which, t.run.c.state == step.source, *(CONDITIONS[c](now) for c in step.conditions)]
    guard += [t.run.c.token == _FENCE] if fenced else []
    values = _values(step, now, told)
    ends, done = step.source in LIVE and step.target not in LIVE, step.target in RECORDED
    leases = sa.select(t.run.c.id, t.run.c.lease_until).where(*guard).with_for_update()
    until = None if done else sa.bindparam("lease", type_=sa.Float)
    ended = {"ended_at": now, "outcome": sa.bindparam("what"), "reason": _WHY, "signature": _SIGN}
    binds = {"reason": ("why", "sign"), "not_before": ("wait",)}
    return _Change(
        update=sa.update(t.run).where(*guard).values(values).returning(t.run),
        sets=tuple(name for column in values for name in binds.get(column, ())),
        log=sa.insert(t.event).values(at=now),
        end=ATTEMPT.values(ended | {"charged": charge(now, until)}).returning(*ENTRY) if ends else None,
        leases=leases if ends and not done else None,
    )


_kept_change = lru_cache(maxsize=512)(_change)
_WHY, _SIGN = sa.bindparam("why", type_=sa.Text), sa.bindparam("sign", type_=sa.Text)
_WAIT = sa.bindparam("wait", type_=sa.Float)


def _recorded_links() -> sa.Update:
    """Let the claims of all studies pass over a run that has a result; a link that is being cancelled is left alone."""
    links, this = t.study_run.c, t.study_run.c.run_id == sa.bindparam("this_run", type_=sa.Integer)
    free = links.study_id.in_(sa.select(links.study_id).where(this).with_for_update(skip_locked=True))
    return sa.update(t.study_run).where(this, free).values(recorded=True)


_RECORDED_LINKS = _recorded_links()


def _values(step: Transition, now: Now, told: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"state": step.target, "lease_until": now + LEASE_S if step.target in LIVE else None}
    if step.move is Move.CLAIM:
        values |= {"token": t.run.c.token + 1}
    if step.target is RunState.QUEUED:
        # what waits for nothing may be claimed by a process whose clock is behind this one's
        values |= {"not_before": sa.case((_WAIT > 0, now + _WAIT), else_=0.0)}
    if step.target in RECORDED or told:
        values |= {"reason": _WHY, "signature": _SIGN}
    if step.move is Move.RERUN:
        values |= dict.fromkeys(("program_failures", "infrastructure_failures", "requeues"), 0)
        values |= {"generation": t.run.c.generation + 1, "cancel_requested": False}
    return values
