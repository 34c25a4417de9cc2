"""Deletes a study from the store, with the runs that no other study has; what others have stays, to the last attempt.

What the study has paid for runs that stay is charged to no study then: another study's budget must not shrink because
this one is deleted. Numbers of deleted rows are never given away again, so an attempt of a deleted run fits no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.store import remarks
from paribus.store import tables as t
from paribus.store.states import LIVE, TERMINAL
from paribus.store.transitions import Now
from paribus.text import plural


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """What goes with a study, and what stays.

    Attributes:
        study: its name.
        plans: number of its plans.
        runs: fingerprints of the runs that go, and the number of attempts of each.
        results: how many of them have a result.
        shared: names of the other studies that have some of its runs, and how many: these runs stay.
        kept: number of the runs that stay.
        open: number of its runs that have not ended.
        later: names of the other studies whose runs begin with models of runs that go.
    """

    study: str
    plans: int
    runs: Mapping[str, int]
    results: int
    shared: Mapping[str, int]
    kept: int
    open: int
    later: tuple[str, ...] = ()

    def require_ended(self) -> None:
        """Check that all runs have ended, and that no later stage needs their models.

        Raises:
            StoreError: some have not, or an attempt still holds one; or another study begins with a model of one.
        """
        if self.later:
            raise StoreError(
                f"runs of {', '.join(f'`{name}`' for name in self.later)} begin with models of `{self.study}`: delete "
                "the later study first, or keep both."
            )
        if self.open:
            raise StoreError(
                f"`{self.study}` has {plural(self.open, 'run that has', 'runs that have')} not ended: `paribus "
                f"cancel {self.study}` first, and "
                "wait until the running ones have stopped."
            )


def what_goes(connection: sa.Connection, name: str) -> Deletion:
    """Return what would go with all plans of a name, and what would stay."""
    plans = _plans(name)
    rows = connection.execute(
        sa.select(t.run.c.id, t.run.c.fingerprint, t.run.c.state, t.run.c.token, _is_open(plans).label("open"))
        .where(t.run.c.id.in_(_linked(plans)))
        .order_by(t.run.c.id)
    ).all()
    shared = connection.execute(
        sa.select(t.study.c.name, sa.func.count(t.study_run.c.run_id.distinct()))
        .join(t.study, t.study.c.id == t.study_run.c.study_id)
        .where(t.study.c.name != name, t.study_run.c.run_id.in_(_linked(plans)))
        .group_by(t.study.c.name)
        .order_by(t.study.c.name)
    ).all()
    mine = connection.execute(sa.select(t.run.c.id).where(_going(plans))).scalars().all()
    going = {row.id: row for row in rows if row.id in {*mine}}
    recorded = sa.select(sa.func.count()).select_from(t.result).where(t.result.c.run_id.in_(_ids(plans)))
    after = begun_with(connection)
    later = {other for row in going.values() for other in after.get(row.fingerprint, ())}
    return Deletion(
        study=name,
        plans=int(connection.execute(sa.select(sa.func.count()).select_from(plans.subquery())).scalar_one()),
        runs={row.fingerprint: row.token for row in going.values()},
        results=int(connection.execute(recorded).scalar_one()),
        shared={str(row[0]): int(row[1]) for row in shared},
        kept=len(rows) - len(going),
        open=sum(bool(row.open) for row in rows),
        later=tuple(sorted(later - {name})),
    )


def begun_with(connection: sa.Connection) -> dict[str, tuple[str, ...]]:
    """Return the runs whose models runs of other studies begin with, and the names of these studies."""
    found: dict[str, set[str]] = {}
    plans = connection.execute(sa.select(t.study.c.name, t.study.c.plan).where(t.study.c.plan.like(_STAGES)))
    for name, text in plans:
        for stage in json.loads(text).get("stages", {}).values():
            for run in stage["runs"].values():
                found.setdefault(run, set()).add(name)
    return {run: tuple(sorted(names)) for run, names in found.items()}


def delete_study(connection: sa.Connection, now: Now, expected: Deletion, author: str) -> None:
    """Delete a study, exactly as it was shown, and note who did it.

    Raises:
        StoreError: something of it has changed since, or has not ended.
    """
    name = expected.study
    connection.execute(sa.select(t.run.c.id).where(t.run.c.id.in_(_linked(_plans(name)))).with_for_update()).all()
    found = what_goes(connection, name)
    found.require_ended()
    if found != expected:
        raise StoreError(f"`{name}` has changed since it was looked at, so nothing was deleted: try again.")
    plans = connection.execute(_plans(name)).scalars().all()
    going = connection.execute(sa.select(t.run.c.id).where(_going(_plans(name)))).scalars().all()
    _remember(connection, t.study)
    _remember(connection, t.run)
    for start in range(0, len(going), _BATCH):
        _delete_runs(connection, going[start : start + _BATCH])
    _give_up(connection, plans)
    for table in (t.study_run, t.waiting):
        connection.execute(sa.delete(table).where(table.c.study_id.in_(plans)))
    for start in range(0, len(going), _BATCH):
        connection.execute(sa.delete(t.run).where(t.run.c.id.in_(going[start : start + _BATCH])))
    connection.execute(sa.delete(t.budget).where(t.budget.c.study == name))
    connection.execute(sa.delete(t.remark).where(remarks.of(remarks.Subject(study=name))))
    connection.execute(sa.delete(t.study).where(t.study.c.id.in_(plans)))
    said = f"{plural(len(found.runs), 'run')}, {found.results} with a result"
    remarks.write(connection, now, remarks.Subject(study=name), author, [(remarks.Kind.DELETE, said)])


_BATCH = 500
_STAGES = '%"stages":{"%'
"""Pattern of the plans with stages, as they are written."""


def _delete_runs(connection: sa.Connection, runs: Sequence[int]) -> None:
    """Delete all that belongs to some runs, but for their links."""
    named = sa.select(t.run.c.fingerprint).where(t.run.c.id.in_(runs))
    connection.execute(sa.delete(t.remark).where(t.remark.c.run.in_(named)))
    for table in (t.result, t.event, t.lease, t.attempt):
        connection.execute(sa.delete(table).where(table.c.run_id.in_(runs)))


def _give_up(connection: sa.Connection, plans: Sequence[int]) -> None:
    """Charge the attempts that stay to no study, and name the oldest other plan as the first of the runs that stay."""
    connection.execute(sa.update(t.attempt).where(t.attempt.c.study_id.in_(plans)).values(study_id=None))
    other = sa.select(sa.func.min(t.study_run.c.study_id)).where(
        t.study_run.c.run_id == t.run.c.id, t.study_run.c.study_id.not_in(plans)
    )
    stays = sa.and_(t.run.c.study_id.in_(plans), other.scalar_subquery().is_not(None))
    connection.execute(sa.update(t.run).where(stays).values(study_id=other.scalar_subquery()))


def _plans(name: str) -> sa.Select[Any]:
    return sa.select(t.study.c.id).where(t.study.c.name == name)


def _linked(plans: sa.Select[Any]) -> sa.Select[Any]:
    return sa.select(t.study_run.c.run_id).where(t.study_run.c.study_id.in_(plans))


def _going(plans: sa.Select[Any]) -> sa.ColumnElement[bool]:
    others = sa.select(t.study_run.c.run_id).where(t.study_run.c.study_id.not_in(plans))
    return sa.and_(t.run.c.id.in_(_linked(plans)), t.run.c.id.not_in(others))


def _ids(plans: sa.Select[Any]) -> sa.Select[Any]:
    return sa.select(t.run.c.id).where(_going(plans))


def _is_open(plans: sa.Select[Any]) -> sa.ColumnElement[bool]:
    """Return whether a run may still be trained for the study, or is held by one of its attempts."""
    wanted = sa.exists().where(
        t.study_run.c.run_id == t.run.c.id, t.study_run.c.study_id.in_(plans), t.study_run.c.withdrawn.is_(False)
    )
    charged = sa.exists().where(
        t.attempt.c.run_id == t.run.c.id, t.attempt.c.study_id.in_(plans), t.attempt.c.ended_at.is_(None)
    )
    waits = sa.and_(wanted, t.run.c.state.not_in(TERMINAL))
    return sa.or_(waits, charged, sa.and_(_going(plans), t.run.c.state.in_(LIVE)))


# ---- numbers that are never given away again -----------------------------------------------------------


def _remember(connection: sa.Connection, table: sa.Table) -> None:
    """Note the largest number that a table has had."""
    last = int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.id), 0))).scalar_one())
    used = t.used_number
    last = max(last, _last(connection, table))
    connection.execute(sa.delete(used).where(used.c.table_name == table.name))
    connection.execute(sa.insert(used).values(table_name=table.name, last=last))


def _last(connection: sa.Connection, table: sa.Table) -> int:
    used = t.used_number
    return connection.execute(sa.select(used.c.last).where(used.c.table_name == table.name)).scalar() or 0


def numbers(connection: sa.Connection, table: sa.Table, count: int) -> list[dict[str, int]]:
    """Return what to add to so many new rows, so that none gets the number of a deleted one.

    SQLite takes the largest number there is, plus one; a server's sequence never goes back.
    """
    if connection.dialect.name != "sqlite" or not (last := _last(connection, table)):
        return [{} for _ in range(count)]
    here = connection.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.id), 0))).scalar_one()
    return [{"id": max(last, here) + n} for n in range(1, count + 1)]
