"""The life of an attempt after its claim: its first word, heartbeats, and the one end that it has.

A stale attempt never changes anything: each of its calls names the fence token that it was given, and the row is only
changed where this is still the newest one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from paribus.errors import LostLease
from paribus.recipe.recipe import canonical_json
from paribus.store import statements
from paribus.store import tables as t
from paribus.store.database import again
from paribus.store.moves import HELD, LEASE_S, THIS_RUN, holder, move_runs
from paribus.store.pauses import pause_all, pause_same_failures
from paribus.store.reader import Reader, attempt_record, attempts
from paribus.store.records import AttemptRecord, FailureKind, Renewal
from paribus.store.snapshot import payload_hash
from paribus.store.states import LIVE, Move, RunState, target_of

PROGRAM_TRIES = 2
"""Attempts that may end with a failure of the program before the run is quarantined."""

INFRASTRUCTURE_TRIES = 5
"""Attempts that may end with a failure of the infrastructure before the run has failed."""

REQUEUE_TRIES = 3
"""Attempts in a row that may ask to be queued again without having come further before the run is quarantined."""

BACKOFF_MAX_S = 1800.0
"""Seconds of the longest wait before another attempt."""

_BACKOFF_S, _JITTER = 30.0, 0.2
_STUCK = "asked to be queued again without coming further"
_RELEASES = (Move.RELEASE, Move.QUARANTINE, Move.CANCEL)
_FAILURES = (Move.RETRY, Move.FAIL, Move.QUARANTINE, Move.CANCEL)


def backoff_s(failures: int, run_id: int, token: int) -> float:
    """Return the wait before the next attempt after so many failures of the infrastructure; the first is free.

    Runs that failed together, as with a host, do not come back together: each wait is up to a fifth shorter or longer
    than the power of two. Run and attempt say by how much, so that the same history has the same waits.

    Args:
        failures: those of the run, with this one.
        run_id: the run.
        token: fence token of the attempt that failed.

    Returns:
        Seconds.
    """
    if failures <= 1:
        return 0.0
    digits = int(sha256(f"{run_id} {token}".encode()).hexdigest()[:8], 16)
    return min((1 + _JITTER * (digits / 2**31 - 1)) * _BACKOFF_S * 2.0 ** (failures - 2), BACKOFF_MAX_S)


class Attempts(Reader):
    """What the holders of runs tell, and the scheduler about those that say nothing."""

    @again
    def submitted(self, run_id: int, token: int, external_id: str) -> None:
        """Note what the engine calls the attempt. It is found by its own name, so nothing waits for the disk."""
        with self.database.write(flush=False) as connection:
            connection.execute(statements.SUBMITTED, holder(run_id, token) | {"called": external_id})

    @again
    def start(self, run_id: int, token: int) -> Renewal:
        """Note that the supervisor is there, and renew its lease; asked again it only renews.

        On SQLite nothing waits for the disk: a machine that loses its power loses the attempt, too. A server that
        stops and comes back must still know the start, or it would refuse the result of an attempt that went on.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        with self.database.write(flush=not self.database.embedded) as connection:
            row = self._move(connection, Move.START, run_id, token)
            if row is not None:
                connection.execute(statements.started(self.database.now()), holder(run_id, token))
            else:
                row = self._beat(connection, run_id, token)
        return Renewal(lease_s=LEASE_S, cancel=_require(row, run_id, token).cancel_requested)

    @again
    def renew(self, run_id: int, token: int) -> Renewal:
        """Prolong the lease.

        Nothing waits for the disk: an attempt whose renewal is taken back by a power cut renews again, or is taken
        for dead when its lease is over, which is always safe.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        with self.database.write(flush=False) as connection:
            row = self._beat(connection, run_id, token)
        return Renewal(lease_s=LEASE_S, cancel=_require(row, run_id, token).cancel_requested)

    def _beat(self, connection: sa.Connection, run_id: int, token: int) -> sa.Row[Any] | None:
        return connection.execute(statements.beat(self.database.now()), holder(run_id, token)).one_or_none()

    @again
    def finish(self, run_id: int, token: int, payload: Mapping[str, Any], *, stopped_early: bool = False) -> None:
        """Record the result of a run, once. The same call again changes nothing.

        Raises:
            LostLease: another attempt holds the run, or it has a different result already.
        """
        text = canonical_json(dict(payload)).encode(errors="replace").decode()  # halves of pairs are no text
        digest = payload_hash(text)
        move, reason = Move.SUCCEED, ""
        if stopped_early:
            move, reason = Move.STOP_EARLY, str(payload.get("reason", ""))
        with self.database.write() as connection:
            row = self._move(connection, move, run_id, token, reason)
            if row is not None:
                record = {"run_id": run_id, "token": token, "payload": text, "payload_hash": digest}
                connection.execute(statements.result(self.database.now()), record)
                return
            same = connection.execute(statements.KNOWN, {"this_run": run_id}).one_or_none()
        if same is None or (same.token, same.payload_hash) != (token, digest):
            raise LostLease(f"run {run_id} refuses the result of attempt {token}")

    @again
    def release(
        self, run_id: int, token: int, reason: str, *, wait_s: float = 0.0, step: int | None = None
    ) -> RunState:
        """Put an interrupted run back into the queue; nothing is counted against it, unless it gets nowhere.

        Args:
            run_id: the run.
            token: fence token of the attempt.
            reason: why.
            wait_s: seconds before the next attempt.
            step: newest step of an attempt that asked for this by itself; absent: it was interrupted from outside.

        Returns:
            The state of the run now.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        with self.database.write() as connection:
            move, signature = Move.RELEASE, ""
            asked, stuck = reason, f"{_STUCK}, {REQUEUE_TRIES} times in a row: {reason}"
            if step is not None and self._count_requeue(connection, run_id, token, step) >= REQUEUE_TRIES:
                move, signature, reason = Move.QUARANTINE, _STUCK, stuck
            row = self._end(connection, move, run_id, token, reason, signature=signature, wait_s=wait_s)
            return self._state_after(connection, row, run_id, token, _RELEASES, (asked, ""), (stuck, _STUCK))

    def _count_requeue(self, connection: sa.Connection, run_id: int, token: int, step: int) -> int:
        further = t.run.c.step < step
        values = {
            "requeues": sa.case((further, 0), else_=t.run.c.requeues + 1),
            "step": sa.case((further, step), else_=t.run.c.step),
        }
        counted = sa.update(t.run).where(HELD).values(values).returning(t.run.c.requeues)
        return int(connection.execute(counted, holder(run_id, token)).scalar() or 0)

    @again
    def fail(self, run_id: int, token: int, kind: FailureKind, reason: str, signature: str = "") -> RunState:
        """Count a failed attempt, and put the run back into the queue or end it.

        A study of which :data:`~paribus.store.pauses.SAME_FAILURES` arms have failed with one signature is paused. A
        disk that takes nothing pauses at once, and counts against nobody: every other attempt would fail there, too.

        Returns:
            The state of the run now.

        Raises:
            LostLease: another attempt holds the run, or none.
        """
        column = t.run.c.program_failures if kind == "program" else t.run.c.infrastructure_failures
        with self.database.write() as connection:
            if kind == "storage":
                row = self._end(connection, Move.RETRY, run_id, token, reason, signature=signature, wait_s=0.0)
                if row is not None:
                    pause_all(connection, run_id, reason)
                return self._state_after(connection, row, run_id, token, _FAILURES, (reason, signature))
            counted = sa.update(t.run).where(HELD).values({column: column + 1})
            count = connection.execute(counted.returning(column), holder(run_id, token)).scalar()
            row = None
            if count is not None:
                move, wait_s = _after_failure(kind, count, run_id, token)
                row = self._end(connection, move, run_id, token, reason, signature=signature, wait_s=wait_s)
            return self._state_after(connection, row, run_id, token, _FAILURES, (reason, signature))

    @again
    def cancelled(self, run_id: int, token: int) -> None:
        """Note that an attempt has obeyed a request to cancel.

        Raises:
            LostLease: another attempt holds the run, or none; or nobody asked for it.
        """
        with self.database.write() as connection:
            row = self._move(connection, Move.CANCEL, run_id, token, "cancelled")
            self._state_after(connection, row, run_id, token, (Move.CANCEL,), ("cancelled", ""))

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
                reason, wait_s = "no heartbeat: the lease ran out", backoff_s(row[1], run_id, row.token)
                for move in (Move.LAPSE, Move.ABANDON if row[1] >= INFRASTRUCTURE_TRIES else Move.EXPIRE):
                    if self._move(connection, move, run_id, row.token, reason, wait_s=wait_s) is not None:
                        break
                held = attempts().where(t.attempt.c.run_id == run_id, t.attempt.c.token == row.token)
                lost.append(attempt_record(connection.execute(held).one()))
        return tuple(lost)

    # ---- moves -----------------------------------------------------------------------------------

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
        """Move one run; ``None`` if the table of transitions does not allow it."""
        why = {"reason": reason, "signature": signature}
        this, now = {"this_run": run_id}, self.database.now()
        rows = move_runs(connection, now, move, THIS_RUN, this, token=token, wait_s=wait_s, **why)
        return rows[0] if rows else None

    def _end(
        self,
        connection: sa.Connection,
        move: Move,
        run_id: int,
        token: int,
        reason: str,
        *,
        signature: str,
        wait_s: float,
    ) -> sa.Row[Any] | None:
        """End an attempt without a result: cancel its run if somebody asked for it, else make the move."""
        row = self._move(connection, Move.CANCEL, run_id, token, reason, signature=signature)
        if row is None:
            row = self._move(connection, move, run_id, token, reason, signature=signature, wait_s=wait_s)
            if row is not None and signature:
                pause_same_failures(connection, run_id, signature, reason)
        if row is None:  # somebody asked between the two
            row = self._move(connection, Move.CANCEL, run_id, token, reason, signature=signature)
        return row

    def _state_after(
        self,
        connection: sa.Connection,
        row: sa.Row[Any] | None,
        run_id: int,
        token: int,
        moves: Collection[Move],
        *told: tuple[str, str],
    ) -> RunState:
        """Return the state in which an end has left a run; of one that is told again, the state it had left then.

        Args:
            connection: the transaction.
            row: the run, where this call has ended the attempt.
            run_id: the run.
            token: fence token of the attempt.
            moves: what such a call may make of a run.
            told: reason and signature that it leaves.

        Raises:
            LostLease: the attempt had ended in another way.
        """
        if row is not None:
            return RunState(row.state)
        end = connection.execute(statements.ENDED, holder(run_id, token)).one_or_none()
        after = None
        if end is not None and end.outcome in moves and (end.reason, end.signature) in told:
            after = target_of(Move(end.outcome), RunState.RUNNING)
        if after is None:
            raise _lost(run_id, token)
        return after


def _require(row: sa.Row[Any] | None, run_id: int, token: int) -> sa.Row[Any]:
    if row is None:
        raise _lost(run_id, token)
    return row


def _lost(run_id: int, token: int) -> LostLease:
    return LostLease(f"attempt {token} no longer holds run {run_id}")


def _after_failure(kind: FailureKind, count: int, run_id: int, token: int) -> tuple[Move, float]:
    if kind == "program":
        return (Move.QUARANTINE if count >= PROGRAM_TRIES else Move.RETRY), 0.0
    return (Move.FAIL if count >= INFRASTRUCTURE_TRIES else Move.RETRY), backoff_s(count, run_id, token)
