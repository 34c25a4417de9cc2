"""The store, opened for reading: each question is one query, answered with frozen values. It never blocks a writer."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from paribus.errors import StoreError, did_you_mean
from paribus.store import remarks
from paribus.store import tables as t
from paribus.store.budget import UNITS, read_budget
from paribus.store.database import FILE, Database, NothingYet, StudyDeleted, database_url
from paribus.store.deletion import Deletion, begun_with, what_goes
from paribus.store.devices import devices_of
from paribus.store.migrate import refuse_other_revision
from paribus.store.models import (
    PLAN,
    AttemptedRun,
    AttemptRecord,
    BudgetRecord,
    DeviceRecord,
    EventRecord,
    LeaseRecord,
    ResultRecord,
    RunRecord,
    StudyRecord,
    StudySummary,
    Unit,
)
from paribus.store.states import LIVE, TERMINAL, TRACKED, RunState
from paribus.study.plan import Plan

LEAST_DIGITS = re.compile(r"[0-9a-f]{4,64}")
"""What may be the first digits of a run's fingerprint."""

_ALL = tuple(RunState)
BATCH = 500
"""Most fingerprints in one statement."""

_TERMS = ("id", "name", "submitted_at", "first_submitted_at", "paused", "priority", "weight")
_OLDEST_FIRST = (t.study.c.submitted_at, t.study.c.id)

_WITHDRAWN = sa.and_(t.study_run.c.withdrawn, ~t.run.c.cancel_requested, t.run.c.state.not_in(TERMINAL))


def _lost(now: sa.ColumnElement[float]) -> sa.ColumnElement[bool]:
    """Return whether a run is held by a program that no scheduler watches, and that has been silent for too long."""
    attempt = t.attempt.c
    held = sa.and_(attempt.run_id == t.run.c.id, attempt.token == t.run.c.token, attempt.engine == TRACKED)
    return sa.and_(t.run.c.state.in_(LIVE), t.run.c.lease_until < now, sa.exists().where(held))


def _seen(now: sa.ColumnElement[float]) -> sa.ColumnElement[str]:
    """Return the state of a run as a study sees it.

    One that the study has cancelled is CANCELLED, though another study may go on with it. A tracked run whose machine
    has stopped is FAILED, though no process has recorded that yet.
    """
    failed: sa.ColumnElement[str] = sa.literal_column(f"'{RunState.FAILED}'")
    cancelled: sa.ColumnElement[str] = sa.literal_column(f"'{RunState.CANCELLED}'")
    return sa.case((_WITHDRAWN, cancelled), (_lost(now), failed), else_=t.run.c.state)


class Reader:
    """A store, opened for reading.

    Args:
        database: the database, at the newest revision.
        home: folder that holds ``runs/``.
        untouched: whether no file of ``home`` may be written, not even one that is derived from others.
    """

    def __init__(self, database: Database, home: Path, *, untouched: bool = False) -> None:
        self.database = database
        self.home = home
        self.untouched = untouched
        self._labels: dict[int, Mapping[str, str]] = {}

    @classmethod
    def open(cls, home: Path) -> Reader:
        """Open the store of ``home`` for reading.

        Raises:
            NothingYet: it does not exist, or has no tables.
            StoreError: it cannot be reached, or another version wrote it.
        """
        database = existing_database(home)
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

    @property
    def _seen(self) -> sa.ColumnElement[str]:
        return _seen(self.database.now())

    def now(self) -> float:
        """Return the time on the database's clock, in seconds since 1970."""
        with self.database.read() as connection:
            return float(connection.execute(sa.select(self.database.now())).scalar_one())

    # ---- studies ---------------------------------------------------------------------------------

    def studies(self) -> tuple[StudyRecord, ...]:
        """Return all studies, the newest last; each plan of a name is a study of its own."""
        with self.database.read() as connection:
            rows = connection.execute(sa.select(t.study).order_by(*_OLDEST_FIRST))
            return tuple(study_record(row) for row in rows)

    def study(self, name: str) -> StudyRecord:
        """Return the newest study of a name.

        Raises:
            StoreError: no study has this name; the message lists the names that exist.
        """
        newest = (t.study.c.submitted_at.desc(), t.study.c.id.desc())
        query = sa.select(t.study).where(t.study.c.name == name).order_by(*newest).limit(1)
        with self.database.read() as connection:
            row = connection.execute(query).one_or_none()
            if row is not None:
                return study_record(row)
            names = connection.execute(sa.select(t.study.c.name).distinct().order_by(t.study.c.name)).scalars().all()
        raise StoreError(
            f"there is no study `{name}` in {self.home}.{did_you_mean(name, names)} "
            f"Studies: {', '.join(names) or 'none'}."
        )

    def study_by_id(self, study_id: int) -> StudyRecord:
        """Return the study with this number.

        Raises:
            StudyDeleted: it was deleted meanwhile.
        """
        with self.database.read() as connection:
            row = connection.execute(sa.select(t.study).where(t.study.c.id == study_id)).one_or_none()
        if row is None:
            raise StudyDeleted
        return study_record(row)

    def summaries(self, studies: Collection[int] | None = None) -> tuple[StudySummary, ...]:
        """Return all studies, or some, in the order of :meth:`studies`, without reading their plans."""
        unfinished = (
            sa.select(t.study_run.c.run_id)
            .join(t.run, t.run.c.id == t.study_run.c.run_id)
            .where(
                t.study_run.c.study_id == t.study.c.id, t.study_run.c.recorded.is_(False), self._seen.not_in(TERMINAL)
            )
        )
        columns = [t.study.c[name] for name in _TERMS]
        query = sa.select(*columns, unfinished.exists().label("open")).order_by(*_OLDEST_FIRST)
        if studies is not None:
            query = query.where(t.study.c.id.in_(studies))
        with self.database.read() as connection:
            return tuple(StudySummary(**row._mapping) for row in connection.execute(query))

    def what_goes(self, name: str) -> Deletion:
        """Return what would go if a study were deleted, and what would stay.

        Raises:
            StoreError: no study has this name.
        """
        self.study(name)  # a wrong name is an error that lists the others
        with self.database.read() as connection:
            return what_goes(connection, name)

    def begun_with(self) -> Mapping[str, tuple[str, ...]]:
        """Return the runs whose models runs of other studies begin with, and the names of these studies."""
        with self.database.read() as connection:
            return begun_with(connection)

    def latest_version(self, plan: Plan) -> Plan:
        """Return the plan to continue with: the largest submitted plan that grew from this one, else this one.

        Budget and display settings are those of the given plan.
        """
        with self.database.read() as connection:
            texts = connection.execute(sa.select(t.study.c.plan).where(t.study.c.name == plan.study)).scalars().all()
        found = [p for p in map(PLAN.validate_json, texts) if p.origin == plan.fingerprint]
        return max(found, key=lambda p: len(p.all_runs)).under(plan) if found else plan

    def studies_with(self, fingerprints: Sequence[str]) -> tuple[StudyRecord, ...]:
        """Return all plans that have any of these runs, in the order of :meth:`studies`."""
        links = sa.select(t.study_run.c.study_id).join(t.run, t.run.c.id == t.study_run.c.run_id).distinct()
        with self.database.read() as connection:
            found = {row.study_id for row in rows_of(connection, links, fingerprints)}
            rows = connection.execute(sa.select(t.study).where(t.study.c.id.in_(found)).order_by(*_OLDEST_FIRST))
            return tuple(study_record(row) for row in rows)

    def paused(self, study_id: int) -> str:
        """Return why a study is paused; empty if it is not."""
        with self.database.read() as connection:
            return str(connection.execute(sa.select(t.study.c.paused).where(t.study.c.id == study_id)).scalar_one())

    def budget(self, study: str, unit: Unit) -> BudgetRecord:
        """Return what all plans of a name may spend and have spent in one unit.

        Raises:
            StudyDeleted: the study was deleted meanwhile.
        """
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
        return self._runs(study_id, t.run.c.state, states)

    def runs_page(
        self, study_id: int, first: int, most: int | None, states: Collection[RunState] = _ALL
    ) -> tuple[RunRecord, ...]:
        """Return one page of the runs of a study in queue order, without reading the others.

        Args:
            study_id: the study.
            first: number of runs to skip.
            most: length of the page; ``None``: all that follow.
            states: only runs in these states, as this study sees them and :meth:`counts` counts them.
        """
        return self._runs(study_id, self._seen, states, first, most)

    def _runs(
        self,
        study_id: int,
        state: sa.ColumnElement[str],
        states: Collection[RunState],
        first: int | None = None,
        most: int | None = None,
    ) -> tuple[RunRecord, ...]:
        query = sa.select(*_RUN_COLUMNS, self._seen.label("seen")).join(t.study_run, t.study_run.c.run_id == t.run.c.id)
        query = query.where(t.study_run.c.study_id == study_id).order_by(t.study_run.c.position)
        if len(states) < len(RunState):
            query = query.where(state.in_(states))
        with self.database.read() as connection:
            rows = connection.execute(query.offset(first).limit(most)).all()
            if study_id not in self._labels:  # a plan's labels never change
                self._labels[study_id] = _arm_labels(connection, study_id)
        labels = self._labels[study_id]
        arm = _RUN_FIELDS.index("arm")
        return tuple(_run_record(row, labels[row[arm]]) for row in rows)

    def counts(self, study_id: int) -> Mapping[RunState, int]:
        """Return the number of runs of a study in each state that occurs."""
        found: Counter[RunState] = Counter()
        for (_, state), count in self.counts_by_arm(study_id).items():
            found[state] += count
        return dict(found)

    def counts_by_arm(self, study_id: int) -> Mapping[tuple[str, RunState], int]:
        """Return the number of runs of each arm (its key) in each state that occurs."""
        query = (
            sa.select(t.study_run.c.arm, self._seen.label("seen"), sa.func.count())
            .join(t.study_run, t.study_run.c.run_id == t.run.c.id)
            .where(t.study_run.c.study_id == study_id)
            .group_by(t.study_run.c.arm, "seen")
        )
        with self.database.read() as connection:
            return {(arm, RunState(state)): count for arm, state, count in connection.execute(query)}

    def states_of(self, fingerprints: Sequence[str]) -> Mapping[str, RunState]:
        """Return the states of the runs that exist, by fingerprint."""
        query = sa.select(t.run.c.fingerprint, t.run.c.state)
        with self.database.read() as connection:
            return {row.fingerprint: RunState(row.state) for row in rows_of(connection, query, fingerprints)}

    def result(self, fingerprint: str) -> ResultRecord | None:
        """Return the result of a run; ``None`` if it has none yet."""
        return self.results([fingerprint]).get(fingerprint)

    def results(self, fingerprints: Sequence[str]) -> Mapping[str, ResultRecord]:
        """Return the results of the runs that have one, by fingerprint."""
        query = sa.select(t.run.c.fingerprint, t.result).join(t.result, t.result.c.run_id == t.run.c.id)
        found: dict[str, ResultRecord] = {}
        with self.database.read() as connection:
            for r in rows_of(connection, query, fingerprints):
                payload = json.loads(r.payload)
                found[r.fingerprint] = ResultRecord(fingerprint=r.fingerprint, token=r.token, payload=payload, at=r.at)
        return found

    def recorded_at(self, fingerprints: Sequence[str]) -> Mapping[str, float]:
        """Return when the result of each run was recorded, by fingerprint, for the runs that have one."""
        query = sa.select(t.run.c.fingerprint, t.result.c.at).join(t.result, t.result.c.run_id == t.run.c.id)
        with self.database.read() as connection:
            return {row.fingerprint: row.at for row in rows_of(connection, query, [*dict.fromkeys(fingerprints)])}

    def first_planned(self, fingerprints: Sequence[str]) -> Mapping[tuple[str, float], int]:
        """Return the plans that planned these runs first: name and first submission to the number of runs."""
        columns = (t.study.c.name, t.study.c.first_submitted_at)
        query = sa.select(*columns).join(t.study, t.study.c.id == t.run.c.study_id)
        with self.database.read() as connection:
            rows = rows_of(connection, query.order_by(t.study.c.id), fingerprints)
            return Counter((row.name, row.first_submitted_at) for row in rows)

    def events_of(self, run_id: int) -> tuple[EventRecord, ...]:
        """Return the events of a run, oldest first."""
        query = sa.select(t.event).where(t.event.c.run_id == run_id).order_by(t.event.c.id)
        with self.database.read() as connection:
            return tuple(event_record(row) for row in connection.execute(query))

    # ---- what people say of studies and runs -----------------------------------------------------

    def subject(self, named: str) -> remarks.Subject:
        """Return the study of this name, or the run whose fingerprint starts so (four digits or more).

        A study that was deleted is found, too: its log says by whom.

        Raises:
            StoreError: there is neither; the message lists the studies.
        """
        like = t.run.c.fingerprint.startswith(named) if LEAST_DIGITS.fullmatch(named) else sa.false()
        with self.database.read() as connection:
            if connection.execute(sa.select(t.study.c.id).where(t.study.c.name == named).limit(1)).first():
                return remarks.Subject(study=named)
            found = connection.execute(sa.select(t.run.c.fingerprint).where(like).limit(2)).scalars().all()
            said = sa.and_(t.remark.c.study == named, t.remark.c.study != "")
            deleted = connection.execute(sa.select(t.remark.c.id).where(said).limit(1)).first() is not None
        if len(found) == 1:
            return remarks.Subject(run=found[0])
        if found:
            raise StoreError(f"several runs have a fingerprint that starts with `{named}`: give more digits.")
        if deleted:
            return remarks.Subject(study=named)
        try:
            return remarks.Subject(study=self.study(named).name)
        except StoreError as error:
            if LEAST_DIGITS.fullmatch(named):
                rest = (
                    "No run has a fingerprint that starts so, either; `paribus status STUDY` lists the runs of a study."
                )
            else:
                rest = "A run is named by four digits of its fingerprint or more."
            raise StoreError(f"{error} {rest}") from None

    def about_studies(self) -> Mapping[str, remarks.About]:
        """Return note, tags and whether it is archived, by name, of the studies of which something is said."""
        with self.database.read() as connection:
            return remarks.of_studies(connection)

    def about_runs(self, study_id: int) -> Mapping[str, remarks.About]:
        """Return note and tags, by fingerprint, of the runs of a study of which something is said."""
        with self.database.read() as connection:
            return remarks.of_runs(connection, [study_id])

    def about(self, subject: remarks.Subject) -> remarks.About:
        """Return note and tags of a study or run, and whether it is archived."""
        said = remarks.total(self.remarks(subject))
        return said.get((subject.study, subject.run), remarks.NOTHING)

    def remarks(self, subject: remarks.Subject) -> tuple[remarks.Remark, ...]:
        """Return all that was said of a study or run, and by whom, the oldest first."""
        with self.database.read() as connection:
            return remarks.read(connection, remarks.of(subject))

    # ---- attempts and devices --------------------------------------------------------------------

    def attempts_of(self, study_id: int) -> tuple[AttemptRecord, ...]:
        """Return all attempts at the runs of a study, oldest first, also those that another study made."""
        query = attempts().join(t.study_run, t.study_run.c.run_id == t.run.c.id)
        return self._attempts(query.where(t.study_run.c.study_id == study_id))

    def live_attempts(self) -> tuple[AttemptRecord, ...]:
        """Return the attempts of all studies that hold a run now."""
        return self._attempts(attempts().where(t.attempt.c.ended_at.is_(None), t.run.c.token == t.attempt.c.token))

    def silent(self, seconds: float) -> frozenset[str]:
        """Return the names of live attempts whose lease ends within so many seconds, or has ended."""
        soon = t.run.c.lease_until < self.database.now() + seconds
        live = sa.select(t.attempt.c.submit_name).join(t.run, t.run.c.id == t.attempt.c.run_id)
        live = live.where(t.attempt.c.ended_at.is_(None), t.run.c.token == t.attempt.c.token, soon)
        with self.database.read() as connection:
            return frozenset(connection.execute(live).scalars())

    def _attempts(self, query: sa.Select[Any]) -> tuple[AttemptRecord, ...]:
        with self.database.read() as connection:
            return tuple(attempt_record(row) for row in connection.execute(query.order_by(t.attempt.c.id)))

    def attempted_runs(self) -> tuple[AttemptedRun, ...]:
        """Return all runs with at least one attempt, oldest first."""
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
        return tuple(AttemptedRun(**{**row._mapping, "state": RunState(row.state)}) for row in rows)

    def devices(self, host: str | None = None) -> tuple[DeviceRecord, ...]:
        """Return the devices of a host, or of all hosts."""
        with self.database.read() as connection:
            return devices_of(connection, host)

    def leases(self) -> tuple[LeaseRecord, ...]:
        """Return the GPU shares that attempts hold now."""
        query = (
            sa.select(*(t.lease.c[name] for name in LeaseRecord.__dataclass_fields__))
            .join(t.attempt, sa.and_(t.attempt.c.run_id == t.lease.c.run_id, t.attempt.c.token == t.lease.c.token))
            .where(t.attempt.c.ended_at.is_(None))
            .order_by(t.lease.c.run_id, t.lease.c.device_id)
        )
        with self.database.read() as connection:
            return tuple(LeaseRecord(**row._mapping) for row in connection.execute(query))


def existing_database(home: Path) -> Database:
    """Return the database of a home folder, at whatever revision.

    Raises:
        NothingYet: there is neither a server nor a file.
    """
    url = database_url(home)
    if url.get_backend_name() == "sqlite" and not (home / FILE).is_file():
        raise NothingYet(f"there is no store in {home}. Run a study first (paribus run STUDY.yaml), or name --home.")
    return Database(url)


# ---- rows and records; the connection is in a transaction --------------------------------------------


def rows_of(connection: sa.Connection, query: sa.Select[Any], fingerprints: Sequence[str]) -> Iterator[sa.Row[Any]]:
    """Yield the rows of a query for these runs, in batches that fit into one statement."""
    for start in range(0, len(fingerprints), BATCH):
        yield from connection.execute(query.where(t.run.c.fingerprint.in_(fingerprints[start : start + BATCH])))


def attempts() -> sa.Select[Any]:
    """Return the query for attempts as :func:`attempt_record` takes them."""
    return sa.select(t.attempt, t.run.c.fingerprint).join(t.run, t.run.c.id == t.attempt.c.run_id)


def attempt_record(row: sa.Row[tuple[object, ...]]) -> AttemptRecord:
    """Return a row of :func:`attempts`."""
    # a lookup by name for each field takes ten times as long
    found: dict[str, Any] = dict(zip(row._fields, row, strict=True))
    del found["id"]
    return AttemptRecord(**found)


def study_record(row: sa.Row[tuple[object, ...]]) -> StudyRecord:
    """Return a row of the study table."""
    return StudyRecord(plan=PLAN.validate_json(row.plan), **{name: row._mapping[name] for name in _TERMS})


def event_record(row: sa.Row[tuple[object, ...]]) -> EventRecord:
    """Return a row of the event table."""
    return EventRecord(**{k: v for k, v in row._mapping.items() if k != "id"})


_RUN_FIELDS = tuple(name for name in RunRecord.__dataclass_fields__ if name not in ("label", "state"))
_RUN_COLUMNS = tuple((t.study_run if name in ("arm", "position") else t.run).c[name] for name in _RUN_FIELDS)


def _run_record(row: Sequence[Any], label: str) -> RunRecord:
    """Return a row of ``_RUN_COLUMNS`` and the state that the study sees, with the label of its arm."""
    *known, seen = row
    return RunRecord(**dict(zip(_RUN_FIELDS, known, strict=True)), label=label, state=RunState(seen))


def _arm_labels(connection: sa.Connection, study_id: int) -> Mapping[str, str]:
    """Return the label of each arm by its key, without validating the plan."""
    text = connection.execute(sa.select(t.study.c.plan).where(t.study.c.id == study_id)).scalar()
    plan = json.loads(text or '{"arms": []}')
    arms = [*(plan.get("screen") or {"arms": []})["arms"], *plan["arms"]]
    return {arm["key"]: arm["label"] for arm in arms}
