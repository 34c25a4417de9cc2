"""What people ask for after the launch: to cancel, and to try again."""

from __future__ import annotations

import sqlalchemy as sa

from paribus.store import tables as t
from paribus.store.moves import Now, move_runs
from paribus.store.records import Cancellation, Revival, StudyRecord
from paribus.store.states import LIVE, TERMINAL, Move, RunState


def cancel_study(connection: sa.Connection, now: Now, name: str, arm: str | None) -> Cancellation:
    """Withdraw the runs of all plans of a name, and end those that nobody else asks for."""
    plans = sa.select(t.study.c.id).where(t.study.c.name == name)
    mine = [t.study_run.c.study_id.in_(plans), *([] if arm is None else [t.study_run.c.arm == arm])]
    connection.execute(sa.update(t.study_run).where(*mine).values(withdrawn=True))
    asked = t.run.c.id.in_(sa.select(t.study_run.c.run_id).where(*mine))
    wanted = t.run.c.id.in_(sa.select(t.study_run.c.run_id).where(t.study_run.c.withdrawn.is_(False)))
    ended = _count(connection, sa.and_(asked, t.run.c.state.in_(TERMINAL)))
    shared = _count(connection, sa.and_(asked, wanted, t.run.c.state.not_in(TERMINAL)))
    _hold(connection, sa.and_(asked, ~wanted, t.run.c.state.not_in(TERMINAL)))
    queued = move_runs(connection, now, Move.WITHDRAW, sa.and_(asked, ~wanted), reason="cancelled")
    live = sa.update(t.run).where(asked, ~wanted, t.run.c.state.in_(LIVE)).values(cancel_requested=True)
    running = connection.execute(live.returning(t.run.c.id)).all()
    return Cancellation(queued=len(queued), running=len(running), shared=shared, ended=ended)


def revive_study(connection: sa.Connection, now: Now, study: StudyRecord, arm: str | None, reason: str) -> Revival:
    """Ask again for the runs of a study, queue those again that ended without a result, and lift the pause."""
    plans = sa.select(t.study.c.id).where(t.study.c.name == study.name)
    mine = [t.study_run.c.study_id.in_(plans), *([] if arm is None else [t.study_run.c.arm == arm])]
    connection.execute(sa.update(t.study_run).where(*mine).values(withdrawn=False))
    only = [] if arm is None else [t.study_run.c.arm == arm]
    asked = t.run.c.id.in_(sa.select(t.study_run.c.run_id).where(t.study_run.c.study_id == study.id, *only))
    _hold(connection, sa.and_(asked, t.run.c.cancel_requested.is_(True)))
    queued = move_runs(connection, now, Move.RERUN, asked, reason=reason)
    kept = _keep_going(connection, asked)
    paused = sa.update(t.study).where(t.study.c.id == study.id, t.study.c.paused != "").values(paused="")
    lifted = connection.execute(paused.returning(t.study.c.id)).first()
    return Revival(queued=len(queued), kept=kept, lifted=lifted is not None)


def want_again(connection: sa.Connection, now: Now, study_id: int, reason: str) -> None:
    """Bring back the runs that others had cancelled and that a new study asks for."""
    links = sa.select(t.study_run.c.run_id).where(
        t.study_run.c.study_id == study_id, t.study_run.c.withdrawn.is_(False)
    )
    asked = t.run.c.id.in_(links)
    _hold(connection, sa.and_(asked, t.run.c.cancel_requested.is_(True)))
    move_runs(connection, now, Move.RERUN, sa.and_(asked, t.run.c.state == RunState.CANCELLED), reason=reason)
    _keep_going(connection, asked)


def _hold(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """Let no attempt move these runs until the transaction is over.

    On a server each statement sees what was committed before it: a run that leaves one state and enters another between
    two statements, which ask for these states in the other order, would be seen by neither.
    """
    connection.execute(sa.select(t.run.c.id).where(which).order_by(t.run.c.id).with_for_update()).all()


def _keep_going(connection: sa.Connection, asked: sa.ColumnElement[bool]) -> int:
    """Take back requests to cancel that have not been obeyed; return how many."""
    live = sa.and_(asked, t.run.c.state.in_(LIVE), t.run.c.cancel_requested.is_(True))
    return len(
        connection.execute(sa.update(t.run).where(live).values(cancel_requested=False).returning(t.run.c.id)).all()
    )


def _count(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(t.run).where(which)).scalar_one())
