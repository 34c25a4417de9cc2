"""Brings a study back from an archive: all of it or nothing, and never over something else.

The archive is unpacked and checked among the run folders first, on their disk. Then the folders are renamed into their
places and the rows are inserted, in one transaction. A process that is killed in between leaves folders that no row
names: no command shows them, and the next ``restore`` of the archive uses them. What one leaves that is killed before
that goes with the next ``restore`` or ``paribus gc``.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.archive.tar_file import RUNS, STORE, ArchiveReader, Manifest, Member, member
from paribus.errors import ArchiveError, RunFolderError
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RESTORE_LOCK, SHORT, STAGE, RunFolder
from paribus.run_folder.json_text import parse_json
from paribus.store.database import serialize
from paribus.store.migrate import refuse_other_version
from paribus.store.store import Store
from paribus.store.transfer import StudyRows, checked_rows, insert_rows, read_rows, read_runs

PAUSED = "it was restored from an archive, with the recipes and reward functions in it"
"""Why a restored study does not go on by itself."""

_MAY_DIFFER = ("checkpoints", "series.bin", "samples.jsonl")
"""Parts of a run folder that `paribus gc` deletes, or that are derived."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a restore has done.

    Attributes:
        rows: the study.
        folders: number of run folders that were put in place; others were there.
        refilled: number of those others that lacked their trained model or responses, which are back.
        known: whether the study was in the store already.
        paused: whether it waits for `paribus retry`.
    """

    rows: StudyRows
    folders: int
    refilled: int
    known: bool
    paused: bool


def restore_study(home: Path, archive: Path) -> Restored:
    """Restore the study in an archive into a home folder and its store. The same again changes nothing.

    Args:
        home: home folder; created if it does not exist.
        archive: file of `paribus export`.

    Raises:
        ArchiveError: the archive is damaged, or something here has the same name and differs.
        StoreError: the store cannot be used.
    """
    from filelock import FileLock, Timeout

    with ArchiveReader(archive) as reader, Store.open(home) as store:
        lock = FileLock(home / RESTORE_LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ArchiveError(f"another process restores an archive in {home}. Wait for it to end.") from None
        stage = home / STAGE
        fresh = not stage.parent.exists()
        try:
            shutil.rmtree(stage, ignore_errors=True)
            stage.mkdir(parents=True)
            rows = unpack(reader, stage)
            return _take_in(store, rows, reader.manifest, stage)
        except OSError as error:
            raise ArchiveError(f"cannot restore {archive} into {home}: {error}. Nothing was restored.") from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)
            if fresh:
                with suppress(OSError):  # it has run folders now
                    stage.parent.rmdir()
            lock.release()


def unpack(reader: ArchiveReader, stage: Path, wanted: Callable[[str], bool] = lambda _: True) -> StudyRows:
    """Write the files of an archive into an empty folder, through to the disk, and return its checked rows.

    Args:
        reader: the archive.
        stage: the folder.
        wanted: whether a file of this name is written; the others are checked as well.

    Raises:
        ArchiveError: the archive is damaged, or does not fit on the disk.
        OSError: a file cannot be written.
    """
    size = sum(each.size for each in reader.manifest.files if wanted(each.name))
    if (free := shutil.disk_usage(stage).free) < size:
        raise ArchiveError(f"the archive needs {size} bytes in {stage.parent}, where {free} are free")
    for each, pieces in reader.members():
        if not wanted(each.name):
            deque(pieces, maxlen=0)
            continue
        path = stage / each.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
    try:
        rows = checked_rows(parse_json((stage / STORE).read_bytes(), STORE))
    except (ValueError, RunFolderError) as error:
        raise ArchiveError(f"{STORE} of the archive does not hold a study: {error}") from error
    if rows.name != reader.manifest.study:
        raise ArchiveError(f"{STORE} of the archive holds another study than its manifest says")
    _check_folders(rows, reader.manifest)
    _check_jobs(reader.manifest, stage)
    return rows


def _check_folders(rows: StudyRows, manifest: Manifest) -> None:
    """Check that the folders are those of attempts of the study, and that each result has one."""
    attempts = {f"{RUNS}/{run[:SHORT]}/a{token}" for run, token in rows.attempts}
    there = set(_folders(manifest))
    if strange := sorted(there - attempts):
        raise ArchiveError(f"the archive has the folder {strange[0]}, but {STORE} has no such attempt")
    if lacking := sorted({f"{RUNS}/{run[:SHORT]}/a{token}" for run, token in rows.results.items()} - there):
        raise ArchiveError(f"the archive lacks the folder of a result: {lacking[0]}")


def _check_jobs(manifest: Manifest, stage: Path) -> None:
    """Check that each ``job.json`` is a job: MLflow's artifacts have a folder with the name of its study."""
    for name in _folders(manifest):
        job = RunFolder(stage / name).job
        try:
            if job.exists():
                read_job(job)
        except RunFolderError as error:
            raise ArchiveError(f"in the archive: {str(error).replace(f'{stage}/', '')}") from error


def _folders(manifest: Manifest) -> Mapping[str, list[Member]]:
    """Return the files of each run folder."""
    found: dict[str, list[Member]] = {}
    for each in manifest.files:
        if each.name.startswith(f"{RUNS}/"):
            found.setdefault("/".join(each.name.split("/")[:3]), []).append(each)
    return found


def _take_in(store: Store, rows: StudyRows, manifest: Manifest, stage: Path) -> Restored:
    home = store.home
    folders = _folders(manifest)
    if wrong := [text for name, files in folders.items() for text in _conflicts(home, name, files)]:
        raise _refusal(rows, wrong)
    placed: list[Path] = []
    committed = False
    try:
        with store.database.write() as connection:
            refuse_other_version(connection)
            serialize(connection, "submit")
            here = read_rows(connection, rows.name)
            runs = read_runs(connection, [run["fingerprint"] for run in rows.runs])
            if wrong := list(rows.differences(here or StudyRows(rows.studies, runs))):
                raise _refusal(rows, wrong)
            paused = here is None and (rows.unfinished > 0 or rows.may_grow)
            for name in folders:
                if not (target := home / name).exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    placed.append(target)
                    (stage / name).rename(target)
            refilled = _refill(home, rows, folders, stage)
            _sync_folders(home, [*placed, *refilled])
            if here is None:
                insert_rows(connection, rows, PAUSED if paused else "")
        committed = True
    finally:
        if not committed and _is_absent(store, rows):
            for target in placed:
                shutil.rmtree(target, ignore_errors=True)
    return Restored(rows=rows, folders=len(placed), refilled=len(refilled), known=here is not None, paused=paused)


def _refill(home: Path, rows: StudyRows, folders: Iterable[str], stage: Path) -> list[Path]:
    """Put back what `paribus gc` deletes of runs with a result: trained models and responses; return their folders."""
    runs = {run[:SHORT] for run in rows.results}
    found: set[Path] = set()
    for name in (n for n in folders if n.split("/")[1] in runs):
        here, there = RunFolder(home / name), RunFolder(stage / name)
        if there.samples.exists() and not here.samples.exists():
            there.samples.rename(here.samples)
            found.add(here.path)
        if _has_model(there) and not _has_model(here):
            shutil.rmtree(here.checkpoints, ignore_errors=True)
            there.checkpoints.rename(here.checkpoints)
            found.add(here.path)
    return sorted(found)


def _has_model(folder: RunFolder) -> bool:
    """Return whether a folder has a checkpoint that counts; true if its index is damaged."""
    try:
        return any(place.is_dir() for place in published(folder))
    except RunFolderError:
        return True


def _is_absent(store: Store, rows: StudyRows) -> bool:
    """Return whether the store does not have the study; a server may have committed although it did not answer."""
    try:
        with store.database.read() as connection:
            return read_rows(connection, rows.name) is None
    except Exception:  # it does not answer: the folders stay, for the next call
        return False


def _conflicts(home: Path, name: str, files: list[Member]) -> Iterator[str]:
    """Yield what differs in a run folder that is here already."""
    place = home / name
    if not place.exists():
        return
    kept = {m.name: m for m in files if m.name.split("/")[3] not in _MAY_DIFFER}
    for path in (p for p in RunFolder(place).path.rglob("*") if p.is_file()):
        key = f"{name}/{path.relative_to(place).as_posix()}"
        if key.split("/")[3] not in _MAY_DIFFER and key not in kept:
            yield f"{path} is here, and not in the archive"
    for key, each in kept.items():
        path = home / key
        if not path.is_file() or path.is_symlink():
            yield f"{path} is missing here"
        elif member(key, path) != each:
            yield f"{path} differs from the archive"


def _refusal(rows: StudyRows, wrong: list[str]) -> ArchiveError:
    shown = "\n".join(f"  {text}" for text in wrong[:5]) + (f"\n  and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    return ArchiveError(
        f"the study `{rows.name}` is not restored, because something here differs from it:\n{shown}\n"
        "Nothing was changed. Restore it into another home folder with --home."
    )


def _sync_folders(home: Path, placed: list[Path]) -> None:
    """Write the entries of these folders through to the disk, before a row names them."""
    folders = {p for target in placed for p in (*(q for q in target.rglob("*") if q.is_dir()), target, target.parent)}
    for folder in (*sorted(folders), home / RUNS) if placed else ():
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
