"""Writes a study into an archive: the rows of the store, the folders of its ended attempts, and its report."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paribus.archive.tar_file import REPORT, RUNS, STORE, Manifest, Member, member, write_archive
from paribus.errors import ArchiveError
from paribus.recipe.recipe import canonical_json
from paribus.run_folder.folder import SHORT, RunFolder
from paribus.store.reader import Reader
from paribus.store.transfer import StudyRows, read_rows
from paribus.version import VERSION

_SCRATCH = ".paribus-export-"
"""What the folder of an unfinished archive is called, beside the archive; a lock on a file in it says who uses it."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An archive that was written.

    Attributes:
        path: the file.
        size: its bytes.
        rows: the study in it.
        files: number of files in it.
        notes: what is not in it, one sentence each.
    """

    path: Path
    size: int
    rows: StudyRows
    files: int
    notes: tuple[str, ...]


def export_study(
    reader: Reader,
    study: str,
    target: Path,
    write_report: Callable[[Path], Sequence[str]] | None,
    *,
    checkpoints: bool,
) -> Exported:
    """Write a study into a file, which appears when it is complete.

    Everything is made in a folder beside it. A process that is killed leaves that folder, and the next export into the
    same place deletes it.

    Args:
        reader: the store.
        study: name; all plans of this name are written.
        target: the file; it must not exist.
        write_report: writes the report into an empty folder and returns notes about it; ``None``: without a report.
        checkpoints: whether to write checkpoints and trained models.

    Raises:
        StoreError: there is no such study.
        ArchiveError: the file exists, has no folder or cannot be written, or the folder of a run with a result is not
            here.
    """
    if target.exists():
        raise ArchiveError(f"{target} exists already: name another file with --to.")
    if not target.parent.is_dir():
        raise ArchiveError(f"there is no folder {target.parent}: create it, or name another file with --to.")
    reader.study(study)  # a wrong name is an error that lists the others
    with reader.database.read() as connection:
        rows = read_rows(connection, study)
    assert rows is not None
    live = len({run["fingerprint"] for run in rows.runs} & {a.fingerprint for a in reader.live_attempts()})
    try:
        with _scratch(target.parent) as scratch:
            about_report = write_report(scratch / REPORT) if write_report else ()
            sources, notes = _sources(reader.home, rows, scratch / REPORT, checkpoints=checkpoints)
            (scratch / STORE).write_text(canonical_json(rows.to_json()), encoding="utf-8")
            sources = {STORE: scratch / STORE, **sources}
            manifest = Manifest(study=study, paribus=VERSION, files=tuple(_members(sources)))
            with (scratch / "archive").open("xb") as file:
                write_archive(file, manifest, sources)
                file.flush()
                os.fsync(file.fileno())
            (scratch / "archive").rename(target)
    except OSError as error:
        raise ArchiveError(f"cannot write {target}: {error}") from error
    if live:
        notes = (f"live runs, which are in the archive as queued and without their newest attempt: {live}", *notes)
    notes = (*about_report, *notes)
    return Exported(path=target, size=manifest.size, rows=rows, files=len(manifest.files), notes=notes)


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """Yield a new folder in ``place``, deleted at the end; delete those of killed exports."""
    for left in place.glob(f"{_SCRATCH}*"):
        _delete_if_unused(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=place))
        try:
            lock = _lock(folder)
            break
        except (BlockingIOError, FileNotFoundError):  # another export looks whether it is in use
            continue
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _delete_if_unused(folder: Path) -> None:
    try:
        lock = _lock(folder)
    except OSError:  # in use, gone, or another user's
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _lock(folder: Path) -> int:
    """Return a descriptor that keeps the lock of a folder until it is closed, or the process ends.

    Raises:
        BlockingIOError: another process has it.
        FileNotFoundError: the folder is gone.
        OSError: the file system has no locks, or the folder is another user's.
    """
    number = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(number).st_nlink:
            raise FileNotFoundError(folder)
    except BaseException:
        os.close(number)
        raise
    return number


def _members(sources: dict[str, Path]) -> Iterator[Member]:
    for name, path in sources.items():
        yield member(name, path)


def _sources(
    home: Path, rows: StudyRows, report: Path, *, checkpoints: bool
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return name and path of each file, and sentences about what is left out."""
    found: dict[str, Path] = {}
    odd: list[Path] = []
    missing = 0
    for run, token in rows.attempts:
        folder = RunFolder.of(home, run, token)
        if not folder.path.is_dir():
            if rows.results.get(run) == token:
                raise ArchiveError(
                    f"the folder of a result is not here: {folder.path}. Export the study on the host that trained it"
                )
            missing += 1
            continue
        skipped = {folder.series, *(() if checkpoints else (folder.checkpoints,))}
        for path in _files(folder.path, skipped, odd):
            found[f"{RUNS}/{run[:SHORT]}/a{token}/{path.relative_to(folder.path).as_posix()}"] = path
    for path in _files(report, set(), odd):
        found[f"{REPORT}/{path.relative_to(report).as_posix()}"] = path
    notes = [f"attempts without a result whose folders are not here: {missing}"] if missing else []
    notes += [f"left out, because it is no regular file: {path}" for path in odd]
    notes += [] if checkpoints else ["checkpoints and trained models are left out: queued runs start from step 0"]
    return found, tuple(notes)


def _files(folder: Path, skipped: set[Path], odd: list[Path]) -> Iterator[Path]:
    """Yield the regular files in a folder, sorted; add everything else to ``odd``."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(f for f in folders if here / f not in skipped)
        for name in sorted([*names, *(f for f in folders if (here / f).is_symlink())]):
            path = here / name
            if path in skipped:
                continue
            if stat.S_ISREG(path.lstat().st_mode) and name.isprintable():
                yield path
            else:
                odd.append(path)
