"""Submit a plan: each distinct run is stored once and shared by all studies that contain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.budget import open_budgets
from paribus.store.control import requeue_cancelled
from paribus.store.models import PLAN, Terms
from paribus.store.states import Move, RunState
from paribus.store.transitions import Now, move_runs
from paribus.study.plan import Plan

_BATCH = 500
_TICK_S = 1e-3


def submit(connection: sa.Connection, now: Now, plan: Plan, terms: Terms) -> int:
    """Insert a study, its new runs and its links. If the plan is known, update its time, budget, resources and terms.

    Args:
        connection: a transaction.
        now: the time, in SQL.
        plan: the study.
        terms: ``priority`` and ``weight``; absent: those of the newest plan of its name, else the defaults.

    Returns:
        The number of the study, which is now the newest plan of its name.
    """
    same = sa.and_(t.study.c.name == plan.study, t.study.c.fingerprint == plan.fingerprint)
    open_budgets(connection, plan)
    values = {"plan": PLAN.dump_json(plan).decode(), **_terms(connection, plan.study), **terms}
    values["submitted_at"] = _after_all(connection, now, plan)
    known_as = connection.execute(sa.update(t.study).where(same).values(values).returning(t.study.c.id)).scalar()
    if known_as is not None:
        return int(known_as)
    row = {"name": plan.study, "fingerprint": plan.fingerprint, **values}
    study_id = int(connection.execute(sa.insert(t.study).values(row).returning(t.study.c.id)).scalar_one())
    fingerprints = [p.fingerprint for p in plan.all_runs]
    known = _known(connection, fingerprints)
    fresh = [p for p in plan.all_runs if p.fingerprint not in known]
    if fresh:
        rows = [{**_NEW, "fingerprint": p.fingerprint, "study_id": study_id, "seed": p.seed} for p in fresh]
        connection.execute(sa.insert(t.run), rows)
        move_runs(connection, now, Move.SUBMIT, t.run.c.study_id == study_id)
    ids = known | _known(connection, [p.fingerprint for p in fresh])
    withdrawn = _withdrawn(connection, plan.study)
    links = [
        {
            "study_id": study_id,
            "run_id": ids[p.fingerprint],
            "arm": p.arm,
            "position": p.order,
            "withdrawn": ids[p.fingerprint] in withdrawn,
        }
        for p in plan.all_runs
    ]
    if links:
        connection.execute(sa.insert(t.study_run), links)
        has_result = t.study_run.c.run_id.in_(sa.select(t.result.c.run_id))
        mine = sa.update(t.study_run).where(t.study_run.c.study_id == study_id, has_result)
        connection.execute(mine.values(recorded=True))
    requeue_cancelled(connection, now, study_id, f"asked for by the study {plan.study}")
    return study_id


_NEW = {
    "state": RunState.PLANNED,
    "token": 0,
    "not_before": 0.0,
    "program_failures": 0,
    "infrastructure_failures": 0,
    "cancel_requested": False,
    "reason": "",
    "signature": "",
}


def _terms(connection: sa.Connection, name: str) -> dict[str, Any]:
    """Return priority and weight of the newest plan of a name."""
    newest = (t.study.c.submitted_at.desc(), t.study.c.id.desc())
    query = sa.select(t.study.c.priority, t.study.c.weight).where(t.study.c.name == name).order_by(*newest).limit(1)
    row = connection.execute(query).one_or_none()
    return {} if row is None else dict(row._mapping)


def _after_all(connection: sa.Connection, now: Now, plan: Plan) -> float:
    """Return the time, but later than all other plans of the name, so that this one is the newest on any clock."""
    others = sa.and_(t.study.c.name == plan.study, t.study.c.fingerprint != plan.fingerprint)
    before = sa.select(sa.func.max(t.study.c.submitted_at)).where(others)
    clock, newest = connection.execute(sa.select(now, before.scalar_subquery())).one()
    return float(clock if newest is None else max(clock, newest + _TICK_S))


def _known(connection: sa.Connection, fingerprints: Sequence[str]) -> dict[str, int]:
    """Return the numbers of the runs that exist, by fingerprint."""
    found: dict[str, int] = {}
    for batch in _batches(fingerprints):
        query = sa.select(t.run.c.fingerprint, t.run.c.id).where(t.run.c.fingerprint.in_(batch))
        found.update((row.fingerprint, row.id) for row in connection.execute(query))
    return found


def _batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    return (values[start : start + _BATCH] for start in range(0, len(values), _BATCH))


def _withdrawn(connection: sa.Connection, name: str) -> set[int]:
    """Return the runs that were cancelled under a study name: an edited plan does not bring them back."""
    query = sa.select(t.study_run.c.run_id).join(t.study, t.study.c.id == t.study_run.c.study_id)
    return set(connection.execute(query.where(t.study.c.name == name, t.study_run.c.withdrawn.is_(True))).scalars())
