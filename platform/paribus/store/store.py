"""The only truth about states, leases and results. Every change is one transaction with one line in the log.

A stale attempt never changes anything: each of its calls names the fence token that it was given, and the row is only
changed where this is still the newest one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from paribus.errors import LostLease, StoreError
from paribus.recipe.recipe import canonical_json
from paribus.store import tables as t
from paribus.store.database import Database, again, database_url
from paribus.store.migrate import migrate, refuse_other_version
from paribus.store.reader import PLAN, Reader, attempt_record, attempts
from paribus.store.records import AttemptRecord, Claim, FailureKind, Renewal, StudyRecord
from paribus.store.states import LIVE, RECORDED, Move, RunState, is_fenced, target_of
from paribus.study.plan import Plan
from paribus.track.folder import SHORT

LEASE_S = 60.0
"""Seconds for which a claim or a heartbeat holds a run."""

PROGRAM_TRIES = 2
"""Attempts that may end with a failure of the program before the run is quarantined."""

INFRASTRUCTURE_TRIES = 5
"""Attempts that may end with a failure of the infrastructure before the run has failed."""

BACKOFF_MAX_S = 1800.0
"""Seconds of the longest wait before another attempt."""

_BACKOFF_S = 30.0


def backoff_s(failures: int) -> float:
    """Return the wait before the next attempt after so many failures of the infrastructure; the first is free."""
    return 0.0 if failures <= 1 else min(_BACKOFF_S * 2.0 ** (failures - 2), BACKOFF_MAX_S)


class Store(Reader):
    """The store, opened for writing: by one process a host where the database is SQLite."""

    @classmethod
    def open(cls, home: Path, *, clock: Callable[[], float] | None = None) -> Store:
        """Open the store of ``home``; make it, or bring it up to date, if need be.

        Raises:
            StoreError: it cannot be reached, or another version of Paribus wrote it.
        """
        home.mkdir(parents=True, exist_ok=True)
        database = Database(database_url(home), clock)
        try:
            migrate(database, home / "migrate.lock")
        except StoreError:
            database.close()
            raise
        return cls(database, home)

    # ---- studies ---------------------------------------------------------------------------------

    @again
    def add_study(self, plan: Plan) -> StudyRecord:
        """Submit a plan. The same plan again changes nothing; a run that another study asked for is shared."""
        with self.database.write() as connection:
            refuse_other_version(connection)
            self.database.alone(connection, "submit")
            same = sa.and_(t.study.c.name == plan.study, t.study.c.fingerprint == plan.fingerprint)
            again = sa.update(t.study).where(same).values(submitted_at=self.database.now())
            if connection.execute(again.returning(t.study.c.id)).first() is None:
                self._insert_study(connection, plan)
        return self.study(plan.study)

    def _insert_study(self, connection: sa.Connection, plan: Plan) -> None:
        row = {"name": plan.study, "fingerprint": plan.fingerprint, "plan": PLAN.dump_json(plan).decode()}
        insert = sa.insert(t.study).values(**row, submitted_at=self.database.now()).returning(t.study.c.id)
        study_id = connection.execute(insert).scalar_one()
        for planned in plan.runs:
            known = sa.select(t.run.c.id).where(t.run.c.fingerprint == planned.fingerprint)
            run_id = connection.execute(known).scalar()
            if run_id is None:
                fresh = {
                    "fingerprint": planned.fingerprint,
                    "study_id": study_id,
                    "seed": planned.seed,
                    "state": RunState.PLANNED,
                    "token": 0,
                    "not_before": 0.0,
                    "program_failures": 0,
                    "infrastructure_failures": 0,
                    "cancel_requested": False,
                    "reason": "",
                    "signature": "",
                }
                run_id = connection.execute(sa.insert(t.run).values(fresh).returning(t.run.c.id)).scalar_one()
                self._move(connection, Move.SUBMIT, run_id)
            link = {"study_id": study_id, "run_id": run_id, "arm": planned.arm, "position": planned.order}
            connection.execute(sa.insert(t.study_run).values(link))

    # ---- attempts --------------------------------------------------------------------------------

    @again
    def claim(self, study_id: int, *, engine: str, worker: str, gpus: float = 0.0) -> Claim | None:
        """Take the next queued run of a study under a new fence token, and note the intent to submit it.

        Returns:
            The claim; ``None`` if no run is ready.
        """
        now = self.database.now()
        ready = (
            sa.select(t.run.c.id)
            .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
            .where(t.study_run.c.study_id == study_id, t.run.c.state == RunState.QUEUED, t.run.c.not_before <= now)
            .order_by(t.study_run.c.position)
            .limit(1)
            .with_for_update(skip_locked=True, of=t.run)
        )
        with self.database.write() as connection:
            refuse_other_version(connection)
            run_id = connection.execute(ready).scalar()
            row = None if run_id is None else self._move(connection, Move.CLAIM, run_id)
            if row is None:
                return None
            link = sa.and_(t.study_run.c.study_id == study_id, t.study_run.c.run_id == row.id)
            arm = connection.execute(sa.select(t.study_run.c.arm).where(link)).scalar_one()
            name = f"paribus-{row.fingerprint[:SHORT]}-a{row.token}"
            attempt = {
                "run_id": row.id,
                "study_id": study_id,
                "token": row.token,
                "engine": engine,
                "worker": worker,
                "submit_name": name,
                "external_id": "",
                "gpus": gpus,
                "outcome": "",
                "reason": "",
                "signature": "",
            }
            connection.execute(sa.insert(t.attempt).values(**attempt, claimed_at=now))
        return Claim(
            run_id=row.id, fingerprint=row.fingerprint, arm=arm, seed=row.seed, token=row.token, submit_name=name
        )

    @again
    def submitted(self, run_id: int, token: int, external_id: str) -> None:
        """Note what the engine calls the attempt."""
        with self.database.write() as connection:
            connection.execute(_attempt_row(run_id, token).values(external_id=external_id))

    @again
    def start(self, run_id: int, token: int) -> Renewal:
        """Note that the supervisor is there, and renew its lease.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        with self.database.write() as connection:
            row = self._move(connection, Move.START, run_id, token)
            if row is not None:
                connection.execute(_attempt_row(run_id, token).values(started_at=self.database.now()))
        _require(row, run_id, token)
        return self.renew(run_id, token)

    @again
    def renew(self, run_id: int, token: int) -> Renewal:
        """Prolong the lease.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        held = sa.and_(t.run.c.id == run_id, t.run.c.token == token, t.run.c.state.in_(LIVE))
        beat = sa.update(t.run).where(held).values(lease_until=self.database.now() + LEASE_S)
        with self.database.write() as connection:
            row = connection.execute(beat.returning(t.run.c.cancel_requested)).one_or_none()
        _require(row, run_id, token)
        return Renewal(lease_s=LEASE_S, cancel=bool(row and row.cancel_requested))

    @again
    def finish(self, run_id: int, token: int, payload: Mapping[str, Any], *, stopped_early: bool = False) -> None:
        """Record the result of a run, once. The same call again changes nothing.

        Raises:
            LostLease: another attempt holds the run, or it has a different result already.
        """
        text = canonical_json(dict(payload))
        digest = hashlib.sha256(text.encode()).hexdigest()
        move = Move.STOP_EARLY if stopped_early else Move.SUCCEED
        with self.database.write() as connection:
            row = self._move(connection, move, run_id, token)
            if row is not None:
                record = {"run_id": run_id, "token": token, "payload": text, "payload_hash": digest}
                connection.execute(sa.insert(t.result).values(**record, at=self.database.now()))
                return
            known = sa.select(t.result.c.token, t.result.c.payload_hash).where(t.result.c.run_id == run_id)
            same = connection.execute(known).one_or_none()
        if same is None or (same.token, same.payload_hash) != (token, digest):
            raise LostLease(f"run {run_id} refuses the result of attempt {token}")

    @again
    def release(self, run_id: int, token: int, reason: str, *, wait_s: float = 0.0) -> None:
        """Put an interrupted run back into the queue; nothing is counted against it.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        with self.database.write() as connection:
            row = self._move(connection, Move.RELEASE, run_id, token, reason, wait_s=wait_s)
        _require(row, run_id, token)

    @again
    def fail(self, run_id: int, token: int, kind: FailureKind, reason: str, signature: str = "") -> RunState:
        """Count a failed attempt, and put the run back into the queue or end it.

        Returns:
            The state of the run now.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        column = t.run.c.program_failures if kind == "program" else t.run.c.infrastructure_failures
        with self.database.write() as connection:
            held = sa.and_(t.run.c.id == run_id, t.run.c.token == token, t.run.c.state.in_(LIVE))
            count = connection.execute(
                sa.update(t.run).where(held).values({column: column + 1}).returning(column)
            ).scalar()
            row = None
            if count is not None:
                move, wait_s = _after_failure(kind, count)
                row = self._move(connection, move, run_id, token, reason, signature=signature, wait_s=wait_s)
        return RunState(_require(row, run_id, token).state)

    @again
    def request_cancel(self, run_id: int) -> None:
        """Ask for the end of a run: at once while it is queued, else at its next heartbeat. A finish may come first."""
        with self.database.write() as connection:
            if self._move(connection, Move.WITHDRAW, run_id, reason="cancelled") is None:
                live = sa.and_(t.run.c.id == run_id, t.run.c.state.in_(LIVE))
                connection.execute(sa.update(t.run).where(live).values(cancel_requested=True))

    @again
    def cancelled(self, run_id: int, token: int) -> None:
        """Note that an attempt has obeyed a request to cancel.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        with self.database.write() as connection:
            row = self._move(connection, Move.CANCEL, run_id, token, "cancelled")
        _require(row, run_id, token)

    @again
    def expire(self) -> tuple[AttemptRecord, ...]:
        """Take the runs back whose lease is over.

        Returns:
            The attempts that lost their run; whatever is left of them should be killed.
        """
        lost: list[AttemptRecord] = []
        over = sa.and_(t.run.c.state.in_(LIVE), t.run.c.lease_until < self.database.now())
        # skips what a supervisor is renewing at this moment; in one order, so that two reapers never block each other
        ripe = sa.select(t.run.c.id).where(over).order_by(t.run.c.id).with_for_update(skip_locked=True)
        count = t.run.c.infrastructure_failures
        with self.database.write() as connection:
            for run_id in connection.execute(ripe).scalars().all():
                counted = sa.update(t.run).where(t.run.c.id == run_id, over).values({count: count + 1})
                row = connection.execute(counted.returning(t.run.c.token, count)).one_or_none()
                if row is None:
                    continue
                move = Move.ABANDON if row[1] >= INFRASTRUCTURE_TRIES else Move.EXPIRE
                reason = "no heartbeat: the lease ran out"
                self._move(connection, move, run_id, row.token, reason, wait_s=backoff_s(row[1]))
                held = attempts().where(t.attempt.c.run_id == run_id, t.attempt.c.token == row.token)
                lost.append(attempt_record(connection.execute(held).one()))
        return tuple(lost)

    # ---- the one way in which a state changes ----------------------------------------------------

    def _move(
        self,
        connection: sa.Connection,
        move: Move,
        run_id: int,
        token: int | None = None,
        reason: str = "",
        *,
        signature: str = "",
        wait_s: float = 0.0,
    ) -> sa.Row[Any] | None:
        """Change the state of a run as the table of transitions allows it; ``None`` if it does not."""
        before = connection.execute(sa.select(t.run).where(t.run.c.id == run_id).with_for_update()).one_or_none()
        source = None if before is None else RunState(before.state)
        target = None if source is None else target_of(move, source)
        if before is None or source is None or target is None or (is_fenced(move) and token is None):
            return None
        now = self.database.now()
        values: dict[str, Any] = {"state": target, "lease_until": now + LEASE_S if target in LIVE else None}
        if move is Move.CLAIM:
            values |= {"token": t.run.c.token + 1, "cancel_requested": False}
        if target is RunState.QUEUED:
            values |= {"not_before": now + wait_s}
        if target in RECORDED or reason:
            values |= {"reason": reason, "signature": signature}
        guard = [t.run.c.id == run_id, t.run.c.state == source]
        guard += [] if token is None else [t.run.c.token == token]
        after = connection.execute(sa.update(t.run).where(*guard).values(values).returning(t.run)).one_or_none()
        if after is None:
            return None
        if source in LIVE and target not in LIVE:
            ended = {"ended_at": now, "outcome": move, "reason": reason, "signature": signature}
            connection.execute(_attempt_row(run_id, after.token).values(ended))
        line = {"run_id": run_id, "token": after.token, "move": move, "source": source, "target": target}
        connection.execute(sa.insert(t.event).values(**line, at=now, reason=reason))
        return after


def _attempt_row(run_id: int, token: int) -> sa.Update:
    return sa.update(t.attempt).where(t.attempt.c.run_id == run_id, t.attempt.c.token == token)


def _require(row: sa.Row[Any] | None, run_id: int, token: int) -> sa.Row[Any]:
    if row is None:
        raise LostLease(f"attempt {token} no longer holds run {run_id}")
    return row


def _after_failure(kind: FailureKind, count: int) -> tuple[Move, float]:
    if kind == "program":
        return (Move.QUARANTINE if count >= PROGRAM_TRIES else Move.RETRY), 0.0
    return (Move.FAIL if count >= INFRASTRUCTURE_TRIES else Move.RETRY), backoff_s(count)
