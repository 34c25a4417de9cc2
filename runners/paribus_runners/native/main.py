"""One run: configures torch, loads model and task, resumes, trains; in several processes if it has several GPUs."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - loaded here, so that forked processes have it

from paribus.contract import Job
from paribus.errors import ParibusError, RunFolderError, RunnerError
from paribus.evaluate import HELDOUT
from paribus.recipe.analysis.facts import other_reference
from paribus.recipe.recipe import Recipe
from paribus.run_folder.attempt_files import read_environment, read_job
from paribus.run_folder.folder import INITIAL_WEIGHTS, SHORT, RunFolder, write_json
from paribus.run_folder.phases import Phases
from paribus.run_folder.resume import take_over
from paribus_runners.native import (
    checkpoint,
    device_memory,
    fingerprint,
    frozen,
    gradient_checkpointing,
    out_of_memory,
    resume,
)
from paribus_runners.native import versions as environment
from paribus_runners.native.launch import launch, processes_of, threads
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy, best_device
from paribus_runners.native.requirements import no_kernels, of_sampler, other_vocabulary, too_few_processes
from paribus_runners.native.stopping import termination
from paribus_runners.native.tiny import make as tiny
from paribus_runners.native.tiny.spec import MODELS, WarmUp
from paribus_runners.native.trainer import Trainer
from paribus_runners.native.world import World
from paribus_runners.tasks import Grader, environment_of, task_of

log = logging.getLogger(__name__)

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
"""Of mallopt(3): which blocks get memory of their own, bytes; how much memory at the heap's end is kept, bytes."""


@contextmanager
def settled() -> Iterator[None]:
    """Configure torch for the duration: as many threads as :func:`threads` says.

    Equal runs are equal to the bit only with the same number of threads, which ``environment.json`` records: sums over
    more threads have another order. Denormal numbers are flushed to zero, because they slow a CPU down many times.
    Python's garbage collector leaves alone what is there: to go through all modules, again and again, takes about a
    fortieth of the time of a small model. To give memory back and ask for it again takes as much, so glibc keeps it.

    Raises:
        ParibusError: the variable is not a positive number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads())
    torch.set_flush_denormal(True)
    gc.freeze()  # no collection before it: where much is loaded, that takes longer than a short run
    try:
        with _memory_kept():
            yield
    finally:
        gc.unfreeze()
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@contextmanager
def _memory_kept() -> Iterator[None]:
    """Let glibc keep what is freed of blocks up to 32 MiB, unless the environment says what it keeps."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        yield
        return
    mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest that glibc takes
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        mallopt(M_TRIM_THRESHOLD, 128 * 2**10)  # glibc's default, which from now on it does not adjust


def prepare(recipe: Recipe, cache: Path) -> None:
    """Make the tiny models that the recipe uses, if it uses some that aren't there yet."""
    other = other_reference(recipe)
    for name in {recipe.model.name, *(() if other is None else (other.name,))} & MODELS.keys():
        with settled():
            _made(recipe, cache, name)


def run(path: Path) -> None:
    """Train the job in the folder ``path``, in as many processes as it has GPUs or wants, on its nodes.

    Raises:
        RunFolderError: ``job.json`` is not a job.
        ParibusError: it wants processes on a CPU, and holds a GPU; or it has none that trains.
        RunnerError: one of several processes has failed.
        SystemExit: with status 75 after SIGTERM.
    """
    folder = RunFolder(path)
    job = read_job(folder.job)
    size, cpu = processes_of(job)
    if size <= (samplers := job.recipe.compute.sampling_processes):
        raise ParibusError(too_few_processes(samplers, size))
    if size > 1:
        launch(path, size, cpu=cpu, nodes=job.nodes, samplers=samplers)
    else:
        train(folder, job)


def train(folder: RunFolder, job: Job, world: World | None = None) -> None:
    """Train a job, as one of the processes of its run.

    Raises:
        RunnerError: there is no memory, or what the run needs is not there.
        SystemExit: with status 75 after SIGTERM.
    """
    world = world or World()
    with settled(), termination() as asked, ExitStack() as stack:
        world.phases = stack.enter_context(Phases.open(folder.path, world.number, elsewhere=world.elsewhere))
        stack.enter_context(out_of_memory.named(world.phases, job.recipe, best_device().type))
        about = environment.describe() | of_sampler(job.recipe.rollout)
        about |= {"processes": world.everyone} if world.everyone > 1 else {}
        if world.writes:
            write_json(folder.environment, about)
        policy = initial_policy(job.recipe, Path(job.cache), job.seed)
        weights = policy.weights_hash()
        reference = initial_reference(job.recipe, Path(job.cache), policy) if world.samples else None
        if len(set(world.gather_all(weights))) > 1:
            raise RunnerError(f"the processes of this run have loaded different weights of {job.recipe.model.name}")
        about |= {INITIAL_WEIGHTS: weights}
        if world.writes:
            write_json(folder.environment, about)
            _compare_weights(folder, weights)
        grader, others = _graders(job, folder, policy, world, stack)
        confined = next((each.confined for each in (grader, *others.values()) if each.confined), "")
        confined = world.gather_all(confined)[-1]  # it samples
        if world.writes and confined:
            about |= {"rewards": confined}
            write_json(folder.environment, about)
        tasks = {HELDOUT: grader.task} | {name: each.task for name, each in others.items()}
        limits = device_memory.limits_of(job, policy, reference, tasks, world)
        if limits is not None:
            policy = replace(policy, limits=limits)
            reference = None if reference is None else replace(reference, limits=limits)
            if world.writes:
                sampled = {} if job.recipe.rollout.engine == "torch" else {"responses_at_a_time"}  # vLLM has its own
                at_once = {name: value for name, value in asdict(limits).items() if name not in sampled}
                write_json(folder.environment, about | at_once)
        learner = Learner.of(job.recipe, policy, world, reference)
        trainer = Trainer(job, folder, learner, asked.is_set, grader, others)
        found = world.gather_all(resume.find(folder, job) if world.writes else None)[0]
        if found is not None:
            attempt, place, progress = found
            checkpoint.load(place, learner)
            if world.writes:
                take_over(folder, attempt, progress.step)
        asked.begun = True
        trainer.run(found[2] if found else None)


def _graders(
    job: Job, folder: RunFolder, policy: Policy, world: World, stack: ExitStack
) -> tuple[Grader, dict[str, Grader]]:
    """Return the grader of a job, and those of the evaluation sets that have problems of their own.

    The files of the functions are written into the folder, as they were planned. All share one environment. A process
    that does not sample grades nothing, so it has no workers.
    """
    recipe, sources, grades = job.recipe, job.options.sources, world.samples
    place, render = folder.path / "rewards", policy.render
    if recipe.functions and sources and world.writes:
        write_sources(sources, place)
    world.gather_all(None)  # the files are there
    beside = place if recipe.functions and sources else None
    environment = environment_of(recipe.turns, beside) if grades else None
    if environment is not None:
        stack.enter_context(environment)
    task = task_of(recipe.task, render, columns=bool(recipe.functions))
    grader = stack.enter_context(Grader(task, recipe.reward.functions, beside, environment, idle=not grades))
    sets = {name: each.task for name, each in job.evaluate.sets.items() if each.task is not None}
    others = {name: task_of(own, render, columns=recipe.turns.kind != "single") for name, own in sets.items()}
    return grader, {
        name: stack.enter_context(Grader(own, environment=environment, idle=not grades)) for name, own in others.items()
    }


def write_sources(sources: Mapping[str, str], place: Path) -> None:
    """Write the files of functions, as they were planned, into the folder ``place``."""
    for name, text in sources.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())


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


def initial_policy(recipe: Recipe, cache: Path, seed: int) -> Policy:
    """Return the policy that a run of the recipe begins with; a tiny model is made in ``cache`` if it isn't there.

    Raises:
        RunnerError: the model cannot be loaded, or the recipe wants kernels that this device cannot run.
    """
    if problem := no_kernels(recipe.compute, best_device().type):
        raise RunnerError(problem)
    model, name, revision = recipe.model, recipe.model.name, recipe.model.revision
    if name in MODELS:
        name, revision = str(_made(recipe, cache, name)), None
    policy = Policy.load(name, revision, model.dtype, model.lora, seed, model.head_dtype, model.trained_dtype)
    if model.train is not None or model.freeze is not None:
        parameters = dict(policy.model.named_parameters())
        trained = frozen.chosen(model, [*parameters])
        for each, weights in parameters.items():
            weights.requires_grad_(each in trained)
    if recipe.compute.gradient_checkpointing:
        gradient_checkpointing.switch_on(policy.model)
    return replace(policy, triton=recipe.compute.head == "triton")


def initial_reference(recipe: Recipe, cache: Path, policy: Policy) -> Policy | None:
    """Return the reference of a recipe that names another model than the policy, which must know its tokens.

    Raises:
        RunnerError: it cannot be loaded, or has another vocabulary.
    """
    other = other_reference(recipe)
    if other is None:
        return None
    name, revision = other.name, other.revision
    if name in MODELS:
        name, revision = str(_made(recipe, cache, name)), None
    reference = Policy.load_frozen(name, revision, recipe.model.dtype, recipe.model.head_dtype)
    if problem := other_vocabulary(other.name, policy.tokenizer.get_vocab(), reference.tokenizer.get_vocab()):
        raise RunnerError(problem)
    return replace(reference, triton=policy.triton)


def _made(recipe: Recipe, cache: Path, name: str) -> Path:
    """Return the folder of a tiny model in ``cache``; it is made if it isn't there."""
    key = fingerprint.one_model(name, None, recipe.task)
    return tiny.make(cache, key, MODELS[name], WarmUp.of(recipe.task))
