"""The only truth about states, leases and results. Every change is one transaction with one line in the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import sqlalchemy as sa

from paribus.engines.base import Device
from paribus.errors import StoreError
from paribus.store import statements
from paribus.store import tables as t
from paribus.store.attempts import Attempts
from paribus.store.budget import locked, reserve
from paribus.store.database import Database, again, database_url
from paribus.store.devices import Held, Pool, cordon, note, register, take
from paribus.store.migrate import migrate, refuse_other_version
from paribus.store.pauses import pause
from paribus.store.records import (
    Cancellation,
    Claim,
    Revival,
    StudyRecord,
    Terms,
    unit_of,
)
from paribus.store.requests import cancel_study, revive_study
from paribus.store.states import Move
from paribus.store.submit import submit
from paribus.study.plan import Plan
from paribus.track.folder import SHORT


class Store(Attempts):
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
            number = submit(connection, self.database.now(), plan, terms)
            self.database.count_rows(connection, t.run, t.study_run)
        return self.numbered(number)

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

    # ---- claims and devices ----------------------------------------------------------------------

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
            budget = locked(connection, now, found[0].name, unit_of(gpus))
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
