"""One run in one process: settles torch, loads model and task, resumes, trains."""

from __future__ import annotations

import copy
import dataclasses
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - loaded here, so that forked processes have it
from pydantic import ValidationError

from paribus.errors import RunFolderError
from paribus.recipe.recipe import Recipe
from paribus.study.job import Job
from paribus.track.folder import RunFolder, write_json
from paribus_runners.native import checkpoint, environment, fingerprint, resume
from paribus_runners.native.policy import Policy
from paribus_runners.native.task import task_of
from paribus_runners.native.tiny import make as tiny
from paribus_runners.native.tiny.spec import WarmUp
from paribus_runners.native.trainer import Trainer


def settle() -> None:
    """Fix what torch does in this process: one thread, so that equal runs are equal to the bit.

    Numbers too small for the normal format become zero: on a CPU they are a hundred times slower.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def prepare(recipe: Recipe, cache: Path) -> None:
    """Make the tiny model if the recipe uses it and it is not there."""
    settle()
    if recipe.model.name == "tiny":
        tiny.make(cache, fingerprint.model(recipe), WarmUp.of(recipe.task))


def run(path: Path) -> None:
    """Train the job in the folder ``path``.

    Raises:
        RunFolderError: ``job.json`` is not a job.
        SystemExit: with status 75 after SIGTERM.
    """
    settle()
    folder = RunFolder(path)
    try:
        job = Job.model_validate_json(folder.job.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunFolderError(f"cannot read {folder.job}: {error}") from error
    write_json(folder.environment, environment.describe())
    with _termination() as asked:
        policy = _load(job)
        reference = None
        if job.recipe.kl.kind != "off":
            reference = dataclasses.replace(policy, model=copy.deepcopy(policy.model).requires_grad_(False))
        trainer = Trainer(job, folder, policy, reference, task_of(job.recipe.task), asked.is_set)
        found = resume.find(folder, job)
        if found is not None:
            attempt, progress = found
            checkpoint.load(attempt.checkpoint, policy, trainer.optimizer)
            resume.take_over(folder, attempt, progress)
        trainer.run(found[1] if found else None)


def _load(job: Job) -> Policy:
    model = job.recipe.model
    if model.name != "tiny":
        return Policy.load(model.name, model.revision, model.dtype)
    folder = tiny.make(Path(job.cache), fingerprint.model(job.recipe), WarmUp.of(job.recipe.task))
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
