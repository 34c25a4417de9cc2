"""One run in one process: configures torch, loads model and task, resumes, trains."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - loaded here, so that forked processes have it
from pydantic import ValidationError

from paribus.contract import Job
from paribus.errors import ParibusError, RunFolderError
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import RunFolder, write_json
from paribus_runners.native import checkpoint, fingerprint, resume
from paribus_runners.native import versions as environment
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy
from paribus_runners.native.tiny import make as tiny
from paribus_runners.native.tiny.spec import MODELS, WarmUp
from paribus_runners.native.trainer import Trainer
from paribus_runners.tasks import task_of

THREADS = "PARIBUS_THREADS"
"""Environment variable: number of threads that torch uses on a CPU."""


@contextmanager
def settled() -> Iterator[None]:
    """Configure torch for the duration: ``PARIBUS_THREADS`` threads, one if the variable is unset.

    Equal runs are equal to the bit only with the same number of threads, which ``environment.json`` records. Denormal
    numbers are flushed to zero, because they slow a CPU down many times.

    Raises:
        ParibusError: the variable is not a positive number.
    """
    wanted = os.environ.get(THREADS, "1")
    if not wanted.isascii() or not wanted.isdigit() or int(wanted) < 1:
        raise ParibusError(f"{THREADS} is {wanted!r}: set it to a number of threads, 1 or more, or unset it")
    threads = torch.get_num_threads()
    torch.set_num_threads(int(wanted))
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def prepare(recipe: Recipe, cache: Path) -> None:
    """Make the tiny model that the recipe uses, if it uses one that isn't there yet."""
    if recipe.model.name in MODELS:
        with settled():
            tiny.make(cache, fingerprint.model(recipe), MODELS[recipe.model.name], WarmUp.of(recipe.task))


def run(path: Path) -> None:
    """Train the job in the folder ``path``.

    Raises:
        RunFolderError: ``job.json`` is not a job.
        SystemExit: with status 75 after SIGTERM.
    """
    folder = RunFolder(path)
    try:
        job = Job.model_validate_json(folder.job.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunFolderError(f"cannot read {folder.job}: {error}") from error
    with settled(), _termination() as asked:
        write_json(folder.environment, environment.describe())
        learner = Learner.of(job.recipe, _load(job))
        trainer = Trainer(job, folder, learner, task_of(job.recipe.task), asked.is_set)
        found = resume.find(folder, job)
        if found is not None:
            attempt, progress = found
            checkpoint.load(attempt.checkpoint, learner)
            resume.take_over(folder, attempt, progress)
        trainer.run(found[1] if found else None)


def _load(job: Job) -> Policy:
    model = job.recipe.model
    if model.name not in MODELS:
        return Policy.load(model.name, model.revision, model.dtype)
    folder = tiny.make(Path(job.cache), fingerprint.model(job.recipe), MODELS[model.name], WarmUp.of(job.recipe.task))
    return Policy.load(str(folder), None, model.dtype)


@contextmanager
def _termination() -> Iterator[threading.Event]:
    """Turn SIGTERM into an event for the duration; only the main thread may handle signals."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
