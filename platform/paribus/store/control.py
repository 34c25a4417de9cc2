"""Submit, cancel, retry and pause: what people ask of a study, and what pauses a study by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from paribus.contract import EXTERNAL
from paribus.errors import StoreError
from paribus.store import tables as t
from paribus.store.budget import open_budgets
from paribus.store.deletion import numbers
from paribus.store.models import PLAN, CancelResult, RetryResult, Terms
from paribus.store.reader import rows_of
from paribus.store.remarks import Subject
from paribus.store.states import LIVE, RECORDED, TERMINAL, Move, RunState
from paribus.store.transitions import Now, move_runs
from paribus.study.plan import Plan

SAME_FAILURES = 3
"""Arms of a study that may fail with the same error before the study is paused."""

_TICK_S = 1e-3

# ---- submit ------------------------------------------------------------------------------------------


def submit(connection: sa.Connection, now: Now, plan: Plan, terms: Terms) -> int:
    """Insert a study, its new runs and its links. If the plan is known, update its time, budget, resources and terms.

    Absent terms are those of the newest plan of its name, else the defaults.

    Returns:
        The number of the study, which is now the newest plan of its name.

    Raises:
        StoreError: the name belongs to an external study and the plan is trained, or the other way round.
    """
    same = sa.and_(t.study.c.name == plan.study, t.study.c.fingerprint == plan.fingerprint)
    _refuse_other_kind(connection, plan)
    open_budgets(connection, plan)
    values = {"plan": PLAN.dump_json(plan).decode(), **_terms(connection, plan.study), **terms}
    values["submitted_at"] = _after_all(connection, now, plan)
    known_as = connection.execute(sa.update(t.study).where(same).values(values).returning(t.study.c.id)).scalar()
    if known_as is not None:
        return int(known_as)
    row = {"name": plan.study, "fingerprint": plan.fingerprint, "first_submitted_at": values["submitted_at"], **values}
    row |= numbers(connection, t.study, 1)[0]
    study_id = int(connection.execute(sa.insert(t.study).values(row).returning(t.study.c.id)).scalar_one())
    fingerprints = [p.fingerprint for p in plan.all_runs]
    known = _known(connection, fingerprints)
    fresh = [p for p in plan.all_runs if p.fingerprint not in known]
    if fresh:
        own = numbers(connection, t.run, len(fresh))
        rows = [
            {**_NEW, "fingerprint": p.fingerprint, "study_id": study_id, "seed": p.seed, **number}
            for p, number in zip(fresh, own, strict=True)
        ]
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


def declare_after(connection: sa.Connection, study_id: int, fingerprints: Sequence[str]) -> None:
    """Date the first submission of a plan after the results of these runs: it was made when they were known."""
    if not fingerprints:
        return
    rows = rows_of(connection, sa.select(t.result.c.at).join(t.run, t.run.c.id == t.result.c.run_id), fingerprints)
    last = max(row.at for row in rows)
    row = sa.update(t.study).where(t.study.c.id == study_id)
    connection.execute(row.values(first_submitted_at=last + _TICK_S))


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


def _refuse_other_kind(connection: sa.Connection, plan: Plan) -> None:
    """Refuse a plan whose scores are not evaluations by Paribus if those of its name are, and the other way round."""
    newest = sa.select(t.study.c.plan).where(t.study.c.name == plan.study).order_by(t.study.c.id.desc()).limit(1)
    text = connection.execute(newest).scalar()
    if text is not None and (json.loads(text)["runner"] == EXTERNAL) != plan.external:
        kind = "is trained by Paribus" if plan.external else "holds runs that were imported or tracked"
        raise StoreError(f"a study `{plan.study}` is here that {kind}; the two are not compared. Choose another name.")


def newest_plan(connection: sa.Connection, name: str) -> Plan | None:
    """Return the newest plan of a name; ``None`` if there is no such study."""
    newest = (t.study.c.submitted_at.desc(), t.study.c.id.desc())
    text = connection.execute(sa.select(t.study.c.plan).where(t.study.c.name == name).order_by(*newest)).scalar()
    return None if text is None else PLAN.validate_json(text)


def state_of(connection: sa.Connection, fingerprint: str) -> RunState | None:
    """Return the state of a run; ``None`` if it is not known."""
    found = connection.execute(sa.select(t.run.c.state).where(t.run.c.fingerprint == fingerprint)).scalar()
    return None if found is None else RunState(found)


def require(connection: sa.Connection, subject: Subject) -> None:
    """Check that a study or run is in the store.

    Raises:
        StoreError: it is not.
    """
    which = t.study.c.name == subject.study if subject.study else t.run.c.fingerprint == subject.run
    column = t.study.c.id if subject.study else t.run.c.id
    if connection.execute(sa.select(column).where(which).limit(1)).first() is None:
        gone = f"study `{subject.study}`" if subject.study else f"run {subject.run}"
        raise StoreError(f"there is no {gone} in the store any more.")


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
    rows = rows_of(connection, sa.select(t.run.c.fingerprint, t.run.c.id), fingerprints)
    return {row.fingerprint: row.id for row in rows}


def _withdrawn(connection: sa.Connection, name: str) -> set[int]:
    """Return the runs that were cancelled under a study name: an edited plan does not bring them back."""
    query = sa.select(t.study_run.c.run_id).join(t.study, t.study.c.id == t.study_run.c.study_id)
    return set(connection.execute(query.where(t.study.c.name == name, t.study_run.c.withdrawn.is_(True))).scalars())


# ---- cancel and retry --------------------------------------------------------------------------------


def cancel_study(
    connection: sa.Connection, now: Now, name: str, arm: str | None, run: str | None = None
) -> CancelResult:
    """Withdraw the runs of all plans of a name, of one arm, or one run, and end those that no other study needs."""
    plans = sa.select(t.study.c.id).where(t.study.c.name == name)
    mine = [t.study_run.c.study_id.in_(plans), *_part(arm, run)]
    connection.execute(sa.update(t.study_run).where(*mine).values(withdrawn=True))
    asked = t.run.c.id.in_(sa.select(t.study_run.c.run_id).where(*mine))
    wanted = t.run.c.id.in_(sa.select(t.study_run.c.run_id).where(t.study_run.c.withdrawn.is_(False)))
    ended = _count(connection, sa.and_(asked, t.run.c.state.in_(TERMINAL)))
    shared = _count(connection, sa.and_(asked, wanted, t.run.c.state.not_in(TERMINAL)))
    _lock_runs(connection, sa.and_(asked, ~wanted, t.run.c.state.not_in(TERMINAL)))
    queued = move_runs(connection, now, Move.WITHDRAW, sa.and_(asked, ~wanted), reason="cancelled")
    live = sa.update(t.run).where(asked, ~wanted, t.run.c.state.in_(LIVE)).values(cancel_requested=True)
    running = connection.execute(live.returning(t.run.c.id)).all()
    return CancelResult(queued=len(queued), running=len(running), shared=shared, ended=ended)


def retry_study(
    connection: sa.Connection, now: Now, study_id: int, name: str, arm: str | None, reason: str, run: str | None = None
) -> RetryResult:
    """Requeue the runs of a study, of one arm, or one run, that ended without a result, and lift its pause.

    Only runs of its newest plan, ``study_id``, are requeued; cancellations are dropped in all plans of its name.
    """
    plans = sa.select(t.study.c.id).where(t.study.c.name == name)
    only = _part(arm, run)
    connection.execute(sa.update(t.study_run).where(t.study_run.c.study_id.in_(plans), *only).values(withdrawn=False))
    asked = t.run.c.id.in_(sa.select(t.study_run.c.run_id).where(t.study_run.c.study_id == study_id, *only))
    _lock_runs(connection, sa.and_(asked, t.run.c.cancel_requested.is_(True)))
    queued = move_runs(connection, now, Move.RERUN, asked, reason=reason)
    kept = _drop_cancel_requests(connection, asked)
    paused = sa.update(t.study).where(t.study.c.id == study_id, t.study.c.paused != "").values(paused="")
    lifted = connection.execute(paused.returning(t.study.c.id)).first()
    return RetryResult(queued=len(queued), kept=kept, lifted=lifted is not None)


def _part(arm: str | None, run: str | None) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on the links of an arm, and of a run by its fingerprint."""
    found: list[sa.ColumnElement[bool]] = [] if arm is None else [t.study_run.c.arm == arm]
    if run is not None:
        found.append(t.study_run.c.run_id.in_(sa.select(t.run.c.id).where(t.run.c.fingerprint == run)))
    return found


def requeue_cancelled(connection: sa.Connection, now: Now, study_id: int, reason: str) -> None:
    """Bring back the runs of a new study that other studies had cancelled."""
    links = sa.select(t.study_run.c.run_id).where(
        t.study_run.c.study_id == study_id, t.study_run.c.withdrawn.is_(False)
    )
    asked = t.run.c.id.in_(links)
    _lock_runs(connection, sa.and_(asked, t.run.c.cancel_requested.is_(True)))
    move_runs(connection, now, Move.RERUN, sa.and_(asked, t.run.c.state == RunState.CANCELLED), reason=reason)
    _drop_cancel_requests(connection, asked)


def _lock_runs(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """Lock these runs until the transaction ends, so that no attempt moves them.

    On PostgreSQL each statement sees what was committed before it. Two statements that look for two states would both
    miss a run that moves between these states meanwhile, in the other order.
    """
    connection.execute(sa.select(t.run.c.id).where(which).order_by(t.run.c.id).with_for_update()).all()


def _drop_cancel_requests(connection: sa.Connection, asked: sa.ColumnElement[bool]) -> int:
    """Take back requests to cancel that no attempt has obeyed yet; return how many."""
    live = sa.and_(asked, t.run.c.state.in_(LIVE), t.run.c.cancel_requested.is_(True))
    return len(
        connection.execute(sa.update(t.run).where(live).values(cancel_requested=False).returning(t.run.c.id)).all()
    )


def _count(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(t.run).where(which)).scalar_one())


# ---- pause -------------------------------------------------------------------------------------------


def pause(connection: sa.Connection, study_id: int, reason: str) -> None:
    """Pause a study: none of its runs is claimed. A study that is paused already keeps its reason."""
    free = sa.and_(t.study.c.id == study_id, t.study.c.paused == "")
    connection.execute(sa.update(t.study).where(free).values(paused=reason))


def pause_all(connection: sa.Connection, run_id: int, reason: str) -> None:
    """Pause every study that shares a run."""
    connection.execute(sa.update(t.study).where(_unpaused(run_id)).values(paused=reason))


def pause_same_failures(connection: sa.Connection, run_id: int, signature: str, reason: str) -> None:
    """Pause the studies of a run in which :data:`SAME_FAILURES` arms have failed with this signature."""
    # the lock makes simultaneous failures count one after the other; claims, which only refer to the study, pass it
    locked = sa.select(t.study.c.id).where(_unpaused(run_id)).order_by(t.study.c.id)
    for study_id in connection.execute(locked.with_for_update(key_share=True)).scalars().all():
        arms = (
            sa.select(sa.func.count(t.study_run.c.arm.distinct()))
            .join(t.run, t.run.c.id == t.study_run.c.run_id)
            .where(t.study_run.c.study_id == study_id, t.run.c.signature == signature, t.run.c.state.not_in(RECORDED))
        )
        count = connection.execute(arms).scalar_one()
        if count >= SAME_FAILURES:
            pause(connection, study_id, f"{count} arms failed with the same error: {reason}")


def _unpaused(run_id: int) -> sa.ColumnElement[bool]:
    """Return the condition on the studies that share a run and are not paused."""
    mine = sa.select(t.study_run.c.study_id).where(t.study_run.c.run_id == run_id)
    return sa.and_(t.study.c.id.in_(mine), t.study.c.paused == "")
