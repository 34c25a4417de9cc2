"""Read-only queries: each takes a connection in a transaction and returns frozen values. They never block a writer."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.models import (
    PLAN,
    AttemptedRun,
    AttemptRecord,
    EventRecord,
    LeaseRecord,
    ResultRecord,
    RunRecord,
    StudyRecord,
    StudySummary,
)
from paribus.store.states import TERMINAL, RunState
from paribus.study.plan import Plan

_BATCH = 500

# a run that a study has cancelled is CANCELLED for this study, though another one may go on with it
_SEEN = sa.case(
    (
        sa.and_(t.study_run.c.withdrawn, ~t.run.c.cancel_requested, t.run.c.state.not_in(TERMINAL)),
        sa.literal_column(f"'{RunState.CANCELLED}'"),
    ),
    else_=t.run.c.state,
)

# ---- studies -----------------------------------------------------------------------------------------


def studies(connection: sa.Connection) -> tuple[StudyRecord, ...]:
    """Return all plans of all studies, the newest last."""
    rows = connection.execute(sa.select(t.study).order_by(t.study.c.submitted_at, t.study.c.id)).all()
    return tuple(study_record(row) for row in rows)


def newest_study(connection: sa.Connection, name: str) -> StudyRecord | None:
    """Return the newest plan of a name."""
    newest = (t.study.c.submitted_at.desc(), t.study.c.id.desc())
    query = sa.select(t.study).where(t.study.c.name == name).order_by(*newest).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else study_record(row)


def study_by_id(connection: sa.Connection, study_id: int) -> StudyRecord:
    """Return the study with this number."""
    return study_record(connection.execute(sa.select(t.study).where(t.study.c.id == study_id)).one())


def study_names(connection: sa.Connection) -> list[str]:
    """Return the names of all studies, sorted."""
    return list(connection.execute(sa.select(t.study.c.name).distinct().order_by(t.study.c.name)).scalars())


def summaries(connection: sa.Connection, studies: Collection[int] | None = None) -> tuple[StudySummary, ...]:
    """Return all studies, or some, in the order of :func:`studies`, without reading their plans."""
    unfinished = (
        sa.select(t.study_run.c.run_id)
        .join(t.run, t.run.c.id == t.study_run.c.run_id)
        .where(t.study_run.c.study_id == t.study.c.id, t.study_run.c.recorded.is_(False), _SEEN.not_in(TERMINAL))
    )
    names = ("id", "name", "submitted_at", "paused", "priority", "weight")
    query = sa.select(*(t.study.c[name] for name in names), unfinished.exists().label("open")).order_by(
        t.study.c.submitted_at, t.study.c.id
    )
    if studies is not None:
        query = query.where(t.study.c.id.in_(studies))
    return tuple(StudySummary(**row._mapping) for row in connection.execute(query))


def plans_of(connection: sa.Connection, name: str) -> list[Plan]:
    """Return all plans of a name."""
    texts = connection.execute(sa.select(t.study.c.plan).where(t.study.c.name == name)).scalars().all()
    return [PLAN.validate_json(text) for text in texts]


def paused(connection: sa.Connection, study_id: int) -> str:
    """Return why a study is paused; empty if it is not."""
    return str(connection.execute(sa.select(t.study.c.paused).where(t.study.c.id == study_id)).scalar_one())


def arm_labels(connection: sa.Connection, study_id: int) -> Mapping[str, str]:
    """Return the label of each arm by its key, without validating the plan."""
    text = connection.execute(sa.select(t.study.c.plan).where(t.study.c.id == study_id)).scalar()
    plan = json.loads(text or '{"arms": []}')
    arms = [*(plan.get("screen") or {"arms": []})["arms"], *plan["arms"]]
    return {arm["key"]: arm["label"] for arm in arms}


def study_record(row: sa.Row[tuple[object, ...]]) -> StudyRecord:
    """Return a row of the study table."""
    plan = PLAN.validate_json(row.plan)
    columns = ("id", "name", "submitted_at", "paused", "priority", "weight")
    return StudyRecord(plan=plan, **{name: row._mapping[name] for name in columns})


# ---- runs --------------------------------------------------------------------------------------------


def run_rows(
    connection: sa.Connection,
    study_id: int,
    states: Collection[RunState],
    *,
    as_seen: bool = False,
    first: int | None = None,
    most: int | None = None,
) -> Sequence[sa.Row[Any]]:
    """Return the runs of a study in queue order, as :func:`run_record` takes them.

    Args:
        connection: a transaction.
        study_id: the study.
        states: only runs in these states.
        as_seen: compare ``states`` with the state that this study sees, not with the run's own.
        first: number of runs to skip.
        most: length of the page; ``None``: all.
    """
    query = (
        sa.select(t.run, t.study_run.c.arm, t.study_run.c.position, _SEEN.label("seen"))
        .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
        .where(t.study_run.c.study_id == study_id)
        .order_by(t.study_run.c.position)
        .offset(first)
        .limit(most)
    )
    if len(states) < len(RunState):
        query = query.where((_SEEN if as_seen else t.run.c.state).in_(states))
    return connection.execute(query).all()


def run_record(row: sa.Row[tuple[object, ...]], label: str) -> RunRecord:
    """Return a row of :func:`run_rows` with the label of its arm."""
    return RunRecord(
        id=row.id,
        fingerprint=row.fingerprint,
        arm=row.arm,
        label=label,
        seed=row.seed,
        position=row.position,
        state=RunState(row.seen),
        token=row.token,
        lease_until=row.lease_until,
        program_failures=row.program_failures,
        infrastructure_failures=row.infrastructure_failures,
        cancel_requested=row.cancel_requested,
        reason=row.reason,
        signature=row.signature,
    )


def counts_by_arm(connection: sa.Connection, study_id: int) -> Mapping[tuple[str, RunState], int]:
    """Return the number of runs of each arm (its key) in each state that occurs."""
    query = (
        sa.select(t.study_run.c.arm, _SEEN.label("seen"), sa.func.count())
        .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
        .where(t.study_run.c.study_id == study_id)
        .group_by(t.study_run.c.arm, "seen")
    )
    return {(arm, RunState(state)): count for arm, state, count in connection.execute(query)}


def states_of(connection: sa.Connection, fingerprints: Sequence[str]) -> Mapping[str, RunState]:
    """Return the states of the runs that exist, by fingerprint."""
    found: dict[str, RunState] = {}
    for batch in batches(fingerprints):
        query = sa.select(t.run.c.fingerprint, t.run.c.state).where(t.run.c.fingerprint.in_(batch))
        found |= {row.fingerprint: RunState(row.state) for row in connection.execute(query)}
    return found


def recorded(connection: sa.Connection, fingerprints: Sequence[str]) -> frozenset[str]:
    """Return those of the fingerprints whose run has a result."""
    query = sa.select(t.run.c.fingerprint).join(t.result, t.result.c.run_id == t.run.c.id)
    asked = (query.where(t.run.c.fingerprint.in_(batch)) for batch in batches(fingerprints))
    return frozenset(found for each in asked for found in connection.execute(each).scalars())


def results(connection: sa.Connection, fingerprints: Sequence[str]) -> Mapping[str, ResultRecord]:
    """Return the results of the runs that have one, by fingerprint."""
    query = sa.select(t.run.c.fingerprint, t.result).join(t.result, t.result.c.run_id == t.run.c.id)
    found: dict[str, ResultRecord] = {}
    for batch in batches(fingerprints):
        for r in connection.execute(query.where(t.run.c.fingerprint.in_(batch))):
            payload = json.loads(r.payload)
            found[r.fingerprint] = ResultRecord(fingerprint=r.fingerprint, token=r.token, payload=payload, at=r.at)
    return found


def batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split values into batches that fit into one statement."""
    return (values[start : start + _BATCH] for start in range(0, len(values), _BATCH))


# ---- attempts ----------------------------------------------------------------------------------------


def attempts() -> sa.Select[Any]:
    """Return the query for attempts as :func:`attempt_record` takes them."""
    return sa.select(t.attempt, t.run.c.fingerprint).join(t.run, t.run.c.id == t.attempt.c.run_id)


def attempt_record(row: sa.Row[tuple[object, ...]]) -> AttemptRecord:
    """Return a row of :func:`attempts`."""
    return AttemptRecord(**{k: v for k, v in row._mapping.items() if k != "id"})


def attempts_of(connection: sa.Connection, study_id: int) -> tuple[AttemptRecord, ...]:
    """Return all attempts at the runs of a study, oldest first, also those that another study made."""
    query = (
        attempts()
        .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
        .where(t.study_run.c.study_id == study_id)
        .order_by(t.attempt.c.id)
    )
    return tuple(attempt_record(row) for row in connection.execute(query))


def live_attempts(connection: sa.Connection) -> tuple[AttemptRecord, ...]:
    """Return the attempts of all studies that hold a run now."""
    newest = sa.and_(t.attempt.c.ended_at.is_(None), t.run.c.token == t.attempt.c.token)
    query = attempts().where(newest).order_by(t.attempt.c.id)
    return tuple(attempt_record(row) for row in connection.execute(query))


def attempted_runs(connection: sa.Connection) -> tuple[AttemptedRun, ...]:
    """Return all runs with at least one attempt, oldest first."""
    query = (
        sa.select(
            t.run.c.fingerprint,
            t.run.c.token,
            t.run.c.state,
            sa.func.min(t.attempt.c.claimed_at).label("began_at"),
            sa.func.max(t.attempt.c.ended_at).label("ended_at"),
        )
        .join(t.attempt, t.attempt.c.run_id == t.run.c.id)
        .group_by(t.run.c.id)
        .order_by(sa.func.min(t.attempt.c.id))
    )
    rows = connection.execute(query).all()
    return tuple(AttemptedRun(**{**row._mapping, "state": RunState(row.state)}) for row in rows)


def leases(connection: sa.Connection) -> tuple[LeaseRecord, ...]:
    """Return the GPU shares that attempts hold now."""
    query = (
        sa.select(*(t.lease.c[name] for name in LeaseRecord.__dataclass_fields__))
        .join(t.attempt, sa.and_(t.attempt.c.run_id == t.lease.c.run_id, t.attempt.c.token == t.lease.c.token))
        .where(t.attempt.c.ended_at.is_(None))
        .order_by(t.lease.c.run_id, t.lease.c.device_id)
    )
    return tuple(LeaseRecord(**row._mapping) for row in connection.execute(query))


# ---- the event log -----------------------------------------------------------------------------------


def events_of(connection: sa.Connection, run_id: int) -> tuple[EventRecord, ...]:
    """Return the events of a run, oldest first."""
    query = sa.select(t.event).where(t.event.c.run_id == run_id).order_by(t.event.c.id)
    return tuple(event_record(row) for row in connection.execute(query))


def event_record(row: sa.Row[tuple[object, ...]]) -> EventRecord:
    """Return a row of the event table."""
    return EventRecord(**{k: v for k, v in row._mapping.items() if k != "id"})
