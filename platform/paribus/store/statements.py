"""The statements of an attempt's life, each built once for each clock: to build one costs more than to execute it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.moves import ATTEMPT, HELD, LEASE_S, Now
from paribus.store.states import RunState


@lru_cache
def ready(now: Now) -> sa.Select[Any]:
    """Return the query for the next runs of a study in queue order."""
    asking = sa.bindparam("asking", type_=sa.Integer)
    return (
        sa.select(t.run.c.id, t.study_run.c.arm, t.study.c.name)
        .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
        .join(t.study, t.study.c.id == t.study_run.c.study_id)
        .where(t.study.c.id == asking, t.study.c.paused == "", t.study_run.c.withdrawn.is_(False))
        .where(t.study_run.c.study_id == asking, t.study_run.c.recorded.is_(False))
        .where(t.run.c.state == RunState.QUEUED, t.run.c.not_before <= now)
        .order_by(t.study_run.c.position)
        .limit(sa.bindparam("most", type_=sa.Integer))
        .with_for_update(skip_locked=True, of=t.run)
    )


@lru_cache
def intents(now: Now) -> sa.Insert:
    """Return the insert of attempts that have just been claimed."""
    return sa.insert(t.attempt).values(claimed_at=now)


@lru_cache
def started(now: Now) -> sa.Update:
    """Return the update of an attempt whose supervisor is there."""
    return ATTEMPT.values(started_at=now)


@lru_cache
def beat(now: Now) -> sa.UpdateBase:
    """Return the update that prolongs a lease; it tells whether cancellation was asked for."""
    return sa.update(t.run).where(HELD).values(lease_until=now + LEASE_S).returning(t.run.c.cancel_requested)


@lru_cache
def result(now: Now) -> sa.Insert:
    """Return the insert of a result."""
    return sa.insert(t.result).values(at=now)


UNKNOWN: dict[str, Any] = {"external_id": "", "outcome": "", "reason": "", "signature": ""}
"""What an attempt does not say at its claim."""

SUBMITTED = ATTEMPT.values(external_id=sa.bindparam("called"))
"""Notes what the engine calls an attempt."""

ENDED = sa.select(t.attempt.c.outcome, t.attempt.c.reason, t.attempt.c.signature).where(
    t.attempt.c.run_id == sa.bindparam("this_run"), t.attempt.c.token == sa.bindparam("fence")
)
"""Asks how an attempt has ended."""

KNOWN = sa.select(t.result.c.token, t.result.c.payload_hash).where(t.result.c.run_id == sa.bindparam("this_run"))
"""Asks which result a run has."""
