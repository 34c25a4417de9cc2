"""The life of an attempt: claim, start, heartbeats and exactly one end.

A stale attempt changes nothing: each call carries the fence token of its claim, and a row changes only where that token
is still the newest. All functions run in the caller's transaction. Statements are built once per clock, because
building one costs more than executing it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from paribus.errors import LostLease
from paribus.run_folder.folder import SHORT
from paribus.store import tables as t
from paribus.store.budget import lock_budget, reserve
from paribus.store.control import pause_all, pause_same_failures
from paribus.store.database import serialize
from paribus.store.devices import Allocation, Pool, allocate, record_leases
from paribus.store.models import AttemptRecord, BudgetRecord, Claim, FailureKind, Renewal, payload_hash, unit_of
from paribus.store.reader import attempt_record, attempts
from paribus.store.states import LIVE, TRACKED, Move, RunState, target_of
from paribus.store.transitions import ATTEMPT, FENCED, LEASE_S, Now, before, fence_params, move_run, move_runs

PROGRAM_TRIES = 2
"""Failures of the program before a run is quarantined."""

INFRASTRUCTURE_TRIES = 5
"""Failures of the infrastructure before a run has failed."""

REQUEUE_TRIES = 3
"""Requests in a row to be requeued without progress before a run is quarantined."""

INTERRUPTION_TRIES = 5
"""Interruptions in a row, each before a new step was written, before a run is quarantined."""

BACKOFF_MAX_S = 1800.0
"""Longest wait before the next attempt, in seconds."""

ANYWHERE = "/"
"""First character of the name of a worker whose attempts go on without a scheduler: it belongs to a home folder, not to
a host, and only the scheduler of that folder can ask the engine what has become of them."""

FOREIGN_S = 7 * 86400.0
"""Seconds of silence after which other schedulers of the same database take back the run of such an attempt."""

SILENT = "its program gave no sign of life"
"""Why an external run counts as failed whose lease has ended."""

_BACKOFF_S, _JITTER = 30.0, 0.2
_STUCK = "asked to be queued again without coming further"
_INTERRUPTED = "interrupted without a new step"
_ADVICE = "Write checkpoints more often, give runs more time before they are stopped, or use a queue that preempts less"
_RELEASES = (Move.RELEASE, Move.QUARANTINE, Move.CANCEL)
_FAILURES = (Move.RETRY, Move.FAIL, Move.QUARANTINE, Move.CANCEL)


def backoff_s(failures: int, run_id: int, token: int) -> float:
    """Return the seconds to wait before the next attempt after infrastructure failures; the first one is free.

    The wait doubles with each failure, with a jitter of up to a fifth, so that runs that failed together (a lost host)
    do not return together. The jitter depends on run and token only: the same history has the same waits.

    Args:
        failures: infrastructure failures of the run, this one included.
        run_id: the run.
        token: fence token of the failed attempt.
    """
    if failures <= 1:
        return 0.0
    digits = int(sha256(f"{run_id} {token}".encode()).hexdigest()[:8], 16)
    return min((1 + _JITTER * (digits / 2**31 - 1)) * _BACKOFF_S * 2.0 ** (failures - 2), BACKOFF_MAX_S)


def claim(
    connection: sa.Connection,
    now: Now,
    study_id: int,
    count: int,
    *,
    engine: str,
    worker: str,
    gpus: float,
    pool: Pool | None,
) -> tuple[Claim, ...]:
    """Claim up to ``count`` runs, reserve their cost and devices, insert their attempts; see ``Store.claim_many``."""
    found = connection.execute(_ready(now), {"asking": study_id, "most": count}).all()
    if not found:
        return ()
    budget = lock_budget(connection, now, found[0].name, unit_of(gpus))
    allowed = found[: budget.allows(len(found))]
    allocations: Sequence[Allocation] = [Allocation(gpus=gpus)] * len(allowed)
    if pool is not None and allowed:
        serialize(connection, f"devices of {pool.host}")
        allocations = allocate(connection, pool, len(allowed))
    fitting = zip(allowed, allocations, strict=False)  # runs that do not fit on the host stay queued
    moved = [(move_run(connection, now, Move.CLAIM, link.id), link.arm, held) for link, held in fitting]
    taken = [(_claim(row, arm, held), held) for row, arm, held in moved if row is not None]
    return _opened(connection, now, study_id, taken, budget, engine=engine, worker=worker)


def claim_external(
    connection: sa.Connection, now: Now, study_id: int, fingerprint: str, *, engine: str, worker: str
) -> Claim | None:
    """Claim one queued run whose program needs no scheduler; ``None`` if it is not queued."""
    query = sa.select(t.run.c.id, t.study_run.c.arm, t.study.c.name)
    query = query.join(t.study_run, t.study_run.c.run_id == t.run.c.id)
    query = query.join(t.study, t.study.c.id == t.study_run.c.study_id)
    found = connection.execute(query.where(t.study.c.id == study_id, t.run.c.fingerprint == fingerprint)).one()
    row = move_run(connection, now, Move.CLAIM, found.id)
    if row is None:
        return None
    held = Allocation(gpus=0.0)
    budget = lock_budget(connection, now, found.name, "cpu")
    taken = [(_claim(row, found.arm, held), held)]
    return _opened(connection, now, study_id, taken, budget, engine=engine, worker=worker)[0]


def requeue_external(connection: sa.Connection, now: Now, fingerprint: str) -> None:
    """Queue a run whose program was started again after it had failed, or after its lease had ended."""
    which = t.run.c.fingerprint == fingerprint
    move_runs(connection, now, Move.EXPIRE, which, reason=SILENT)
    move_runs(connection, now, Move.RERUN, which, reason="its program was started again")


def lose(connection: sa.Connection, now: Now, run_id: int, token: int, reason: str) -> None:
    """Record that the program of an external run has ended without a result; see ``Store.lose``.

    Raises:
        LostLease: the attempt no longer holds the run.
    """
    row = _end(connection, now, Move.FAIL, run_id, token, reason, signature="", wait_s=0.0, ago_s=None)
    _state_after(connection, row, run_id, token, (Move.FAIL, Move.CANCEL), (reason, ""))


def _opened(
    connection: sa.Connection,
    now: Now,
    study_id: int,
    taken: Sequence[tuple[Claim, Allocation]],
    budget: BudgetRecord,
    *,
    engine: str,
    worker: str,
) -> tuple[Claim, ...]:
    """Insert the attempts of these claims, and reserve their cost."""
    if not taken:
        return ()
    common: dict[str, Any] = {"study_id": study_id, "engine": engine, "worker": worker}
    common |= reserve(connection, budget, len(taken))
    rows = [
        {"run_id": c.run_id, "token": c.token, "submit_name": c.submit_name, "gpus": c.gpus, "cpus": held.cpus}
        for c, held in taken
    ]
    connection.execute(_new_attempts(now), [_NOT_KNOWN_YET | common | row for row in rows])
    record_leases(connection, taken)
    return tuple(claim for claim, _ in taken)


def _claim(row: sa.Row[Any], arm: str, held: Allocation) -> Claim:
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


def set_external_id(connection: sa.Connection, run_id: int, token: int, external_id: str) -> None:
    """Record the engine's own id of an attempt."""
    connection.execute(_SET_EXTERNAL_ID, fence_params(run_id, token) | {"called": external_id})


def start(connection: sa.Connection, now: Now, run_id: int, token: int, ago_s: float = 0.0) -> Renewal:
    """Move a claimed run to RUNNING and renew its lease; a repeated call only renews.

    The attempt may have started ``ago_s`` seconds ago, without a scheduler.

    Raises:
        LostLease: the attempt no longer holds the run.
    """
    row = move_run(connection, now, Move.START, run_id, token)
    if row is None:
        return renew(connection, now, run_id, token)
    connection.execute(_started(now), fence_params(run_id, token) | {"ago": ago_s})
    return Renewal(lease_s=LEASE_S, cancel=row.cancel_requested)


def renew(connection: sa.Connection, now: Now, run_id: int, token: int) -> Renewal:
    """Extend the lease.

    Raises:
        LostLease: the attempt no longer holds the run.
    """
    row = connection.execute(_renewed(now), fence_params(run_id, token)).one_or_none()
    if row is None:
        raise _lost(run_id, token)
    return Renewal(lease_s=LEASE_S, cancel=row.cancel_requested)


def finish(
    connection: sa.Connection,
    now: Now,
    run_id: int,
    token: int,
    payload: str,
    move: Move,
    reason: str,
    *,
    ago_s: float | None = None,
) -> None:
    """Record a result (canonical JSON) by ``SUCCEED`` or ``STOP_EARLY``, once; the same call again changes nothing.

    Raises:
        LostLease: the attempt no longer holds the run, or the run has another result.
    """
    digest = payload_hash(payload)
    row = move_run(connection, now, move, run_id, token, reason, ago_s=ago_s)
    if row is not None:
        record = {"run_id": run_id, "token": token, "payload": payload, "payload_hash": digest}
        connection.execute(_new_result(now), record)
        return
    same = connection.execute(_RECORDED_RESULT, {"this_run": run_id}).one_or_none()
    if same is None or (same.token, same.payload_hash) != (token, digest):
        raise LostLease(f"run {run_id} refuses the result of attempt {token}")


def release(
    connection: sa.Connection,
    now: Now,
    run_id: int,
    token: int,
    reason: str,
    *,
    wait_s: float,
    step: int | None,
    reached: int | None,
    ago_s: float | None = None,
) -> RunState:
    """Requeue an interrupted run; see ``Store.release``.

    Raises:
        LostLease: the attempt no longer holds the run.
    """
    given, move, signature = reason, Move.RELEASE, ""
    tries, why, advice = REQUEUE_TRIES, _STUCK, ""
    if step is None:
        tries, why, advice = INTERRUPTION_TRIES, _INTERRUPTED, f". {_ADVICE}"
    stuck = f"{why}, {tries} times in a row: {reason}{advice}"
    newest = reached if step is None else step
    count = 0 if newest is None else _count_requeue(connection, run_id, token, newest)
    if count >= tries:
        move, signature, reason = Move.QUARANTINE, why, stuck
    elif step is None:
        wait_s = max(wait_s, backoff_s(count, run_id, token))
    row = _end(connection, now, move, run_id, token, reason, signature=signature, wait_s=wait_s, ago_s=ago_s)
    return _state_after(connection, row, run_id, token, _RELEASES, (given, ""), (stuck, why))


def _count_requeue(connection: sa.Connection, run_id: int, token: int, step: int) -> int:
    """Return how many attempts in a row, with this one, have ended without a result and without a new step."""
    further = t.run.c.step < step
    values = {
        "requeues": sa.case((further, 0), else_=t.run.c.requeues + 1),
        "step": sa.case((further, step), else_=t.run.c.step),
    }
    counted = sa.update(t.run).where(FENCED).values(values).returning(t.run.c.requeues)
    return int(connection.execute(counted, fence_params(run_id, token)).scalar() or 0)


def fail(
    connection: sa.Connection,
    now: Now,
    run_id: int,
    token: int,
    kind: FailureKind,
    reason: str,
    signature: str,
    *,
    ago_s: float | None = None,
) -> RunState:
    """Count a failed attempt and requeue or end its run; see ``Store.fail``.

    Raises:
        LostLease: the attempt no longer holds the run.
    """
    if kind == "storage":
        row = _end(connection, now, Move.RETRY, run_id, token, reason, signature=signature, wait_s=0.0, ago_s=ago_s)
        if row is not None:
            pause_all(connection, run_id, reason)
        return _state_after(connection, row, run_id, token, _FAILURES, (reason, signature))
    column = t.run.c.program_failures if kind == "program" else t.run.c.infrastructure_failures
    counted = sa.update(t.run).where(FENCED).values({column: column + 1})
    count = connection.execute(counted.returning(column), fence_params(run_id, token)).scalar()
    row = None
    if count is not None:
        move, wait_s = _after_failure(kind, count, run_id, token)
        row = _end(connection, now, move, run_id, token, reason, signature=signature, wait_s=wait_s, ago_s=ago_s)
    return _state_after(connection, row, run_id, token, _FAILURES, (reason, signature))


def _after_failure(kind: FailureKind, count: int, run_id: int, token: int) -> tuple[Move, float]:
    if kind == "program":
        return (Move.QUARANTINE if count >= PROGRAM_TRIES else Move.RETRY), 0.0
    return (Move.FAIL if count >= INFRASTRUCTURE_TRIES else Move.RETRY), backoff_s(count, run_id, token)


def cancelled(connection: sa.Connection, now: Now, run_id: int, token: int, *, ago_s: float | None = None) -> None:
    """Record that an attempt has obeyed a request to cancel.

    Raises:
        LostLease: the attempt no longer holds the run, or there was no request to cancel.
    """
    row = move_run(connection, now, Move.CANCEL, run_id, token, "cancelled", ago_s=ago_s)
    _state_after(connection, row, run_id, token, (Move.CANCEL,), ("cancelled", ""))


def expire(connection: sa.Connection, now: Now, worker: str) -> tuple[AttemptRecord, ...]:
    """Take back the runs whose lease has ended; see ``Store.expire``."""
    lost: list[AttemptRecord] = []
    over = sa.and_(t.run.c.state.in_(LIVE), t.run.c.lease_until < now, sa.not_(_tracked()))
    mine = sa.or_(sa.not_(_alone(worker)), t.run.c.lease_until < now - FOREIGN_S)
    # skips runs that a supervisor is renewing right now; ordered, so that two schedulers never block each other
    candidates = sa.select(t.run.c.id).where(over, mine).order_by(t.run.c.id).with_for_update(skip_locked=True)
    count = t.run.c.infrastructure_failures
    for run_id in connection.execute(candidates).scalars().all():
        counted = sa.update(t.run).where(t.run.c.id == run_id, over).values({count: count + 1})
        row = connection.execute(counted.returning(t.run.c.token, count)).one_or_none()
        if row is None:
            continue
        reason, wait_s = "no heartbeat from the supervisor", backoff_s(row[1], run_id, row.token)
        for move in (Move.LAPSE, Move.ABANDON if row[1] >= INFRASTRUCTURE_TRIES else Move.EXPIRE):
            if move_run(connection, now, move, run_id, row.token, reason, wait_s=wait_s) is not None:
                break
        held = attempts().where(t.attempt.c.run_id == run_id, t.attempt.c.token == row.token)
        lost.append(attempt_record(connection.execute(held).one()))
    return tuple(lost)


def _tracked() -> sa.ColumnElement[bool]:
    """Return whether a run is held by a program that no scheduler has started, and none can start again."""
    attempt = t.attempt.c
    holds = sa.and_(attempt.run_id == t.run.c.id, attempt.token == t.run.c.token)
    return sa.exists().where(holds, attempt.engine == TRACKED)


def _alone(worker: str) -> sa.ColumnElement[bool]:
    """Return whether an attempt that goes on without its scheduler, which isn't this one, holds a run."""
    attempt = t.attempt.c
    holds = sa.and_(attempt.run_id == t.run.c.id, attempt.token == t.run.c.token)
    return sa.exists().where(holds, attempt.worker.startswith(ANYWHERE), attempt.worker != worker)


# ---- ends --------------------------------------------------------------------------------------------


def _end(
    connection: sa.Connection,
    now: Now,
    move: Move,
    run_id: int,
    token: int,
    reason: str,
    *,
    signature: str,
    wait_s: float,
    ago_s: float | None,
) -> sa.Row[Any] | None:
    """End an attempt without a result: cancel its run if that was requested, otherwise make the move."""
    row = move_run(connection, now, Move.CANCEL, run_id, token, reason, signature=signature, ago_s=ago_s)
    if row is None:
        row = move_run(connection, now, move, run_id, token, reason, signature=signature, wait_s=wait_s, ago_s=ago_s)
        if row is not None and signature:
            pause_same_failures(connection, run_id, signature, reason)
    if row is None:  # cancelled between the two statements
        row = move_run(connection, now, Move.CANCEL, run_id, token, reason, signature=signature, ago_s=ago_s)
    return row


def _state_after(
    connection: sa.Connection,
    row: sa.Row[Any] | None,
    run_id: int,
    token: int,
    moves: Collection[Move],
    *reports: tuple[str, str],
) -> RunState:
    """Return the run's state after this report; for a duplicate report, the state after the first.

    Args:
        connection: a transaction.
        row: the run, if this report ended the attempt.
        run_id: the run.
        token: fence token of the attempt.
        moves: moves that such a report can cause.
        reports: reason and signature that such a report leaves.

    Raises:
        LostLease: the attempt had ended in another way.
    """
    if row is not None:
        return RunState(row.state)
    end = connection.execute(_ENDED, fence_params(run_id, token)).one_or_none()
    after = None
    if end is not None and end.outcome in moves and (end.reason, end.signature) in reports:
        after = target_of(Move(end.outcome), RunState.RUNNING)
    if after is None:
        raise _lost(run_id, token)
    return after


def _lost(run_id: int, token: int) -> LostLease:
    return LostLease(f"attempt {token} no longer holds run {run_id}")


# ---- statements --------------------------------------------------------------------------------------


@lru_cache
def _ready(now: Now) -> sa.Select[Any]:
    """Return the query for the next claimable runs of a study, in queue order."""
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
def _new_attempts(now: Now) -> sa.Insert:
    return sa.insert(t.attempt).values(claimed_at=now)


@lru_cache
def _started(now: Now) -> sa.Update:
    return ATTEMPT.values(started_at=before(now, sa.bindparam("ago", type_=sa.Float)))


@lru_cache
def _renewed(now: Now) -> sa.UpdateBase:
    return sa.update(t.run).where(FENCED).values(lease_until=now + LEASE_S).returning(t.run.c.cancel_requested)


@lru_cache
def _new_result(now: Now) -> sa.Insert:
    return sa.insert(t.result).values(at=now)


_NOT_KNOWN_YET: dict[str, Any] = {"external_id": "", "outcome": "", "reason": "", "signature": ""}
_SET_EXTERNAL_ID = ATTEMPT.values(external_id=sa.bindparam("called"))
_ENDED = sa.select(t.attempt.c.outcome, t.attempt.c.reason, t.attempt.c.signature).where(
    t.attempt.c.run_id == sa.bindparam("this_run"), t.attempt.c.token == sa.bindparam("fence")
)
_RECORDED_RESULT = sa.select(t.result.c.token, t.result.c.payload_hash).where(
    t.result.c.run_id == sa.bindparam("this_run")
)
