"""Resuming from an earlier attempt: its newest valid checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

from paribus.contract import Job
from paribus.errors import ParibusError
from paribus.run_folder.checkpoints import published, tokens
from paribus.run_folder.folder import RunFolder
from paribus.run_folder.resume import lines_up_to
from paribus_runners.native import checkpoint
from paribus_runners.native.checkpoint import Progress

log = logging.getLogger(__name__)


def find(folder: RunFolder, job: Job) -> tuple[RunFolder, Path, Progress] | None:
    """Return the newest earlier attempt with a valid checkpoint and gapless metrics up to it; log why others fail.

    Returns:
        The attempt, the folder of its newest valid checkpoint, and how far that is; ``None`` without any.
    """
    for token in sorted(tokens(folder.path.parent), reverse=True):
        if token < job.token:
            attempt = RunFolder(folder.path.parent / f"a{token}")
            for place in _places(attempt):
                if (progress := _usable(attempt, place, job)) is not None:
                    return attempt, place, progress
    return None


def _places(attempt: RunFolder) -> tuple[Path, ...]:
    if (old := attempt.path / "checkpoint").exists():
        log.warning("%s is not used: it was written by an earlier version of Paribus", old)
    try:
        return published(attempt)
    except ParibusError as error:
        log.warning("%s is not used: %s", attempt.checkpoints, error)
        return ()


def _usable(attempt: RunFolder, place: Path, job: Job) -> Progress | None:
    """Return how far the checkpoint in ``place`` is; ``None`` if it cannot be resumed from, which is logged."""
    try:
        progress = checkpoint.read(place, job.run)
        if [line.step for line in lines_up_to(attempt, progress.step)] == list(range(progress.step + 1)):
            return progress
        log.warning("%s is not used: its metrics do not reach step %d", place, progress.step)
    except ParibusError as error:
        log.warning("%s is not used: %s", place, error)
    return None
