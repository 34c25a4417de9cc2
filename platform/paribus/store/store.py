"""The public classes: :class:`Reader` reads the store, :class:`Store` also changes it.

Both only open transactions and call the plain functions of `queries`, `attempts`, `control`, `budget` and `devices`.
Every change is one transaction with one line in the event log per run that it moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import sqlalchemy as sa

from paribus.contract import Device
from paribus.errors import StoreError, did_you_mean
from paribus.recipe.recipe import canonical_json
from paribus.store import attempts, control, queries
from paribus.store import tables as t
from paribus.store.budget import UNITS, read_budget
from paribus.store.database import FILE, Database, analyze, database_url, retry_on_disconnect, serialize
from paribus.store.devices import Pool, devices_of, register
from paribus.store.migrate import migrate, refuse_other_revision, refuse_other_version
from paribus.store.models import (
    AttemptedRun,
    AttemptRecord,
    BudgetRecord,
    CancelResult,
    Claim,
    DeviceRecord,
    EventRecord,
    FailureKind,
    LeaseRecord,
    Renewal,
    ResultRecord,
    RetryResult,
    RunRecord,
    StudyRecord,
    StudySummary,
    Terms,
    Unit,
)
from paribus.store.states import Move, RunState
from paribus.study.plan import Plan

_ALL = tuple(RunState)


class Reader:
    """A store, opened for reading. Reading never blocks a writer.

    Args:
        database: the database, at the newest revision.
        home: folder that holds ``runs/``.
    """

    def __init__(self, database: Database, home: Path) -> None:
        self.database = database
        self.home = home
        self._labels: dict[int, Mapping[str, str]] = {}

    @classmethod
    def open(cls, home: Path) -> Reader:
        """Open the store of ``home`` for reading.

        Raises:
            StoreError: it does not exist or cannot be reached, or another version wrote it.
        """
        url = database_url(home)
        if url.get_backend_name() == "sqlite" and not (home / FILE).is_file():
            raise StoreError(
                f"there is no store in {home}. Run a study first (paribus run STUDY.yaml), or name --home."
            )
        database = Database(url)
        try:
            refuse_other_revision(database)
        except StoreError:
            database.close()
            raise
        return Reader(database, home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def now(self) -> float:
        """Return the time on the database's clock, in seconds since 1970."""
        with self.database.read() as connection:
            return float(connection.execute(sa.select(self.database.now())).scalar_one())

    # ---- studies ---------------------------------------------------------------------------------

    def studies(self) -> tuple[StudyRecord, ...]:
        """Return all studies, the newest last; each plan of a name is a study of its own."""
        with self.database.read() as connection:
            return queries.studies(connection)

    def study(self, name: str) -> StudyRecord:
        """Return the newest study of a name.

        Raises:
            StoreError: no study has this name; the message lists the names that exist.
        """
        with self.database.read() as connection:
            found = queries.newest_study(connection, name)
            names = [] if found else queries.study_names(connection)
        if found is None:
            raise StoreError(
                f"there is no study `{name}` in {self.home}.{did_you_mean(name, names)} "
                f"Studies: {', '.join(names) or 'none'}."
            )
        return found

    def study_by_id(self, study_id: int) -> StudyRecord:
        """Return the study with this number."""
        with self.database.read() as connection:
            return queries.study_by_id(connection, study_id)

    def summaries(self, studies: Collection[int] | None = None) -> tuple[StudySummary, ...]:
        """Return all studies, or some, in the order of :meth:`studies`, without reading their plans."""
        with self.database.read() as connection:
            return queries.summaries(connection, studies)

    def latest_version(self, plan: Plan) -> Plan:
        """Return the plan to continue with: the largest submitted plan that grew from this one, else this one.

        Budget and display settings are those of the given plan.
        """
        with self.database.read() as connection:
            found = [p for p in queries.plans_of(connection, plan.study) if p.origin == plan.fingerprint]
        return max(found, key=lambda p: len(p.all_runs)).under(plan) if found else plan

    def paused(self, study_id: int) -> str:
        """Return why a study is paused; empty if it is not."""
        with self.database.read() as connection:
            return queries.paused(connection, study_id)

    def budget(self, study: str, unit: Unit) -> BudgetRecord:
        """Return what all plans of a name may spend and have spent in one unit."""
        with self.database.read() as connection:
            return read_budget(connection, self.database.now(), study, unit)

    def within_budget(self, study: str) -> bool:
        """Return whether every budget that a study has spent from allows another attempt."""
        budgets = (self.budget(study, unit) for unit in UNITS)
        return all(b.allows_another for b in budgets if b.spent > 0)

    # ---- runs ------------------------------------------------------------------------------------

    def runs_of(self, study_id: int, states: Collection[RunState] = _ALL) -> tuple[RunRecord, ...]:
        """Return the runs of a study in queue order.

        Args:
            study_id: the study.
            states: only runs in these states, whichever study looks at them.
        """
        with self.database.read() as connection:
            return self._records(connection, study_id, queries.run_rows(connection, study_id, states))

    def runs_page(
        self, study_id: int, first: int, most: int, states: Collection[RunState] = _ALL
    ) -> tuple[RunRecord, ...]:
        """Return one page of the runs of a study in queue order, without reading the others.

        Args:
            study_id: the study.
            first: number of runs to skip.
            most: length of the page.
            states: only runs in these states, as this study sees them and :meth:`counts` counts them.
        """
        with self.database.read() as connection:
            rows = queries.run_rows(connection, study_id, states, as_seen=True, first=first, most=most)
            return self._records(connection, study_id, rows)

    def _records(self, connection: sa.Connection, study_id: int, rows: Sequence[sa.Row[Any]]) -> tuple[RunRecord, ...]:
        if study_id not in self._labels:  # a plan's labels never change
            self._labels[study_id] = queries.arm_labels(connection, study_id)
        labels = self._labels[study_id]
        return tuple(queries.run_record(row, labels[row.arm]) for row in rows)

    def counts(self, study_id: int) -> Mapping[RunState, int]:
        """Return the number of runs of a study in each state that occurs."""
        found: Counter[RunState] = Counter()
        for (_, state), count in self.counts_by_arm(study_id).items():
            found[state] += count
        return dict(found)

    def counts_by_arm(self, study_id: int) -> Mapping[tuple[str, RunState], int]:
        """Return the number of runs of each arm (its key) in each state that occurs."""
        with self.database.read() as connection:
            return queries.counts_by_arm(connection, study_id)

    def states_of(self, fingerprints: Sequence[str]) -> Mapping[str, RunState]:
        """Return the states of the runs that exist, by fingerprint."""
        with self.database.read() as connection:
            return queries.states_of(connection, fingerprints)

    def result(self, fingerprint: str) -> ResultRecord | None:
        """Return the result of a run; ``None`` if it has none yet."""
        return self.results([fingerprint]).get(fingerprint)

    def results(self, fingerprints: Sequence[str]) -> Mapping[str, ResultRecord]:
        """Return the results of the runs that have one, by fingerprint."""
        with self.database.read() as connection:
            return queries.results(connection, fingerprints)

    def events_of(self, run_id: int) -> tuple[EventRecord, ...]:
        """Return the events of a run, oldest first."""
        with self.database.read() as connection:
            return queries.events_of(connection, run_id)

    # ---- attempts and devices --------------------------------------------------------------------

    def attempts_of(self, study_id: int) -> tuple[AttemptRecord, ...]:
        """Return all attempts at the runs of a study, oldest first, also those that another study made."""
        with self.database.read() as connection:
            return queries.attempts_of(connection, study_id)

    def live_attempts(self) -> tuple[AttemptRecord, ...]:
        """Return the attempts of all studies that hold a run now."""
        with self.database.read() as connection:
            return queries.live_attempts(connection)

    def attempted_runs(self) -> tuple[AttemptedRun, ...]:
        """Return all runs with at least one attempt, oldest first."""
        with self.database.read() as connection:
            return queries.attempted_runs(connection)

    def devices(self, host: str | None = None) -> tuple[DeviceRecord, ...]:
        """Return the devices of a host, or of all hosts."""
        with self.database.read() as connection:
            return devices_of(connection, host)

    def leases(self) -> tuple[LeaseRecord, ...]:
        """Return the GPU shares that attempts hold now."""
        with self.database.read() as connection:
            return queries.leases(connection)


class Store(Reader):
    """The store, opened for writing: on SQLite by one process per host."""

    @classmethod
    def open(cls, home: Path, *, clock: Callable[[], float] | None = None) -> Store:
        """Open the store of ``home``; create it, or upgrade an older SQLite file, if necessary.

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
    def cancel(self, study: str, arm: str | None = None) -> CancelResult:
        """Cancel the runs of a study, or of one of its arms, that no other study needs.

        Queued runs are cancelled at once, live ones at their next heartbeat; such a run may still finish first.

        Args:
            study: name; all plans of this name are cancelled.
            arm: key of an arm; ``None``: all.
        """
        with self.database.write() as connection:
            serialize(connection, "submit")
            return control.cancel_study(connection, self.database.now(), study, arm)

    @retry_on_disconnect
    def retry(self, study: str, arm: str | None = None, *, author: str, reason: str) -> RetryResult:
        """Requeue the runs of a study, or of an arm, that ended without a result, and lift its pause.

        Each run begins a new generation: its failures are counted from zero, its earlier attempts are kept.

        Args:
            study: name; its newest plan is retried.
            arm: key of an arm; ``None``: all.
            author: who asks.
            reason: why.
        """
        newest = self.study(study)
        why = f"retried by {author}: {reason}"
        with self.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            return control.retry_study(connection, self.database.now(), newest.id, study, arm, why)

    @retry_on_disconnect
    def pause(self, study_id: int, reason: str) -> None:
        """Claim no more runs of a study until :meth:`retry`. A study that is paused already keeps its reason."""
        with self.database.write() as connection:
            control.pause(connection, study_id, reason)

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
    def start(self, run_id: int, token: int) -> Renewal:
        """Record that the supervisor runs, and renew its lease; a repeated call only renews.

        On SQLite this does not wait for the disk: a power cut also ends the attempt. A server that restarts must still
        know the start, or it would refuse the result of an attempt that went on.

        Raises:
            LostLease: the attempt no longer holds the run.
        """
        with self.database.write(flush=not self.database.embedded) as connection:
            return attempts.start(connection, self.database.now(), run_id, token)

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
    def finish(self, run_id: int, token: int, payload: Mapping[str, Any], *, stopped_early: bool = False) -> None:
        """Record the result of a run, once. The same call again changes nothing.

        Raises:
            LostLease: the attempt no longer holds the run, or the run has another result.
        """
        # the encoding replaces lone surrogates, which no database stores
        text = canonical_json(dict(payload)).encode(errors="replace").decode()
        move, reason = Move.SUCCEED, ""
        if stopped_early:
            move, reason = Move.STOP_EARLY, str(payload.get("reason", ""))
        with self.database.write() as connection:
            attempts.finish(connection, self.database.now(), run_id, token, text, move, reason)

    @retry_on_disconnect
    def release(
        self, run_id: int, token: int, reason: str, *, wait_s: float = 0.0, step: int | None = None
    ) -> RunState:
        """Requeue an interrupted run. It does not count as a failure, unless the run makes no progress.

        Args:
            run_id: the run.
            token: fence token of the attempt.
            reason: why.
            wait_s: seconds before the next attempt.
            step: newest step of an attempt that asked to be requeued; ``None``: it was interrupted from outside.

        Returns:
            The state of the run now.

        Raises:
            LostLease: the attempt no longer holds the run.
        """
        with self.database.write() as connection:
            now = self.database.now()
            return attempts.release(connection, now, run_id, token, reason, wait_s=wait_s, step=step)

    @retry_on_disconnect
    def fail(self, run_id: int, token: int, kind: FailureKind, reason: str, signature: str = "") -> RunState:
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
            return attempts.fail(connection, self.database.now(), run_id, token, kind, reason, signature)

    @retry_on_disconnect
    def cancelled(self, run_id: int, token: int) -> None:
        """Record that an attempt has obeyed a request to cancel.

        Raises:
            LostLease: the attempt no longer holds the run, or there was no request to cancel.
        """
        with self.database.write() as connection:
            attempts.cancelled(connection, self.database.now(), run_id, token)

    @retry_on_disconnect
    def expire(self) -> tuple[AttemptRecord, ...]:
        """Take back the runs whose lease has ended.

        Returns:
            The attempts that lost their run. Kill what is left of their processes.
        """
        with self.database.write() as connection:
            return attempts.expire(connection, self.database.now())
