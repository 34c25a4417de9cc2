"""The checkpoints of an attempt: written so that a kill or a power cut at any moment leaves the newest complete one.

=========================================  ================================================================
``checkpoints/index.json``                 the checkpoints that count, newest first
``checkpoints/step-000040/``               one checkpoint: whatever the runner writes, and
``checkpoints/step-000040/paribus.json``   its manifest: the run, the step, and the SHA-256 of each other file
=========================================  ================================================================

A new checkpoint is written into its own folder, through to the disk. Then the index is replaced by one rename, and only
then what it no longer names is deleted. A folder that the index does not name is not read: it was not finished.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from paribus.contract import Job, file_hash
from paribus.errors import RunFolderError
from paribus.run_folder.folder import RunFolder, read_json, write_json
from paribus.run_folder.json_text import field_of, fields, listed, shown, text, whole

MANIFEST = "paribus.json"
INDEX = "index.json"
log = logging.getLogger(__name__)
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # file systems that cannot sync folders


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        run: fingerprint of the run.
        step: steps done.
        spent: what they cost, in the runner's own terms.
        files: SHA-256 of each file, by its path in the checkpoint.
    """

    run: str
    step: int
    spent: Mapping[str, Any]
    files: Mapping[str, str]


def publish(
    attempt: RunFolder,
    job: Job,
    step: int,
    write: Callable[[Path], None],
    spent: Mapping[str, int] | None = None,
) -> Path:
    """Make a checkpoint the newest one of an attempt, and delete those beyond ``job.checkpoint.keep``.

    The records of the attempt are written through to the disk before, because nothing goes on from a checkpoint without
    them. If the newest checkpoint is of this step already, nothing is written.

    Args:
        attempt: the folder of the attempt that calls.
        job: its job.
        step: steps done.
        write: writes all files of the checkpoint into an empty folder.
        spent: what the steps have cost, in the runner's own terms.

    Returns:
        The folder of the checkpoint.

    Raises:
        RunFolderError: the run was given to another attempt, or the files cannot be written. The checkpoints from
            before are still there.
    """
    place = attempt.checkpoints / f"step-{step:06d}"
    before = published(attempt)
    if place in before[:1]:
        return place
    kept = (place, *(p for p in before if p != place))[: job.checkpoint.keep]
    _refuse_if_lost(attempt, job)
    try:
        attempt.checkpoints.mkdir(exist_ok=True)
        _delete_others(attempt.checkpoints, before)
        place.mkdir()
        write(place)
        manifest = {"run": job.run, "step": step, "spent": dict(spent or {}), "files": _sync_files(place)}
        write_json(place / MANIFEST, manifest)
        _sync_records(attempt)
        for folder in (*(p for p in place.rglob("*") if p.is_dir()), place, attempt.checkpoints):
            _sync(folder)
        _refuse_if_lost(attempt, job)
        write_json(attempt.checkpoints / INDEX, {"checkpoints": [p.name for p in kept]})
        _sync(attempt.checkpoints)
    except BaseException as error:
        if place not in published(attempt):
            shutil.rmtree(place, ignore_errors=True)  # which may be what fills the disk
        if not isinstance(error, OSError):
            raise
        left = f"; that of {before[0].name} is complete" if before else ""
        raise RunFolderError(f"the checkpoint {place} cannot be written: {error}{left}") from error
    _refuse_if_lost(attempt, job)
    _delete_others(attempt.checkpoints, kept)
    return place


def keep_only(kept: Sequence[tuple[RunFolder, Sequence[Path]]]) -> None:
    """Replace the indexes of attempts that have ended; what they no longer name may be deleted after that.

    All are written through to the disk together, since a busy disk takes a tenth of a second for each.

    Args:
        kept: folders of attempts, each with its checkpoints that count, newest first.
    """
    indexes = [attempt.checkpoints / INDEX for attempt, _ in kept]
    written = [index.with_name(f".{INDEX}.{os.getpid()}") for index in indexes]
    for file, (_, places) in zip(written, kept, strict=True):
        file.write_text(json.dumps({"checkpoints": [p.name for p in places]}))
    os.sync()
    for file, index in zip(written, indexes, strict=True):
        file.replace(index)
    os.sync()


def published(attempt: RunFolder) -> tuple[Path, ...]:
    """Return the folders of the checkpoints of an attempt, newest first.

    Raises:
        RunFolderError: the index is damaged.
    """
    index = attempt.checkpoints / INDEX
    if not index.exists():
        return ()
    try:
        names = listed(field_of(fields(read_json(index)), "checkpoints"), "checkpoints")
        return tuple(attempt.checkpoints / _path(text(name, "checkpoints"), deep=False) for name in names)
    except ValueError as error:
        raise RunFolderError(f"{index} does not list checkpoints: {error}") from error


def read_manifest(checkpoint: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        RunFolderError: there is none, or it is damaged.
    """
    path = checkpoint / MANIFEST
    raw = read_json(path)
    try:
        return Manifest(
            run=text(field_of(fields(raw), "run"), "run"),
            step=whole(field_of(raw, "step"), "step", 0),
            spent=fields(field_of(raw, "spent")),
            files={_path(name): text(digest, name) for name, digest in fields(field_of(raw, "files")).items()},
        )
    except ValueError as error:
        raise RunFolderError(f"{path} is not the manifest of a checkpoint: {error}") from error


def damaged_files(checkpoint: Path) -> tuple[str, ...]:
    """Return the files of a checkpoint that differ from its manifest; empty if there is no manifest."""
    if not (checkpoint / MANIFEST).exists():
        return ()
    try:
        named = read_manifest(checkpoint).files
    except RunFolderError:
        return (MANIFEST,)
    return tuple(name for name, digest in named.items() if not _has_hash(checkpoint / name, digest))


def _path(name: str, *, deep: bool = True) -> str:
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\0" in name or (len(parts) > 1 and not deep):
        raise ValueError(f"{shown(name)} is not the path of a file in a checkpoint")
    return name


def _has_hash(path: Path, digest: str) -> bool:
    try:
        return file_hash(path) == digest
    except OSError:
        return False


def _refuse_if_lost(attempt: RunFolder, job: Job) -> None:
    """Raise an error if another attempt owns the run.

    Its folder is made when it takes the run; ``revoked`` is written before, or where no attempt follows.
    """
    newer = [t for t in tokens(attempt.path.parent) if t > job.token]
    if newer or attempt.revoked.exists():
        to = f"attempt {max(newer)}" if newer else "another attempt"
        raise RunFolderError(f"{attempt.path}: the run was given to {to}: this one writes no more checkpoints")


def tokens(run: Path) -> list[int]:
    """Return the tokens of the attempts whose folders are in the folder of a run, in no order."""
    names = (p.name for p in run.iterdir())
    return [int(name[1:]) for name in names if name[:1] == "a" and name[1:].isascii() and name[1:].isdigit()]


def _delete_others(checkpoints: Path, kept: tuple[Path, ...]) -> None:
    for path in sorted(checkpoints.iterdir()):
        if path in kept or path.name == INDEX:
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:  # a file that is still open on a network disk; the next checkpoint tries again
            log.warning("%s is not needed any more, and cannot be deleted: %s", path, error)


def _sync_files(place: Path) -> dict[str, str]:
    """Write all files in a folder through to the disk; return their hashes by path."""
    hashes = {}
    for path in sorted(p for p in place.rglob("*") if p.is_file()):
        _sync(path)
        hashes[path.relative_to(place).as_posix()] = file_hash(path)
    return hashes


def _sync_records(attempt: RunFolder) -> None:
    for path in (attempt.metrics, attempt.samples, attempt.evals, attempt.path, attempt.path.parent):
        if path.exists():
            _sync(path)


def _sync(path: Path) -> None:
    """Write a file, or the entries of a folder, through to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(number)
