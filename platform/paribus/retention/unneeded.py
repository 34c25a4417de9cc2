"""Finds what no report and no resumable run needs, and deletes it.

A run with a result is never resumed: of its checkpoints only the newest, which is the trained model, is kept. Any
other run may be resumed, also a failed one by ``paribus retry``: its newest whole checkpoint is kept, and its files
are read before an older one is deleted. Metric lines, evaluations, results and the responses that reports show stay
always. Not touched are live runs, runs with processes that do not know their end yet, and runs with an index of
checkpoints that cannot be read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paribus.engines.process import Identity
from paribus.errors import RunFolderError
from paribus.run_folder.attempt_files import read_attempt
from paribus.run_folder.checkpoints import INDEX, damaged_files, keep_only, published, read_manifest, tokens
from paribus.run_folder.folder import RESTORE_LOCK, STAGE, RunFolder
from paribus.store.models import AttemptedRun
from paribus.store.reader import Reader
from paribus.store.states import LIVE, RECORDED, RunState

Kind = Literal["checkpoints", "samples", "leftovers"]
KINDS: tuple[Kind, ...] = ("checkpoints", "samples", "leftovers")

SILENT_S = 600.0
"""Seconds after the end of an attempt in which its processes may still write, if they cannot be looked for here."""

_DELETING = 16  # at the same time: disks that discard blocks, and network disks, take milliseconds for each file
_TEMPORARY = re.compile(r"\..+\.\d+")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a user does not want to keep.

    Attributes:
        models: whether the newest checkpoint of each run with a result is kept; that of a run whose model runs of
            other studies begin with always is.
        samples: whether the responses as text of all runs with a result are kept, not only of those that a report
            shows.
    """

    models: bool = True
    samples: bool = True


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file or folder that is not needed, and the bytes of the disk that it takes."""

    kind: Kind
    path: Path
    size: int


@dataclass(frozen=True, kw_only=True)
class Unneeded:
    """What is not needed of an attempt.

    Attributes:
        run: the run when this was found.
        folder: the folder of the attempt.
        kept: its checkpoints that stay, newest first.
        items: what can go.
    """

    run: AttemptedRun
    folder: RunFolder
    kept: tuple[Path, ...]
    items: tuple[Item, ...]


def unneeded(reader: Reader, study: str | None, rule: Rule) -> Iterator[Unneeded]:
    """Yield what is not needed, attempt by attempt.

    Args:
        reader: the store; only folders of its home are looked at.
        study: only the runs of this study, in all its plans; ``None``: all runs.
        rule: what else the user gives up.

    Raises:
        StoreError: there is no such study.
    """
    wanted = None if study is None else _runs_of(reader, study)
    shown = frozenset() if rule.samples else _shown_runs(reader)
    bases = frozenset() if rule.models else frozenset(reader.begun_with())
    now = reader.now()
    for run in reader.attempted_runs():
        if wanted is not None and run.fingerprint not in wanted:
            continue
        attempts = _attempts(reader.home, run)
        if run.state in LIVE or any(may_write(a, run, now) or not _is_readable(a) for a in attempts):
            continue
        kept = _trained_model(run, attempts) if run.state in RECORDED else _resumable(attempts)
        if run.state in RECORDED and not rule.models and run.fingerprint not in bases:
            kept = []
        for folder in attempts:
            given_up = run.state in RECORDED and not rule.samples and run.fingerprint not in shown
            found = tuple(_items(folder, kept, gone=given_up))
            if found:
                yield Unneeded(run=run, folder=folder, kept=_of(folder, kept), items=found)


def killed_restore(home: Path) -> Item | None:
    """Return what a killed ``paribus restore`` has left; ``None`` if there is nothing, or one works now."""
    with _left_by_restore(home) as left:
        return left


def delete_restore(home: Path) -> int:
    """Delete what a killed ``paribus restore`` has left; return the bytes that were freed."""
    with _left_by_restore(home) as left:
        return 0 if left is None else _delete(left)


@contextmanager
def _left_by_restore(home: Path) -> Iterator[Item | None]:
    """Keep restores away; yield what one that has ended left behind."""
    from filelock import FileLock, Timeout

    stage = home / STAGE
    if not stage.is_dir():
        yield None
        return
    lock = FileLock(home / RESTORE_LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield None
        return
    try:
        yield Item(kind="leftovers", path=stage, size=size_of(stage)) if stage.is_dir() else None
    finally:
        lock.release()


def killed_models(home: Path) -> list[Item]:
    """Return the unfinished models of the cache that killed processes have left; of those that are made now, none."""
    found = []
    for place in sorted((home / "cache" / "models").glob("*.*.partial")):
        with _unfinished(place) as free:
            if free:
                found.append(Item(kind="leftovers", path=place, size=size_of(place)))
    return found


def delete_models(found: Sequence[Item]) -> int:
    """Delete what :func:`killed_models` has found, except what another process makes now; return the freed bytes."""
    freed = 0
    for item in found:
        with _unfinished(item.path) as free:
            freed += _delete(item) if free else 0
    return freed


@contextmanager
def _unfinished(place: Path) -> Iterator[bool]:
    """Keep others from making a model, and yield whether its folder is there and no process makes it."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(place.parent / f"{place.name.partition('.')[0]}.lock", timeout=0):
            yield place.is_dir()
    except Timeout:
        yield False


def delete(reader: Reader, found: Sequence[Unneeded]) -> int:
    """Delete what was found, except of runs that have changed since; return the bytes that were freed."""
    states = reader.states_of([each.run.fingerprint for each in found])
    found = [each for each in found if states.get(each.run.fingerprint) is each.run.state]
    keep_only([(each.folder, each.kept) for each in found if any(item.kind == "checkpoints" for item in each.items)])
    items = [item for each in found for item in each.items]
    with ThreadPoolExecutor(_DELETING) as pool:
        return sum(pool.map(_delete, items))


def _delete(item: Item) -> int:
    if item.path.is_dir() and not item.path.is_symlink():
        shutil.rmtree(item.path, ignore_errors=True)
    else:
        item.path.unlink(missing_ok=True)
    return item.size - (size_of(item.path) if item.path.exists() else 0)


def _runs_of(reader: Reader, study: str) -> frozenset[str]:
    reader.study(study)  # a wrong name is an error that lists the others
    plans = [s.id for s in reader.summaries() if s.name == study]
    return frozenset(run.fingerprint for plan in plans for run in reader.runs_of(plan))


def _shown_runs(reader: Reader) -> frozenset[str]:
    """Return the runs of which a report shows responses: of each arm of a study the first seed that has finished."""
    first: dict[tuple[str, str], tuple[int, str]] = {}
    for name in {summary.name for summary in reader.summaries()}:
        for run in reader.runs_of(reader.study(name).id):
            if run.state is RunState.SUCCEEDED:
                key, mine = (name, run.arm), (run.seed, run.fingerprint)
                first[key] = min(first.get(key, mine), mine)
    return frozenset(fingerprint for _, fingerprint in first.values())


def _attempts(home: Path, run: AttemptedRun) -> list[RunFolder]:
    """Return the folders of a run's attempts, the newest first; none if there are others than the store knows."""
    place = RunFolder.of(home, run.fingerprint, 1).path.parent
    found = sorted(tokens(place), reverse=True) if place.is_dir() else []
    return [] if found and found[0] > run.token else [RunFolder(place / f"a{token}") for token in found]


def may_write(folder: RunFolder, run: AttemptedRun, now: float) -> bool:
    """Return whether processes of an attempt may be alive that do not know that it has ended."""
    try:
        here = [Identity.read(process) for process in read_attempt(folder).values()]
    except (RunFolderError, KeyError, ValueError):
        here = []
    recent = run.ended_at is None or now < run.ended_at + SILENT_S
    return any(i.alive() or (recent and i.host != Identity.of(os.getpid()).host) for i in here)


# ---- which checkpoints are needed --------------------------------------------------------------------


def _trained_model(run: AttemptedRun, attempts: Sequence[RunFolder]) -> list[Path]:
    newest = [folder for folder in attempts if folder.path.name == f"a{run.token}"]
    return [place for folder in newest for place in published(folder)[:1]]


def _resumable(attempts: Sequence[RunFolder]) -> list[Path]:
    """Return the checkpoint that the next attempt goes on from; all of them if none is sure to be usable."""
    every = [(folder, place) for folder in attempts for place in published(folder)]
    if len(every) > 1:
        for folder, place in every:
            if _is_whole(folder, place):
                return [place]
    return [place for _, place in every]


def _is_whole(folder: RunFolder, place: Path) -> bool:
    """Return whether a checkpoint fits its manifest, and the metric lines have every step up to it."""
    try:
        last = read_manifest(place).step
        steps = {line.step for line in folder.read_metrics()}
    except RunFolderError:
        return False
    return steps.issuperset(range(last + 1)) and not damaged_files(place)


def _is_readable(folder: RunFolder) -> bool:
    try:
        published(folder)
    except RunFolderError:
        return False
    return True


def _of(folder: RunFolder, kept: Collection[Path]) -> tuple[Path, ...]:
    return tuple(place for place in published(folder) if place in kept)


# ---- what can go -------------------------------------------------------------------------------------


def _items(folder: RunFolder, kept: Collection[Path], *, gone: bool) -> Iterator[Item]:
    named = published(folder)
    if folder.checkpoints.is_dir():
        for path in sorted(folder.checkpoints.iterdir()):
            if path not in kept and path.name != INDEX:
                yield Item(kind="checkpoints" if path in named else "leftovers", path=path, size=size_of(path))
    if gone and folder.samples.is_file():
        yield Item(kind="samples", path=folder.samples, size=size_of(folder.samples))
    for place in (folder.path, folder.evals):
        for path in sorted(place.glob(".*.*")) if place.is_dir() else ():
            if path.is_file() and _TEMPORARY.fullmatch(path.name):
                yield Item(kind="leftovers", path=path, size=size_of(path))


def size_of(path: Path) -> int:
    """Return the bytes of the disk that a file or folder takes; a file with other links takes none."""
    found = path.lstat()
    own = found.st_blocks * 512 if path.is_dir() or found.st_nlink == 1 else 0
    if path.is_symlink() or not path.is_dir():
        return own
    return own + sum(size_of(Path(entry.path)) for entry in os.scandir(path))
