"""Budgets: what a study has reserved and spent, updated in the transactions that claim and end its attempts.

The unit is the GPU-second for attempts that hold GPUs, and the second of a CPU slot for the others. Each attempt has
its own reservation and charge. The sums are one row per study name and unit, so that a claim costs the same however
long the study is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.database import StudyDeleted
from paribus.store.models import TINY_S, BudgetRecord, Unit, unit_of
from paribus.store.states import Move, RunState
from paribus.study.plan import Plan

KEPT = (Move.SUCCEED, Move.STOP_EARLY, Move.RELEASE)
"""Ends that leave a result or a checkpoint. The charges of all other attempts count as wasted."""

OVERRUN_S = 90.0
"""Most seconds that an attempt goes on after its budget is used up: until its lease ends, or until the end of the grace
period in which it writes a checkpoint."""

UNITS: Mapping[Unit, str] = {"gpu": "GPU-hours", "cpu": "CPU run-hours"}
"""Each unit for people, in hours."""

_HELD = sa.case((t.attempt.c.gpus > 0, t.attempt.c.gpus), else_=1.0)


def open_budgets(connection: sa.Connection, plan: Plan) -> None:
    """Set what a plan may spend; what earlier plans of its name have spent stays."""
    caps: Mapping[Unit, float | None] = {"gpu": plan.gpu_hours, "cpu": plan.cpu_hours}
    stated = 3600 * (plan.run_hours or 0.0)
    for unit, hours in caps.items():
        terms = {"cap": None if hours is None else 3600 * hours, "stated": stated}
        known = sa.update(t.budget).where(*_row(plan.study, unit)).values(terms).returning(t.budget.c.unit)
        if connection.execute(known).first() is None:
            new = dict.fromkeys(("reserved", "spent", "wasted", "longest", "results"), 0)
            connection.execute(sa.insert(t.budget).values(study=plan.study, unit=unit, **terms, **new))


def lock_budget(connection: sa.Connection, now: sa.ColumnElement[float], study: str, unit: Unit) -> BudgetRecord:
    """Lock the budget of a study until the end of the transaction, and return it.

    The use of running attempts is read only if there is a cap.
    """
    row = connection.execute(_LOCKED, {"whose": study, "measure": unit}).one()
    return budget_record(row, None if row.cap is None else connection.execute(live_use(study, unit, now)).one())


def reserve(connection: sa.Connection, budget: BudgetRecord, count: int) -> Mapping[str, Any]:
    """Reserve the estimate of each of ``count`` attempts; return the budget columns of each attempt."""
    more = {"more": budget.estimate * count}
    connection.execute(_RESERVED, {"whose": budget.study, "measure": budget.unit, **more})
    return {"reserved": budget.estimate, "cap": budget.cap}


def charge(now: sa.ColumnElement[float], lease_until: sa.ColumnElement[float] | None) -> sa.ColumnElement[float]:
    """Return the charge of an attempt that ends now.

    The charge runs from its start to now if it leaves a result. Otherwise it stops at the end of its lease at the
    latest: by then its supervisor has stopped the runner, however late the end was noticed.

    Args:
        now: the time, in SQL.
        lease_until: end of its lease; ``None`` if it leaves a result.
    """
    end = now if lease_until is None else sa.case((now < lease_until, now), else_=lease_until)
    began = t.attempt.c.started_at
    return sa.case((end > began, (end - began) * _HELD), else_=0.0)  # never started: the comparison is NULL, so 0


ENTRY = (t.attempt.c.study_id, t.attempt.c.gpus, t.attempt.c.outcome, t.attempt.c.reserved, t.attempt.c.charged)
"""Columns of an attempt that :func:`settle` needs."""


def settle(connection: sa.Connection, entry: sa.Row[Any], *, done: bool) -> None:
    """Add the charge of an attempt that has just ended to the sums of its study, and free its reservation."""
    kept = entry.charged if entry.outcome in KEPT else 0.0
    sums = {"back": entry.reserved, "cost": entry.charged, "lost": entry.charged - kept, "most": kept, "got": int(done)}
    connection.execute(_SETTLED, {"charged_study": entry.study_id, "measure": unit_of(entry.gpus), **sums})


def live_use(study: str, unit: Unit, now: sa.ColumnElement[float]) -> sa.Select[Any]:
    """Return the query for what running attempts have used so far, and how much of it exceeds their reservations."""
    gpus = t.attempt.c.gpus
    used = (now - t.attempt.c.started_at) * _HELD
    more = used - t.attempt.c.reserved
    parts = {"live": used, "beyond": sa.case((more > 0, more), else_=0.0)}
    return (
        sa.select(*(sa.func.coalesce(sa.func.sum(part), 0.0).label(name) for name, part in parts.items()))
        .join(t.run, sa.and_(t.run.c.id == t.attempt.c.run_id, t.run.c.token == t.attempt.c.token))
        .join(t.study, t.study.c.id == t.attempt.c.study_id)
        .where(t.run.c.state == RunState.RUNNING, t.study.c.name == study)
        .where(gpus > 0 if unit == "gpu" else gpus <= 0)
    )


def shown_use(budget: BudgetRecord) -> str:
    """Return e.g. ``1.2 of 4 GPU-hours used, 0.8 reserved``."""
    of = "" if budget.cap is None else f" of {budget.cap / 3600:.3g}"
    kept = f", {budget.reserved / 3600:.3g} reserved" if budget.reserved > TINY_S else ""
    return f"{budget.used / 3600:.3g}{of} {UNITS[budget.unit]} used{kept}"


def read_budget(connection: sa.Connection, now: sa.ColumnElement[float], study: str, unit: Unit) -> BudgetRecord:
    """Return what all plans of a name may spend and have spent in one unit.

    Raises:
        StudyDeleted: the study was deleted meanwhile.
    """
    row = connection.execute(sa.select(t.budget).where(*_row(study, unit))).one_or_none()
    if row is None:
        raise StudyDeleted(study)
    return budget_record(row, connection.execute(live_use(study, unit, now)).one())


def budget_record(row: sa.Row[Any], live: sa.Row[Any] | None = None) -> BudgetRecord:
    """Return a row of the budget table, with the result of :func:`live_use` if it was executed."""
    return BudgetRecord(**row._mapping, **({"live": 0.0, "beyond": 0.0} if live is None else live._mapping))


def _row(
    study: str | sa.ColumnElement[str] | sa.ScalarSelect[Any], unit: Unit | sa.ColumnElement[str]
) -> tuple[sa.ColumnElement[bool], ...]:
    return t.budget.c.study == study, t.budget.c.unit == unit


def _sums() -> sa.Update:
    b, most = t.budget.c, sa.bindparam("most", type_=sa.Float)
    whose = sa.select(t.study.c.name).where(t.study.c.id == sa.bindparam("charged_study")).scalar_subquery()
    sums = {
        "reserved": b.reserved - sa.bindparam("back", type_=sa.Float),
        "spent": b.spent + sa.bindparam("cost", type_=sa.Float),
        "wasted": b.wasted + sa.bindparam("lost", type_=sa.Float),
        "longest": sa.case((b.longest < most, most), else_=b.longest),
        "results": b.results + sa.bindparam("got", type_=sa.Integer),
    }
    return sa.update(t.budget).where(*_row(whose, sa.bindparam("measure"))).values(sums)


_MINE = _row(sa.bindparam("whose"), sa.bindparam("measure"))
_LOCKED = sa.select(t.budget).where(*_MINE).with_for_update()
_MORE = sa.bindparam("more", type_=sa.Float)
_RESERVED = sa.update(t.budget).where(*_MINE).values(reserved=t.budget.c.reserved + _MORE)
_SETTLED = _sums()
