"""The budget ledger: what a study has reserved and spent, in the transactions that claim and end its attempts.

Units are GPU-seconds where attempts hold GPUs, and else seconds of a CPU slot. The entries are columns of the attempts;
the sums are one row a study name and unit, so that a claim costs the same however long the study is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.records import TINY_S, BudgetRecord, Unit, unit_of
from paribus.store.states import RECORDED, Move, RunState
from paribus.study.plan import Plan

KEPT = (Move.SUCCEED, Move.STOP_EARLY, Move.RELEASE)
"""Ends that leave a result or a checkpoint; what other attempts were charged is wasted."""

OVERRUN_S = 90.0
"""Seconds that an attempt goes on at most after the budget is used up: to the end of a lease that nobody renews, or to
that of the grace that it gets for a checkpoint."""

UNITS: Mapping[Unit, str] = {"gpu": "GPU-hours", "cpu": "CPU-slot-hours"}
"""The hours of each unit in words."""

_HELD = sa.case((t.attempt.c.gpus > 0, t.attempt.c.gpus), else_=1.0)


def open_budgets(connection: sa.Connection, plan: Plan) -> None:
    """Note what a plan may spend; what its name has spent under earlier plans stays."""
    caps: Mapping[Unit, float | None] = {"gpu": plan.gpu_hours, "cpu": plan.cpu_hours}
    stated = 3600 * (plan.run_hours or 0.0)
    for unit, hours in caps.items():
        terms = {"cap": None if hours is None else 3600 * hours, "stated": stated}
        known = sa.update(t.budget).where(*_row(plan.study, unit)).values(terms).returning(t.budget.c.unit)
        if connection.execute(known).first() is None:
            new = dict.fromkeys(("reserved", "spent", "wasted", "longest", "results"), 0)
            connection.execute(sa.insert(t.budget).values(study=plan.study, unit=unit, **terms, **new))


def locked(connection: sa.Connection, study: str, unit: Unit) -> BudgetRecord:
    """Return the budget of a study, which nobody else changes before the end of this transaction."""
    return budget_record(connection.execute(sa.select(t.budget).where(*_row(study, unit)).with_for_update()).one())


def reserve(connection: sa.Connection, budget: BudgetRecord) -> Mapping[str, Any]:
    """Set aside what an attempt may need; return its entries of the ledger."""
    more = budget.estimate
    mine = _row(budget.study, budget.unit)
    connection.execute(sa.update(t.budget).where(*mine).values(reserved=t.budget.c.reserved + more))
    return {"reserved": more, "cap": budget.cap}


def settle(connection: sa.Connection, now: sa.ColumnElement[float], run: sa.Row[Any], lease_until: float) -> None:
    """Charge the attempt that has just ended to its study, and give back what it had reserved.

    It is charged from the first word of its supervisor to its end: with a result to now, else at most to the end of its
    lease, by when its supervisor has stopped the runner, whenever somebody noticed.
    """
    done = run.state in RECORDED
    end = now if done else sa.case((now < lease_until, now), else_=lease_until)
    began = t.attempt.c.started_at
    charge = sa.case((end > began, (end - began) * _HELD), else_=0.0)  # without a first word the comparison is unknown
    attempt = sa.update(t.attempt).where(t.attempt.c.run_id == run.id, t.attempt.c.token == run.token)
    columns = (t.attempt.c.study_id, t.attempt.c.gpus, t.attempt.c.outcome, t.attempt.c.reserved, t.attempt.c.charged)
    entry = connection.execute(attempt.values(charged=charge).returning(*columns)).one()
    b, kept = t.budget.c, entry.outcome in KEPT
    name = sa.select(t.study.c.name).where(t.study.c.id == entry.study_id).scalar_subquery()
    sums = {
        "reserved": b.reserved - entry.reserved,
        "spent": b.spent + entry.charged,
        "wasted": b.wasted + (0.0 if kept else entry.charged),
        "longest": sa.case((b.longest < (entry.charged if kept else 0.0), entry.charged), else_=b.longest),
        "results": b.results + int(done),
    }
    connection.execute(sa.update(t.budget).where(*_row(name, unit_of(entry.gpus))).values(sums))


def live_use(study: str, unit: Unit, now: sa.ColumnElement[float]) -> sa.Select[float]:
    """Return the query for what the attempts in flight have used so far and have not been charged."""
    began, gpus = t.attempt.c.started_at, t.attempt.c.gpus
    return (
        sa.select(sa.func.coalesce(sa.func.sum((now - began) * _HELD), 0.0))
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


def budget_record(row: sa.Row[Any], live: float = 0.0) -> BudgetRecord:
    """Return a row of the table of budgets."""
    return BudgetRecord(**row._mapping, live=live)


def _row(study: str | sa.ScalarSelect[Any], unit: Unit) -> tuple[sa.ColumnElement[bool], ...]:
    return t.budget.c.study == study, t.budget.c.unit == unit
