"""The store, opened for writing: each change is one transaction, with one line in the event log per run that it moves.

The methods only open transactions and call the plain functions of `attempts`, `control` and `devices`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import sqlalchemy as sa

from paribus.contract import Device
from paribus.errors import StoreError
from paribus.home import make_home
from paribus.recipe.recipe import canonical_json
from paribus.run_folder.folder import SHORT
from paribus.store import attempts, control, deletion, remarks
from paribus.store import tables as t
from paribus.store.database import Database, analyze, database_url, retry_on_disconnect, serialize
from paribus.store.deletion import Deletion
from paribus.store.devices import Pool, register
from paribus.store.migrate import migrate, refuse_other_version
from paribus.store.models import (
    AttemptRecord,
    CancelResult,
    Claim,
    FailureKind,
    Renewal,
    RetryResult,
    StudyRecord,
    Terms,
)
from paribus.store.reader import Reader
from paribus.store.states import TRACKED, Move, RunState
from paribus.study.plan import Plan


class Store(Reader):
    """The store, opened for writing: on SQLite by one process per host."""

    @classmethod
    def open(cls, home: Path, *, clock: Callable[[], float] | None = None) -> Store:
        """Open the store of ``home``; create it, or upgrade an older SQLite file, if necessary.

        Raises:
            StoreError: it cannot be reached, or another version of Paribus wrote it.
        """
        make_home(home)
        database = Database(database_url(home), clock)
        try:
            migrate(database, home / "migrate.lock")
        except StoreError:
            database.close()
            raise
        return cls(database, home)

    # ---- studies ---------------------------------------------------------------------------------

    @retry_on_disconnect
    def add_study(self, plan: Plan, **terms: Unpack[Terms]) -> StudyRecord:
        """Submit a plan. The same plan again only changes its terms; runs that another study has are shared."""
        with self.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            number = control.submit(connection, self.database.now(), plan, terms)
            analyze(connection, t.run, t.study_run)
        return self.study_by_id(number)

    @retry_on_disconnect
    def record(self, plan: Plan, results: Mapping[str, Mapping[str, Any]], *, engine: str, worker: str) -> StudyRecord:
        """Submit an external plan whose runs have ended already, with their results, in one transaction.

        Their folders are there before. Such a plan counts as declared after its results.

        Args:
            plan: the plan.
            results: fingerprint to result, of runs of the plan that have none yet.
            engine: how they came here, in place of an engine.
            worker: this host.

        Raises:
            StoreError: a run is held by an attempt.
        """
        with self.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            now = self.database.now()
            number = control.submit(connection, now, plan, {})
            for fingerprint, payload in results.items():
                claim = attempts.claim_external(connection, now, number, fingerprint, engine=engine, worker=worker)
                if claim is None:
                    raise StoreError(f"the run {fingerprint[:SHORT]} is recorded by another process: try again.")
                attempts.start(connection, now, claim.run_id, claim.token)
                attempts.finish(connection, now, claim.run_id, claim.token, _text(payload), Move.SUCCEED, "")
            control.declare_after(connection, number, list(results))
            analyze(connection, t.run, t.study_run)
        return self.study_by_id(number)

    @retry_on_disconnect
    def begin_external(
        self, study: str, join: Callable[[Plan | None, Callable[[str], RunState | None]], tuple[Plan, str]], worker: str
    ) -> Claim | None:
        """Start an attempt at a run that a program of its own trains, in one transaction with its plan.

        Args:
            study: name.
            join: gets the newest plan of the name, if there is one, and a function from a fingerprint to the state of
                its run; returns the plan with the run in it, and the fingerprint of the run.
            worker: this host.

        Returns:
            The claim; ``None`` if another attempt holds the run, or it has a result.

        Raises:
            StoreError: a study that is trained has the name.
        """
        with self.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            now = self.database.now()
            states = partial(control.state_of, connection)
            plan, fingerprint = join(control.newest_plan(connection, study), states)
            number = control.submit(connection, now, plan, {})
            attempts.requeue_external(connection, now, fingerprint)
            claim = attempts.claim_external(connection, now, number, fingerprint, engine=TRACKED, worker=worker)
            if claim is not None:
                attempts.start(connection, now, claim.run_id, claim.token)
        return claim

    @retry_on_disconnect
    def lose(self, run_id: int, token: int, reason: str) -> None:
        """Record that the program of an external run has ended without a result; the same call again changes nothing.

        Raises:
            LostLease: the attempt no longer holds the run.
        """
        with self.database.write() as connection:
            attempts.lose(connection, self.database.now(), run_id, token, reason)

    @retry_on_disconnect
    def cancel(self, study: str, arm: str | None = None, *, run: str | None = None) -> CancelResult:
        """Cancel the runs of a study, of one of its arms, or one run, that no other study needs.

        Queued runs are cancelled at once, live ones at their next heartbeat; such a run may still finish first.

        Args:
            study: name; all plans of this name are cancelled.
            arm: key of an arm; ``None``: all.
            run: fingerprint of a run; ``None``: all.
        """
        with self.database.write() as connection:
            serialize(connection, "submit")
            return control.cancel_study(connection, self.database.now(), study, arm, run)

    @retry_on_disconnect
    def retry(
        self, study: str, arm: str | None = None, *, author: str, reason: str, run: str | None = None
    ) -> RetryResult:
        """Requeue the runs of a study, of an arm, or one run, that ended without a result, and lift its pause.

        Each run begins a new generation: its failures are counted from zero, its earlier attempts are kept.

        Args:
            study: name; its newest plan is retried.
            arm: key of an arm; ``None``: all.
            author: who asks.
            reason: why.
            run: fingerprint of a run; ``None``: all.
        """
        newest = self.study(study)
        if newest.plan.external:
            raise StoreError(f"`{study}` has runs that Paribus did not start, so it cannot start them again.")
        why = f"retried by {author}: {reason}"
        with self.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            return control.retry_study(connection, self.database.now(), newest.id, study, arm, why, run)

    @retry_on_disconnect
    def set_priority(self, study: str, priority: int) -> None:
        """Set the priority of the newest plan of a name; the next claim heeds it."""
        newest = self.study(study)
        with self.database.write() as connection:
            refuse_other_version(connection)
            connection.execute(sa.update(t.study).where(t.study.c.id == newest.id).values(priority=priority))

    @retry_on_disconnect
    def pause(self, study_id: int, reason: str) -> None:
        """Claim no more runs of a study until :meth:`retry`. A study that is paused already keeps its reason."""
        with self.database.write() as connection:
            control.pause(connection, study_id, reason)

    @retry_on_disconnect
    def remark(self, subject: remarks.Subject, change: remarks.Change, author: str) -> remarks.About:
        """Note or tag a study or run, or archive a study. The same change again changes nothing.

        Args:
            subject: which; :meth:`subject` finds it.
            change: what to change.
            author: who says it.

        Returns:
            What holds now.

        Raises:
            StoreError: the note or a tag is not allowed, or the study or run is gone.
        """
        change = remarks.checked(change)
        if change.archived is not None and subject.run:
            raise StoreError("only a study is archived, with all its runs: name the study.")
        with self.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            control.require(connection, subject)
            return remarks.change_remarks(connection, self.database.now(), subject, author, change)

    @retry_on_disconnect
    def delete_study(self, expected: Deletion, author: str) -> None:
        """Delete a study with the runs that no other study has, as :meth:`what_goes` has shown it. Files stay.

        Raises:
            StoreError: something of it has changed since, or has not ended.
        """
        with self.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            deletion.delete_study(connection, self.database.now(), expected, author)

    # ---- claims and devices ----------------------------------------------------------------------

    def claim(
        self, study_id: int, *, engine: str, worker: str, gpus: float = 0.0, pool: Pool | None = None
    ) -> Claim | None:
        """Claim the next queued run of a study; see :meth:`claim_many`."""
        return next(iter(self.claim_many(study_id, 1, engine=engine, worker=worker, gpus=gpus, pool=pool)), None)

    @retry_on_disconnect
    def claim_many(
        self, study_id: int, count: int, *, engine: str, worker: str, gpus: float = 0.0, pool: Pool | None = None
    ) -> tuple[Claim, ...]:
        """Claim the next queued runs of a study, each under a new fence token; reserve their cost and devices.

        Args:
            study_id: the study.
            count: most runs to claim, all in one transaction.
            engine: where they will run.
            worker: host of the scheduler.
            gpus: GPUs that each run holds, where a cluster chooses them.
            pool: devices of the host to choose from; ``None`` where a cluster chooses.

        Returns:
            The claims in queue order; empty if no run is ready, the study is paused, or too little is left of its
            budget or of the host.
        """
        with self.database.write() as connection:
            refuse_other_version(connection)
            where: dict[str, Any] = {"engine": engine, "worker": worker, "gpus": gpus, "pool": pool}
            return attempts.claim(connection, self.database.now(), study_id, count, **where)

    @retry_on_disconnect
    def register(self, host: str, devices: Collection[Device]) -> Mapping[str, int]:
        """Record the devices of a host that runs may hold; return their numbers by name."""
        with self.database.write() as connection:
            serialize(connection, f"devices of {host}")
            return register(connection, host, devices)

    # ---- attempts --------------------------------------------------------------------------------

    @retry_on_disconnect
    def set_external_id(self, run_id: int, token: int, external_id: str) -> None:
        """Record the engine's own id of an attempt. It is not flushed to disk: engines find jobs by submit name."""
        with self.database.write(flush=False) as connection:
            attempts.set_external_id(connection, run_id, token, external_id)

    @retry_on_disconnect
    def start(self, run_id: int, token: int, *, ago_s: float = 0.0) -> Renewal:
        """Record that the supervisor runs, and renew its lease; a repeated call only renews.

        It may have begun ``ago_s`` seconds ago, without a scheduler.

        On SQLite this does not wait for the disk: a power cut also ends the attempt. A server that restarts must still
        know the start, or it would refuse the result of an attempt that went on.

        Raises:
            LostLease: the attempt no longer holds the run.
        """
        with self.database.write(flush=not self.database.embedded) as connection:
            return attempts.start(connection, self.database.now(), run_id, token, ago_s)

    @retry_on_disconnect
    def renew(self, run_id: int, token: int) -> Renewal:
        """Extend the lease.

        This does not wait for the disk. An attempt whose renewal is lost in a power cut renews again, or its lease
        ends, which is always safe.

        Raises:
            LostLease: the attempt no longer holds the run.
        """
        with self.database.write(flush=False) as connection:
            return attempts.renew(connection, self.database.now(), run_id, token)

    @retry_on_disconnect
    def finish(
        self,
        run_id: int,
        token: int,
        payload: Mapping[str, Any],
        *,
        stopped_early: bool = False,
        ago_s: float | None = None,
    ) -> None:
        """Record the result of a run, once. The same call again changes nothing.

        Args:
            run_id: the run.
            token: fence token of the attempt.
            payload: the result.
            stopped_early: whether a detector stopped it.
            ago_s: seconds since the attempt ended, without a scheduler; ``None``: it ends now.

        Raises:
            LostLease: the attempt no longer holds the run, or the run has another result.
        """
        text = _text(payload)
        move, reason = Move.SUCCEED, ""
        if stopped_early:
            move, reason = Move.STOP_EARLY, str(payload.get("reason", ""))
        with self.database.write() as connection:
            attempts.finish(connection, self.database.now(), run_id, token, text, move, reason, ago_s=ago_s)

    @retry_on_disconnect
    def release(
        self,
        run_id: int,
        token: int,
        reason: str,
        *,
        wait_s: float = 0.0,
        step: int | None = None,
        reached: int | None = None,
        ago_s: float | None = None,
    ) -> RunState:
        """Requeue an interrupted run. It does not count as a failure, unless the run makes no progress.

        Args:
            run_id: the run.
            token: fence token of the attempt.
            reason: why.
            wait_s: seconds before the next attempt.
            step: newest step of an attempt that asked to be requeued; ``None``: it was interrupted from outside.
            reached: newest step of an attempt that was interrupted, for example by the preemption of its job; ``None``:
                by a user or the end of the scheduler, which is never counted.
            ago_s: seconds since the attempt ended, without a scheduler; ``None``: it ends now.

        Returns:
            The state of the run now.

        Raises:
            LostLease: the attempt no longer holds the run.
        """
        with self.database.write() as connection:
            now = self.database.now()
            steps = {"step": step, "reached": reached}
            return attempts.release(connection, now, run_id, token, reason, wait_s=wait_s, **steps, ago_s=ago_s)

    @retry_on_disconnect
    def fail(
        self,
        run_id: int,
        token: int,
        kind: FailureKind,
        reason: str,
        signature: str = "",
        *,
        ago_s: float | None = None,
    ) -> RunState:
        """Count a failed attempt, and requeue or end its run.

        A study is paused when :data:`~paribus.store.control.SAME_FAILURES` of its arms have failed with one signature.
        A full or broken disk (``storage``) pauses at once and counts against no run: every other attempt would fail
        on it, too.

        Returns:
            The state of the run now.

        Raises:
            LostLease: the attempt no longer holds the run.
        """
        with self.database.write() as connection:
            now = self.database.now()
            return attempts.fail(connection, now, run_id, token, kind, reason, signature, ago_s=ago_s)

    @retry_on_disconnect
    def cancelled(self, run_id: int, token: int, *, ago_s: float | None = None) -> None:
        """Record that an attempt has obeyed a request to cancel.

        Raises:
            LostLease: the attempt no longer holds the run, or there was no request to cancel.
        """
        with self.database.write() as connection:
            attempts.cancelled(connection, self.database.now(), run_id, token, ago_s=ago_s)

    @retry_on_disconnect
    def expire(self, worker: str = "") -> tuple[AttemptRecord, ...]:
        """Take back the runs whose lease has ended, unless their attempts may go on without their scheduler.

        Args:
            worker: the scheduler that asks, which has renewed the leases of such attempts of its own if it could.

        Returns:
            The attempts that lost their run. Kill what is left of their processes.
        """
        with self.database.write() as connection:
            return attempts.expire(connection, self.database.now(), worker)


def _text(payload: Mapping[str, Any]) -> str:
    """Return a result as it is stored; lone surrogates, which no database stores, are replaced."""
    return canonical_json(dict(payload)).encode(errors="replace").decode()
