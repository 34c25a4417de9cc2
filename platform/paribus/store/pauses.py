"""Pauses a study: nothing more of it is claimed until somebody has mended what is wrong."""

from __future__ import annotations

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.states import RECORDED

SAME_FAILURES = 3
"""Arms of a study that may fail with one signature before the study is paused."""


def pause(connection: sa.Connection, study_id: int, reason: str) -> None:
    """Note why no run of a study is claimed any more, unless it is paused already."""
    free = sa.and_(t.study.c.id == study_id, t.study.c.paused == "")
    connection.execute(sa.update(t.study).where(free).values(paused=reason))


def pause_all(connection: sa.Connection, run_id: int, reason: str) -> None:
    """Pause the studies that ask for a run, unless they are paused already."""
    connection.execute(sa.update(t.study).where(_asking(run_id)).values(paused=reason))


def pause_same_failures(connection: sa.Connection, run_id: int, signature: str, reason: str) -> None:
    """Pause the studies of a run in which too many arms have failed with this signature."""
    # two failures at once are counted one after the other; a claim's reference to the study does not wait
    locked = sa.select(t.study.c.id).where(_asking(run_id)).order_by(t.study.c.id)
    for study_id in connection.execute(locked.with_for_update(key_share=True)).scalars().all():
        arms = (
            sa.select(sa.func.count(t.study_run.c.arm.distinct()))
            .join(t.run, t.run.c.id == t.study_run.c.run_id)
            .where(t.study_run.c.study_id == study_id, t.run.c.signature == signature, t.run.c.state.not_in(RECORDED))
        )
        count = connection.execute(arms).scalar_one()
        if count >= SAME_FAILURES:
            pause(connection, study_id, f"{count} arms failed with the same error: {reason}")


def _asking(run_id: int) -> sa.ColumnElement[bool]:
    """Return the condition on the studies that ask for a run and are not paused."""
    mine = sa.select(t.study_run.c.study_id).where(t.study_run.c.run_id == run_id)
    return sa.and_(t.study.c.id.in_(mine), t.study.c.paused == "")
