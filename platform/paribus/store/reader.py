"""Questions to the store. Reading never blocks the writer and never changes anything."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from paribus.errors import StoreError, did_you_mean
from paribus.store import tables as t
from paribus.store.budget import UNITS, budget_record, live_use
from paribus.store.database import FILE, Database, database_url
from paribus.store.devices import devices_of
from paribus.store.migrate import refuse_other_revision
from paribus.store.records import (
    AttemptRecord,
    BudgetRecord,
    DeviceRecord,
    EventRecord,
    LeaseRecord,
    ResultRecord,
    RunRecord,
    Shipment,
    StudyEntry,
    StudyRecord,
    Unit,
)
from paribus.store.states import TERMINAL, RunState
from paribus.store.submit import PLAN
from paribus.study.plan import Plan

_BATCH = 500

# what a study has cancelled is cancelled for it, though the run may go on for another study
_SEEN = sa.case(
    (
        sa.and_(t.study_run.c.withdrawn, ~t.run.c.cancel_requested, t.run.c.state.not_in(TERMINAL)),
        sa.literal_column(f"'{RunState.CANCELLED}'"),
    ),
    else_=t.run.c.state,
)


class Reader:
    """A store, opened for reading.

    Args:
        database: the database; it must have the newest shape.
        home: folder that holds ``runs/``.
    """

    def __init__(self, database: Database, home: Path) -> None:
        self.database = database
        self.home = home
        self._labels: dict[int, Mapping[str, str]] = {}

    @classmethod
    def look(cls, home: Path) -> Reader:
        """Open the store of ``home`` for reading.

        Raises:
            StoreError: there is none, it cannot be reached, or another version wrote it.
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

    def studies(self) -> tuple[StudyRecord, ...]:
        """Return all studies, the one that was submitted last at the end; each plan of a name is a study of its own."""
        with self.database.read() as connection:
            rows = connection.execute(sa.select(t.study).order_by(t.study.c.submitted_at, t.study.c.id)).all()
        return tuple(study_record(row) for row in rows)

    def study(self, name: str) -> StudyRecord:
        """Return the study with this name that was submitted last.

        Raises:
            StoreError: there is none; the message names those that there are.
        """
        newest = (t.study.c.submitted_at.desc(), t.study.c.id.desc())
        query = sa.select(t.study).where(t.study.c.name == name).order_by(*newest).limit(1)
        with self.database.read() as connection:
            row = connection.execute(query).one_or_none()
            if row is None:
                names = list(
                    connection.execute(sa.select(t.study.c.name).distinct().order_by(t.study.c.name)).scalars()
                )
                raise StoreError(
                    f"there is no study `{name}` in {self.home}.{did_you_mean(name, names)} "
                    f"Studies: {', '.join(names) or 'none'}."
                )
        return study_record(row)

    def entries(self, studies: Collection[int] | None = None) -> tuple[StudyEntry, ...]:
        """Return all studies, or some, in the order of :meth:`studies`, without reading their plans."""
        asked = (
            sa.select(t.study_run.c.run_id)
            .join(t.run, t.run.c.id == t.study_run.c.run_id)
            .where(t.study_run.c.study_id == t.study.c.id, t.study_run.c.recorded.is_(False), _SEEN.not_in(TERMINAL))
        )
        names = ("id", "name", "submitted_at", "paused", "priority", "weight")
        query = sa.select(*(t.study.c[name] for name in names), asked.exists().label("open")).order_by(
            t.study.c.submitted_at, t.study.c.id
        )
        if studies is not None:
            query = query.where(t.study.c.id.in_(studies))
        with self.database.read() as connection:
            return tuple(StudyEntry(**row._mapping) for row in connection.execute(query))

    def numbered(self, study_id: int) -> StudyRecord:
        """Return the study with this number, which is there."""
        with self.database.read() as connection:
            return study_record(connection.execute(sa.select(t.study).where(t.study.c.id == study_id)).one())

    def known(self, fingerprints: Sequence[str]) -> Mapping[str, RunState]:
        """Return the states of those runs that any study has asked for, by fingerprint."""
        found: dict[str, RunState] = {}
        with self.database.read() as connection:
            for start in range(0, len(fingerprints), _BATCH):
                batch = fingerprints[start : start + _BATCH]
                query = sa.select(t.run.c.fingerprint, t.run.c.state).where(t.run.c.fingerprint.in_(batch))
                found |= {row.fingerprint: RunState(row.state) for row in connection.execute(query)}
        return found

    def newest_of(self, plan: Plan) -> Plan:
        """Return the plan to go on with: the largest that has grown from this one and was submitted, else itself.

        What it may spend and what it says to people are those of the plan that is given.
        """
        query = sa.select(t.study.c.plan).where(t.study.c.name == plan.study)
        with self.database.read() as connection:
            texts = connection.execute(query).scalars().all()
        found = [p for p in map(PLAN.validate_json, texts) if p.origin == plan.fingerprint]
        return max(found, key=lambda p: len(p.all_runs)).under(plan) if found else plan

    def paused(self, study_id: int) -> str:
        """Return why no run of a study is claimed; empty if they are."""
        with self.database.read() as connection:
            return str(connection.execute(sa.select(t.study.c.paused).where(t.study.c.id == study_id)).scalar_one())

    def runs_of(self, study_id: int, states: Collection[RunState] = tuple(RunState)) -> tuple[RunRecord, ...]:
        """Return the runs of a study in queue order.

        Args:
            study_id: the study.
            states: only runs in these, whichever study they are seen from.
        """
        asked = [] if len(states) == len(RunState) else [t.run.c.state.in_(states)]
        return self._runs(study_id, _links(study_id).where(*asked))

    def page_of(
        self, study_id: int, first: int, most: int, states: Collection[RunState] = tuple(RunState)
    ) -> tuple[RunRecord, ...]:
        """Return so many runs of a study in queue order, without reading the others.

        Args:
            study_id: the study.
            first: how many to pass over.
            most: length of the page.
            states: only runs in these, as this study sees them and :meth:`counts` counts them.
        """
        asked = [] if len(states) == len(RunState) else [_SEEN.in_(states)]
        return self._runs(study_id, _links(study_id).where(*asked).offset(first).limit(most))

    def _runs(self, study_id: int, query: sa.Select[Any]) -> tuple[RunRecord, ...]:
        with self.database.read() as connection:
            rows = connection.execute(query).all()
            if study_id not in self._labels:  # a plan's labels never change
                plan = connection.execute(sa.select(t.study.c.plan).where(t.study.c.id == study_id)).scalar()
                known = json.loads(plan or '{"arms": []}')
                arms = [*(known.get("screen") or {"arms": []})["arms"], *known["arms"]]
                self._labels[study_id] = {a["key"]: a["label"] for a in arms}
        return tuple(_run(row, self._labels[study_id][row.arm]) for row in rows)

    def counts(self, study_id: int) -> Mapping[RunState, int]:
        """Return the number of runs of a study in each state that occurs."""
        found: Counter[RunState] = Counter()
        for (_, state), count in self.tally(study_id).items():
            found[state] += count
        return dict(found)

    def tally(self, study_id: int) -> Mapping[tuple[str, RunState], int]:
        """Return the number of runs of each arm (its key) in each state that occurs."""
        query = (
            sa.select(t.study_run.c.arm, _SEEN.label("seen"), sa.func.count())
            .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
            .where(t.study_run.c.study_id == study_id)
            .group_by(t.study_run.c.arm, "seen")
        )
        with self.database.read() as connection:
            return {(arm, RunState(state)): count for arm, state, count in connection.execute(query)}

    def result(self, fingerprint: str) -> ResultRecord | None:
        """Return the result of a run; ``None`` while there is none."""
        return self.results([fingerprint]).get(fingerprint)

    def results(self, fingerprints: Sequence[str]) -> Mapping[str, ResultRecord]:
        """Return the results of those runs that have one, by fingerprint."""
        query = sa.select(t.run.c.fingerprint, t.result).join(t.result, t.result.c.run_id == t.run.c.id)
        found: dict[str, ResultRecord] = {}
        with self.database.read() as connection:
            for start in range(0, len(fingerprints), _BATCH):
                asked = query.where(t.run.c.fingerprint.in_(fingerprints[start : start + _BATCH]))
                for r in connection.execute(asked):
                    payload = json.loads(r.payload)
                    found[r.fingerprint] = ResultRecord(
                        fingerprint=r.fingerprint, token=r.token, payload=payload, at=r.at
                    )
        return found

    def attempts_of(self, study_id: int) -> tuple[AttemptRecord, ...]:
        """Return all attempts at the runs of a study, oldest first, whichever study made them."""
        query = (
            attempts()
            .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
            .where(t.study_run.c.study_id == study_id)
            .order_by(t.attempt.c.id)
        )
        with self.database.read() as connection:
            return tuple(attempt_record(row) for row in connection.execute(query))

    def live_attempts(self) -> tuple[AttemptRecord, ...]:
        """Return the attempts that hold a run now, of all studies."""
        newest = sa.and_(t.attempt.c.ended_at.is_(None), t.run.c.token == t.attempt.c.token)
        query = attempts().where(newest).order_by(t.attempt.c.id)
        with self.database.read() as connection:
            return tuple(attempt_record(row) for row in connection.execute(query))

    def shipments(self) -> tuple[Shipment, ...]:
        """Return all runs that have been attempted, oldest first."""
        query = (
            sa.select(
                t.run.c.fingerprint,
                t.run.c.token,
                t.run.c.state,
                sa.func.min(t.attempt.c.claimed_at).label("began_at"),
                sa.func.max(t.attempt.c.ended_at).label("ended_at"),
            )
            .join(t.attempt, t.attempt.c.run_id == t.run.c.id)
            .group_by(t.run.c.id)
            .order_by(sa.func.min(t.attempt.c.id))
        )
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        return tuple(Shipment(**{**row._mapping, "state": RunState(row.state)}) for row in rows)

    def events_of(self, run_id: int) -> tuple[EventRecord, ...]:
        """Return the log of a run, oldest first."""
        query = sa.select(t.event).where(t.event.c.run_id == run_id).order_by(t.event.c.id)
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        return tuple(event_record(row) for row in rows)

    def devices(self, host: str | None = None) -> tuple[DeviceRecord, ...]:
        """Return the devices of a host, or of all."""
        with self.database.read() as connection:
            return devices_of(connection, host)

    def leases(self) -> tuple[LeaseRecord, ...]:
        """Return what the attempts that have not ended hold of GPUs."""
        query = (
            sa.select(*(t.lease.c[name] for name in LeaseRecord.__dataclass_fields__))
            .join(t.attempt, sa.and_(t.attempt.c.run_id == t.lease.c.run_id, t.attempt.c.token == t.lease.c.token))
            .where(t.attempt.c.ended_at.is_(None))
            .order_by(t.lease.c.run_id, t.lease.c.device_id)
        )
        with self.database.read() as connection:
            return tuple(LeaseRecord(**row._mapping) for row in connection.execute(query))

    def now(self) -> float:
        """Return the time on the database's clock, seconds since 1970."""
        with self.database.read() as connection:
            return float(connection.execute(sa.select(self.database.now())).scalar_one())

    def budget(self, study: str, unit: Unit) -> BudgetRecord:
        """Return what all plans of a name may spend and have spent."""
        query = sa.select(t.budget).where(t.budget.c.study == study, t.budget.c.unit == unit)
        with self.database.read() as connection:
            flying = connection.execute(live_use(study, unit, self.database.now())).one()
            return budget_record(connection.execute(query).one(), flying)

    def affords(self, study: str) -> bool:
        """Return whether every budget of a study that something was spent of allows another attempt."""
        used = (self.budget(study, unit) for unit in UNITS)
        return all(b.allows_another for b in used if b.spent > 0)


def _links(study_id: int) -> sa.Select[Any]:
    """Return the query for the runs of a study in queue order, as :func:`_run` takes them."""
    return (
        sa.select(t.run, t.study_run.c.arm, t.study_run.c.position, _SEEN.label("seen"))
        .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
        .where(t.study_run.c.study_id == study_id)
        .order_by(t.study_run.c.position)
    )


def study_record(row: sa.Row[tuple[object, ...]]) -> StudyRecord:
    """Return a row of the table of studies."""
    plan = PLAN.validate_json(row.plan)
    columns = ("id", "name", "submitted_at", "paused", "priority", "weight")
    return StudyRecord(plan=plan, **{name: row._mapping[name] for name in columns})


def _run(row: sa.Row[tuple[object, ...]], label: str) -> RunRecord:
    return RunRecord(
        id=row.id,
        fingerprint=row.fingerprint,
        arm=row.arm,
        label=label,
        seed=row.seed,
        position=row.position,
        state=RunState(row.seen),
        token=row.token,
        lease_until=row.lease_until,
        program_failures=row.program_failures,
        infrastructure_failures=row.infrastructure_failures,
        cancel_requested=row.cancel_requested,
        reason=row.reason,
        signature=row.signature,
    )


def attempts() -> sa.Select[Any]:
    """Return the query for attempts as :func:`attempt_record` takes them."""
    return sa.select(t.attempt, t.run.c.fingerprint).join(t.run, t.run.c.id == t.attempt.c.run_id)


def attempt_record(row: sa.Row[tuple[object, ...]]) -> AttemptRecord:
    """Return a row of the table of attempts, with its run's fingerprint."""
    return AttemptRecord(**{k: v for k, v in row._mapping.items() if k != "id"})


def event_record(row: sa.Row[tuple[object, ...]]) -> EventRecord:
    """Return a row of the log."""
    return EventRecord(**{k: v for k, v in row._mapping.items() if k != "id"})
