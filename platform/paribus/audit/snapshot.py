"""A snapshot of the store and the run folders at one moment, for the invariants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from paribus.errors import RunFolderError
from paribus.recipe.recipe import canonical_json
from paribus.retention.deletion import pending
from paribus.run_folder.checkpoints import INDEX, damaged_files, published
from paribus.run_folder.folder import SHORT, RunFolder, read_json
from paribus.store import tables as t
from paribus.store.budget import budget_record
from paribus.store.devices import devices_of
from paribus.store.models import (
    AttemptRecord,
    BudgetRecord,
    DeviceRecord,
    EventRecord,
    LeaseRecord,
    StudyRecord,
    payload_hash,
)
from paribus.store.reader import Reader, attempt_record, attempts, event_record, study_record
from paribus.store.states import TERMINAL, RunState


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run, independent of any study."""

    id: int
    fingerprint: str
    seed: int
    state: RunState
    token: int
    lease_until: float | None
    not_before: float
    cancel_requested: bool
    generation: int


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link between a study and one of its runs."""

    study_id: int
    run_id: int
    arm: str
    position: int
    withdrawn: bool


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """A row of the result table."""

    run_id: int
    token: int
    payload: str
    payload_hash: str
    at: float


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """What the folder of an attempt contains.

    Attributes:
        run: first digits of the run's fingerprint.
        result_hash: hash of ``result.json``; empty if it is missing or unreadable.
        metrics: size of the metric lines in bytes.
        damaged: files of its checkpoints that differ from their manifests.
    """

    run: str
    token: int
    result_hash: str
    metrics: int
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The store at one moment.

    Attributes:
        now: the time on its clock.
        shared: several hosts may write to it, so a missing folder may be on another host.
        folders: of this home folder; ``None`` if they were not read.
    """

    now: float
    shared: bool = False
    studies: tuple[StudyRecord, ...] = ()
    links: tuple[Link, ...] = ()
    runs: tuple[RunRow, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    devices: tuple[DeviceRecord, ...] = ()
    leases: tuple[LeaseRecord, ...] = ()
    budgets: tuple[BudgetRecord, ...] = ()
    results: tuple[ResultRow, ...] = ()
    events: tuple[EventRecord, ...] = field(default=(), repr=False)
    folders: tuple[FolderFacts, ...] | None = None


def snapshot(reader: Reader, *, folders: bool = True, deep: bool = False) -> Snapshot:
    """Read the store in one transaction, then the run folders.

    Args:
        reader: the store.
        folders: read the run folders, too.
        deep: check the hashes of all checkpoints, not only of runs that may resume from theirs.
    """
    order = (t.attempt.c.run_id, t.attempt.c.token)
    with reader.database.read() as c:
        now = float(c.execute(sa.select(reader.database.now())).scalar_one())
        studies = tuple(study_record(r) for r in c.execute(sa.select(t.study).order_by(t.study.c.id)))
        links = tuple(Link(**r._mapping) for r in c.execute(_columns(t.study_run, Link)))
        runs = tuple(RunRow(**{**r._mapping, "state": RunState(r.state)}) for r in c.execute(_columns(t.run, RunRow)))
        tried = tuple(attempt_record(r) for r in c.execute(attempts().order_by(*order)))
        devices = devices_of(c, None)
        leases = tuple(LeaseRecord(**r._mapping) for r in c.execute(_columns(t.lease, LeaseRecord)))
        budgets = tuple(budget_record(r) for r in c.execute(sa.select(t.budget)))
        results = tuple(ResultRow(**r._mapping) for r in c.execute(_columns(t.result, ResultRow)))
        events = tuple(event_record(r) for r in c.execute(sa.select(t.event).order_by(t.event.c.id)))
    ended = {r.fingerprint[:SHORT] for r in runs if r.state in TERMINAL}
    found = tuple(_folders(reader.home, frozenset() if deep else frozenset(ended))) if folders else None
    if found and (doomed := {run[:SHORT] for run in pending(reader.home)}):  # of a deletion that goes on
        known = {r.fingerprint[:SHORT]: r.token for r in runs}
        found = tuple(f for f in found if f.run not in doomed or f.token <= known.get(f.run, 0))
    return Snapshot(
        now=now,
        shared=not reader.database.embedded,
        studies=studies,
        links=links,
        runs=runs,
        attempts=tried,
        devices=devices,
        leases=leases,
        budgets=budgets,
        results=results,
        events=events,
        folders=found,
    )


def _columns(table: sa.Table, record: type) -> sa.Select[tuple[object, ...]]:
    fields = record.__dataclass_fields__  # type: ignore[attr-defined]
    return sa.select(*(table.c[name] for name in fields)).order_by(*table.primary_key)


def _folders(home: Path, ended: frozenset[str]) -> Iterator[FolderFacts]:
    for path in sorted((home / "runs").glob("*/a*")):
        token = path.name[1:]
        if not token.isdecimal() or not path.is_dir():
            continue
        folder = RunFolder(path)
        yield FolderFacts(
            run=path.parent.name,
            token=int(token),
            result_hash=_result_hash(folder),
            metrics=folder.metrics.stat().st_size if folder.metrics.exists() else 0,
            damaged=() if path.parent.name in ended else _damaged(folder),
        )


def _result_hash(folder: RunFolder) -> str:
    try:
        return payload_hash(canonical_json(read_json(folder.result)))
    except (RunFolderError, ValueError):
        return ""


def _damaged(folder: RunFolder) -> tuple[str, ...]:
    try:
        return tuple(f"{place.name}/{name}" for place in published(folder) for name in damaged_files(place))
    except RunFolderError:
        return (INDEX,)
