"""The only truth about states, leases and results. Every change is one transaction with one line in the log.

A stale attempt never changes anything: each of its calls names the fence token that it was given, and the row is only
changed where this is still the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import sqlalchemy as sa

from paribus.engines.base import Device
from paribus.errors import LostLease, StoreError
from paribus.recipe.recipe import canonical_json
from paribus.store import statements
from paribus.store import tables as t
from paribus.store.budget import locked, reserve
from paribus.store.database import Database, again, database_url
from paribus.store.devices import Held, Pool, cordon, note, register, take
from paribus.store.migrate import migrate, refuse_other_version
from paribus.store.moves import HELD, LEASE_S, THIS_RUN, holder, move_runs
from paribus.store.pauses import pause, pause_all, pause_same_failures
from paribus.store.reader import Reader, attempt_record, attempts
from paribus.store.records import (
    AttemptRecord,
    Cancellation,
    Claim,
    FailureKind,
    Renewal,
    Revival,
    StudyRecord,
    Terms,
    unit_of,
)
from paribus.store.requests import cancel_study, revive_study
from paribus.store.snapshot import payload_hash
from paribus.store.states import LIVE, Move, RunState, target_of
from paribus.store.submit import submit
from paribus.study.plan import Plan
from paribus.track.folder import SHORT

PROGRAM_TRIES = 2
"""Attempts that may end with a failure of the program before the run is quarantined."""

INFRASTRUCTURE_TRIES = 5
"""Attempts that may end with a failure of the infrastructure before the run has failed."""

REQUEUE_TRIES = 3
"""Attempts in a row that may ask to be queued again without having come further before the run is quarantined."""

BACKOFF_MAX_S = 1800.0
"""Seconds of the longest wait before another attempt."""

_BACKOFF_S = 30.0
_STUCK = "asked to be queued again without coming further"
_RELEASES = (Move.RELEASE, Move.QUARANTINE, Move.CANCEL)
_FAILURES = (Move.RETRY, Move.FAIL, Move.QUARANTINE, Move.CANCEL)


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
    def add_study(self, plan: Plan, **terms: Unpack[Terms]) -> StudyRecord:
        """Submit a plan. The same plan again changes its terms alone; a run that another study asked for is shared."""
        with self.database.write() as connection:
            refuse_other_version(connection)
            self.database.alone(connection, "submit")
            submit(connection, self.database.now(), plan, terms)
            self.database.count_rows(connection, t.run, t.study_run)
        return self.study(plan.study)

    @again
    def cancel(self, study: str, arm: str | None = None) -> Cancellation:
        """Cancel the runs of a study, or of one of its arms, that no other study asks for.

        Queued runs are cancelled at once, live ones at their next heartbeat; a finish may come first.

        Args:
            study: name; all plans of this name are meant.
            arm: key of an arm; absent: all.
        """
        with self.database.write() as connection:
            self.database.alone(connection, "submit")
            return cancel_study(connection, self.database.now(), study, arm)

    @again
    def retry(self, study: str, arm: str | None = None, *, author: str, reason: str) -> Revival:
        """Queue the runs of a study, or of an arm, again that ended without a result, and lift its pause.

        Each begins a new generation: its failures are counted from zero, its earlier attempts are kept.

        Args:
            study: name; its newest plan is meant.
            arm: key of an arm; absent: all.
            author: who asks for it.
            reason: why.
        """
        newest = self.study(study)
        with self.database.write() as connection:
            refuse_other_version(connection)
            self.database.alone(connection, "submit")
            return revive_study(connection, self.database.now(), newest, arm, f"retried by {author}: {reason}")

    @again
    def pause(self, study_id: int, reason: str) -> None:
        """Claim no more runs of a study, until :meth:`retry` lifts it; one that is paused keeps its reason."""
        with self.database.write() as connection:
            pause(connection, study_id, reason)

    # ---- attempts --------------------------------------------------------------------------------

    def claim(
        self, study_id: int, *, engine: str, worker: str, gpus: float = 0.0, pool: Pool | None = None
    ) -> Claim | None:
        """Take the next queued run of a study; see :meth:`claim_many`."""
        return next(iter(self.claim_many(study_id, 1, engine=engine, worker=worker, gpus=gpus, pool=pool)), None)

    @again
    def claim_many(
        self, study_id: int, count: int, *, engine: str, worker: str, gpus: float = 0.0, pool: Pool | None = None
    ) -> tuple[Claim, ...]:
        """Take the next queued runs of a study, each under a new fence token; reserve their cost, note the intent.

        Args:
            study_id: the study.
            count: most runs to take, all in one transaction.
            engine: where they will run.
            worker: host of the scheduler.
            gpus: GPUs that each holds, where others choose them.
            pool: devices of the host to choose from; absent: others choose.

        Returns:
            The claims in queue order; none if no run is ready, the study is paused, or its budget or the host has too
            little left.
        """
        now = self.database.now()
        with self.database.write() as connection:
            refuse_other_version(connection)
            found = connection.execute(statements.ready(now), {"asking": study_id, "most": count}).all()
            if not found:
                return ()
            budget = locked(connection, found[0].name, unit_of(gpus))
            allowed = found[: budget.allows(len(found))]
            held: Sequence[Held] = [Held(gpus=gpus)] * len(allowed)
            if pool is not None and allowed:
                self.database.alone(connection, f"devices of {pool.host}")
                held = take(connection, now, study_id, pool, len(allowed))
            fitting = zip(allowed, held, strict=False)  # what the host has no room for stays in the queue
            moved = [(self._move(connection, Move.CLAIM, link.id), link, part) for link, part in fitting]
            taken = [(_claim(row, link.arm, part), part) for row, link, part in moved if row is not None]
            if not taken:
                return ()
            same = {"study_id": study_id, "engine": engine, "worker": worker}
            same |= reserve(connection, budget, len(taken))
            own = [
                {"run_id": c.run_id, "token": c.token, "submit_name": c.submit_name, "gpus": c.gpus, "cpus": part.cpus}
                for c, part in taken
            ]
            connection.execute(statements.intents(now), [statements.UNKNOWN | same | each for each in own])
            note(connection, taken)
        return tuple(claim for claim, _ in taken)

    @again
    def register(self, host: str, devices: Collection[Device]) -> Mapping[str, int]:
        """Write down the devices of a host that are leased from now on; return their numbers by name."""
        with self.database.write() as connection:
            self.database.alone(connection, f"devices of {host}")
            return register(connection, host, devices)

    @again
    def cordon(self, device: int, reason: str) -> None:
        """Let no run have a device any more; without a reason: again."""
        with self.database.write() as connection:
            cordon(connection, device, reason)

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
        text = canonical_json(dict(payload))
        digest = payload_hash(text)
        move = Move.STOP_EARLY if stopped_early else Move.SUCCEED
        with self.database.write() as connection:
            row = self._move(connection, move, run_id, token)
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
                move, wait_s = _after_failure(kind, count)
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
                reason, wait_s = "no heartbeat: the lease ran out", backoff_s(row[1])
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


def _claim(row: sa.Row[Any], arm: str, held: Held) -> Claim:
    return Claim(
        run_id=row.id,
        fingerprint=row.fingerprint,
        arm=arm,
        seed=row.seed,
        token=row.token,
        submit_name=f"paribus-{row.fingerprint[:SHORT]}-a{row.token}",
        gpus=held.gpus,
        devices=held.names,
    )


def _require(row: sa.Row[Any] | None, run_id: int, token: int) -> sa.Row[Any]:
    if row is None:
        raise _lost(run_id, token)
    return row


def _lost(run_id: int, token: int) -> LostLease:
    return LostLease(f"attempt {token} no longer holds run {run_id}")


def _after_failure(kind: FailureKind, count: int) -> tuple[Move, float]:
    if kind == "program":
        return (Move.QUARANTINE if count >= PROGRAM_TRIES else Move.RETRY), 0.0
    return (Move.FAIL if count >= INFRASTRUCTURE_TRIES else Move.RETRY), backoff_s(count)
