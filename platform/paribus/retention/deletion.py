"""Deletes a study: its rows, then the folders of the runs that no other study has.

What is to be deleted is written into a file first. Then the rows go in one transaction, then the folders, then the
file. A process that is killed before the transaction has changed nothing. One that is killed after it leaves the file,
and the next process that locks the home folder, or ``paribus gc --delete``, deletes the rest. A folder goes only if the
store has no such attempt: the file alone deletes nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.atomic import write_whole
from paribus.errors import RunFolderError, StoreError
from paribus.mlflow_sync.offsets import forget
from paribus.recipe.recipe import canonical_json
from paribus.retention.unneeded import Item, may_write, size_of
from paribus.run_folder.checkpoints import tokens
from paribus.run_folder.folder import SHORT, RunFolder, read_json
from paribus.run_folder.json_text import field_of, fields, listed
from paribus.store.deletion import Deletion
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.text import plural, size_text

FILE = "deleting.json"
"""In the home folder: fingerprints of the runs whose folders are being deleted."""


@dataclass(frozen=True, kw_only=True)
class Doomed:
    """A study that is to be deleted.

    Attributes:
        rows: what goes in the store, and what stays.
        items: the folders of its runs in this home folder.
        elsewhere: attempts whose folders are not here: deleted before, or on another host.
    """

    rows: Deletion
    items: tuple[Item, ...]
    elsewhere: int

    @property
    def size(self) -> int:
        """Bytes of the disk."""
        return sum(item.size for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return what goes and what stays, for programs."""
        rows = self.rows
        counts = {"plans": rows.plans, "runs": len(rows.runs), "results": rows.results}
        return {
            "study": rows.study,
            **counts,
            "folders": [str(item.path) for item in self.items],
            "bytes": self.size,
            "kept_runs": rows.kept,
            "shared": dict(rows.shared),
            "elsewhere": self.elsewhere,
        }

    def lines(self) -> list[str]:
        """Return what goes and what stays, for people."""
        rows = self.rows
        said = [
            f"goes: {rows.study}, {plural(rows.plans, 'plan')}, {plural(len(rows.runs), 'run')}, {rows.results} "
            "with a result; "
            f"{plural(len(self.items), 'run folder')}, {size_text(self.size)}"
        ]
        if rows.kept:
            others = ", ".join(f"{name} ({count})" for name, count in rows.shared.items())
            said.append(f"stays: {plural(rows.kept, 'run')} that other studies have, too: {others}")
        if self.elsewhere:
            said.append(
                f"not here: the folders of {plural(self.elsewhere, 'attempt')}. Were they trained on another host?"
            )
        said.append("stays: copies in MLflow, reports that were written, archives")
        return said

    @property
    def digest(self) -> str:
        """Digits that change with what goes and what stays: a confirmation of these is none of others."""
        rows = self.rows
        shown = {"runs": dict(rows.runs), "plans": rows.plans, "results": rows.results, "shared": dict(rows.shared)}
        return hashlib.sha256(canonical_json({"study": rows.study, **shown}).encode()).hexdigest()


def look(reader: Reader, study: str) -> Doomed:
    """Return what would go if a study were deleted.

    Raises:
        StoreError: there is no such study, it has not ended, or a process of it may still write.
    """
    rows = reader.what_goes(study)
    rows.require_ended()
    items, here = [], 0
    known = {run.fingerprint: run for run in reader.attempted_runs() if run.fingerprint in rows.runs}
    now = reader.now()
    for run in rows.runs:
        place = RunFolder.of(reader.home, run, 1).path.parent
        if not place.is_dir():
            continue
        folders = [RunFolder(place / f"a{token}") for token in tokens(place)]
        here += len(folders)
        if run in known and any(may_write(folder, known[run], now) for folder in folders):
            raise StoreError(f"a process of the run {run[:SHORT]} may still write into {place}: wait for it to end.")
        if any(folder.path.name not in {f"a{n}" for n in range(1, rows.runs[run] + 1)} for folder in folders):
            raise StoreError(
                f"{place} has attempts that the store doesn't know, so nothing is deleted: `paribus doctor` says more."
            )
        items.append(Item(kind="leftovers", path=place, size=size_of(place)))
    return Doomed(rows=rows, items=tuple(items), elsewhere=max(0, sum(rows.runs.values()) - here))


def delete(store: Store, doomed: Doomed, author: str) -> int:
    """Delete a study as it was shown; the caller has locked the home folder. Return the bytes that were freed.

    Raises:
        StoreError: something of it has changed since, or has not ended: then nothing was deleted.
    """
    _write(store.home / FILE, [*doomed.rows.runs])
    try:
        store.delete_study(doomed.rows, author)
    except StoreError:
        finish(store)  # the store may have committed before it was lost: what it has decides
        raise
    finish(store)
    return doomed.size - sum(size_of(item.path) for item in doomed.items if item.path.exists())


def finish(reader: Reader) -> None:
    """Delete what a deletion that was killed has left, while the caller keeps attempts from starting here.

    Raises:
        StoreError: a folder cannot be deleted, or the file is damaged.
    """
    file = reader.home / FILE
    if not file.exists():
        return
    runs = _read(file)
    try:
        for place in [*leftovers(reader, runs)]:
            shutil.rmtree(place)
        there = reader.states_of(runs)
        forget(reader.home, [run for run in runs if run not in there])
        for run in runs:
            if run not in there:
                for left in (reader.home / "engine").rglob(f"paribus-{run[:SHORT]}-a*"):
                    left.unlink() if left.is_file() else shutil.rmtree(left, ignore_errors=True)
        file.unlink()
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot delete the rest of a deleted study in {reader.home}: {error}") from error


def leftovers(reader: Reader, runs: list[str]) -> Iterator[Path]:
    """Yield the folders of these runs, or of their attempts, that the store does not know."""
    there = {run.fingerprint: run.token for run in reader.attempted_runs()}
    for run in runs:
        place = RunFolder.of(reader.home, run, 1).path.parent
        if not place.is_dir():
            continue
        if run not in there:
            yield place
        else:
            yield from (place / f"a{token}" for token in tokens(place) if token > there[run])


def pending(home: Path) -> list[str]:
    """Return the fingerprints of the runs that a killed deletion names; empty without one, or if it is damaged."""
    try:
        return _read(home / FILE)
    except StoreError:
        return []


def _write(file: Path, runs: list[str]) -> None:
    try:
        for left in file.parent.glob(f".{file.name}.*"):  # the caller has locked the folder
            left.unlink()
        write_whole(file, canonical_json({"runs": runs}), synced=True)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error}. Nothing was deleted.") from error


def _read(file: Path) -> list[str]:
    if not file.exists():
        return []
    try:
        found = listed(field_of(fields(read_json(file)), "runs"), "runs")
        if not all(isinstance(run, str) and len(run) == 64 and set(run) <= set("0123456789abcdef") for run in found):
            raise ValueError("it names something else than runs")
    except (RunFolderError, ValueError) as error:
        remedy = "Delete it; `paribus doctor` names the folders that are left."
        raise StoreError(f"{file} is damaged: {error}. {remedy}") from None
    return found
