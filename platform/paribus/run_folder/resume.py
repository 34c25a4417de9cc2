"""Resuming from an earlier attempt: its newest undamaged checkpoint, and its records up to it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paribus.contract import Job
from paribus.errors import ParibusError
from paribus.run_folder.checkpoints import damaged_files, published, read_manifest, tokens
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.run_folder.samples import parse_sample

log = logging.getLogger(__name__)


def find_checkpoint(folder: RunFolder, job: Job) -> tuple[RunFolder, Path, int] | None:
    """Return the newest earlier attempt with an undamaged checkpoint and all lines up to it; log why others fail.

    Returns:
        The attempt, the folder of its checkpoint, and the steps done; ``None`` without any.
    """
    for token in sorted((t for t in tokens(folder.path.parent) if t < job.token), reverse=True):
        attempt = RunFolder(folder.path.parent / f"a{token}")
        try:
            places = published(attempt)
        except ParibusError as error:
            log.warning("%s is not used: %s", attempt.checkpoints, error)
            continue
        for place in places:
            if (step := _step(attempt, place, job)) is not None:
                return attempt, place, step
    return None


def _step(attempt: RunFolder, place: Path, job: Job) -> int | None:
    """Return the steps that a checkpoint has; ``None`` if it cannot be resumed from, which is logged."""
    try:
        manifest = read_manifest(place)
        if manifest.run != job.run:
            log.warning("%s is not used: it is of another run", place)
        elif wrong := damaged_files(place):
            log.warning("%s is not used: %s is damaged", place, ", ".join(wrong))
        elif [x.step for x in lines_up_to(attempt, manifest.step)] != list(range(manifest.step + 1)):
            log.warning("%s is not used: its metrics do not reach step %d", place, manifest.step)
        else:
            return manifest.step
    except ParibusError as error:
        log.warning("%s is not used: %s", place, error)
    return None


def lines_up_to(attempt: RunFolder, step: int) -> Iterator[MetricLine]:
    """Yield the metric lines up to a step, and read no further: what follows may be damaged, as after a power cut.

    Raises:
        RunFolderError: one of them is damaged.
    """
    for line in attempt.read_metrics():
        if line.step <= step:
            yield line
        if line.step >= step:
            return


def take_over(folder: RunFolder, attempt: RunFolder, step: int) -> None:
    """Copy metrics, evaluations and samples of an earlier attempt up to a step, unchanged, replacing existing ones.

    What has become of the names in its log is copied, too.

    Raises:
        RunFolderError: a record of the earlier attempt is damaged.
    """
    with suppress(FileNotFoundError):
        shutil.copyfile(attempt.names, folder.names)
    folder.metrics.unlink(missing_ok=True)
    for line in lines_up_to(attempt, step):
        folder.append_metrics(line)
    shutil.rmtree(folder.evals, ignore_errors=True)
    for evaluation in attempt.read_evaluations():
        if evaluation.step <= step:
            folder.write_evaluation(evaluation)
    with folder.samples.open("wb") as kept, suppress(FileNotFoundError), attempt.samples.open("rb") as lines:
        for record in lines:
            sample = parse_sample(record)  # None for a line that was cut when the attempt was killed
            if sample is not None and sample.step <= step:
                kept.write(record)
