"""One run in one process: configures torch, loads model and task, resumes, trains."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - loaded here, so that forked processes have it
from pydantic import ValidationError

from paribus.contract import Job
from paribus.errors import ParibusError, RunFolderError
from paribus.recipe.recipe import Recipe
from paribus.run_folder.attempt_files import read_environment
from paribus.run_folder.folder import INITIAL_WEIGHTS, SHORT, RunFolder, write_json
from paribus_runners.native import checkpoint, fingerprint, resume
from paribus_runners.native import versions as environment
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy
from paribus_runners.native.tiny import make as tiny
from paribus_runners.native.tiny.spec import MODELS, WarmUp
from paribus_runners.native.trainer import Trainer
from paribus_runners.tasks import Grader, Render, task_of

THREADS = "PARIBUS_THREADS"
"""Environment variable: number of threads that torch uses on a CPU."""
CORES = "OMP_NUM_THREADS"
"""Environment variable: the same where :data:`THREADS` is unset; engines set it to ``resources.cpus``."""
log = logging.getLogger(__name__)


@contextmanager
def settled() -> Iterator[None]:
    """Configure torch for the duration: ``PARIBUS_THREADS`` threads, else ``OMP_NUM_THREADS``, else one.

    Equal runs are equal to the bit only with the same number of threads, which ``environment.json`` records: sums over
    more threads have another order. Denormal numbers are flushed to zero, because they slow a CPU down many times.

    Raises:
        ParibusError: ``PARIBUS_THREADS`` is not a positive number.
    """
    wanted = os.environ.get(THREADS)
    if wanted is not None and not _is_count(wanted):
        raise ParibusError(f"{THREADS} is {wanted!r}: set it to a number of threads, 1 or more, or unset it")
    cores = os.environ.get(CORES, "1").split(",")[0].strip()  # OpenMP's list holds one number for each nested level
    threads = torch.get_num_threads()
    torch.set_num_threads(int(wanted or (cores if _is_count(cores) else 1)))
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


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
    with settled(), _termination() as asked, ExitStack() as stack:
        write_json(folder.environment, environment.describe())
        learner = Learner.of(job.recipe, _load(job))
        weights = learner.policy.weights_hash()
        write_json(folder.environment, environment.describe() | {INITIAL_WEIGHTS: weights})
        _compare_weights(folder, weights)
        grader, others = _graders(job, folder, learner.policy.render, stack)
        trainer = Trainer(job, folder, learner, asked.is_set, grader, others)
        found = resume.find(folder, job)
        if found is not None:
            attempt, place, progress = found
            checkpoint.load(place, learner)
            resume.take_over(folder, attempt, progress)
        trainer.run(found[2] if found else None)


def _graders(job: Job, folder: RunFolder, render: Render, stack: ExitStack) -> tuple[Grader, dict[str, Grader]]:
    """Return the grader of a job, and those of the evaluation sets that have problems of their own.

    The files of the reward functions are written into the folder, as they were planned.
    """
    functions, sources = job.recipe.reward.functions, job.options.sources
    place = folder.path / "rewards"
    if functions and sources:
        for name, text in sources.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
    task = task_of(job.recipe.task, render, columns=bool(functions))
    grader = stack.enter_context(Grader(task, functions, place if functions and sources else None))
    sets = {name: each.task for name, each in job.evaluate.sets.items() if each.task is not None}
    return grader, {name: stack.enter_context(Grader(task_of(task, render))) for name, task in sets.items()}


def _compare_weights(folder: RunFolder, weights: str) -> None:
    """Log which other attempts of this run recorded other initial weights; the report names them as well."""
    for other in sorted(folder.path.parent.glob("a*/environment.json")):
        with suppress(RunFolderError):
            found = read_environment(RunFolder(other.parent)).get(INITIAL_WEIGHTS)
            if found not in (None, weights):
                log.warning(
                    "initial weights %s, but %s in %s: this run's attempts did not begin with the same model. Was it "
                    "made on two kinds of processor, or changed on disk?", weights[:SHORT], str(found)[:SHORT], other,
                )  # fmt: skip


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
