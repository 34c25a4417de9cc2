"""The native runner as the platform sees it. Light: torch is imported when a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paribus.contract import (
    LEAST,
    Evaluate,
    EvaluationSet,
    Examination,
    GradientJob,
    Gradients,
    Hashes,
    Job,
    Options,
    Requirements,
    RunnerBase,
    Support,
)
from paribus.errors import MissingExtra, ParibusError, install_command
from paribus.recipe.analysis.facts import other_reference
from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.recipe import DatasetTask, JsonlTask, Recipe, Task
from paribus.recipe.turns import FunctionTurns
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import RunFolder
from paribus.study.evaluation import arm_hashes
from paribus_runners.native import fingerprint
from paribus_runners.native.examine import examine, nearest_file
from paribus_runners.native.requirements import (
    TRITON,
    adapter_faults,
    interpreted,
    kernel_faults,
    mark_faults,
    of_sampler,
    precision_faults,
    sampler_faults,
    sharding_faults,
    team_faults,
    versions,
)
from paribus_runners.native.tiny.spec import MODELS
from paribus_runners.rewards.functions import fault
from paribus_runners.tasks import chain, environment, search
from paribus_runners.tasks.dataset import columns_of
from paribus_runners.tasks.formats import verifier_of
from paribus_runners.tasks.jsonl import columns, first_fault


class NativeOptions(BaseModel):
    """What a study writes beside ``kind: native``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    processes: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="processes of a run on a CPU; on GPUs there is one each"
    )


class NativeRunner(RunnerBase):
    """Implements :class:`paribus.contract.Runner`."""

    name = "native"
    evaluates_sets = True
    ends_by_tokens = True
    ends_by_prompts = True
    options_model = NativeOptions

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return what this runner can't train: it knows all levels of all factors, but not every model fits a task."""
        found = []
        name, tiny = recipe.model.name, MODELS.get(recipe.model.name)
        if tiny is not None and (kind := recipe.task.kind) in ("jsonl", "dataset"):
            reason = (
                f"`model.name: {name}` reads only the symbols of the generated tasks: name another model for `{kind}`. "
                "`paribus init --template own_data` has a small one."
            )
            found.append(Support(feature="task.kind", level="unsupported", reason=reason))
        if isinstance(recipe.task, JsonlTask) and (fault := first_fault(recipe.task)):
            columns = " `kind: dataset` reads others: `prompt: <column>`" if "is missing: each line" in fault else ""
            found.append(Support(feature="task.kind", level="unsupported", reason=f"{fault}.{columns}"))
        if tiny is not None and tiny.mixture is None and recipe.token_weight.kind == "router_shift":
            needs = "`token_weight: router_shift` needs a mixture of experts"
            reason = f"{needs}; `model.name: {name}` is dense: set `tiny_moe`."
            found.append(Support(feature="token_weight.kind", level="unsupported", reason=reason))
        if tiny is not None and tiny.mixture is None and recipe.rollout.routing_replay != "off":
            needs = "`rollout.routing_replay` needs a mixture of experts"
            reason = f"{needs}; `model.name: {name}` is dense: set `tiny_moe`."
            found.append(Support(feature="rollout.routing_replay", level="unsupported", reason=reason))
        found += [Support(feature="rollout.engine", level="unsupported", reason=f"{fault}.")
                  for fault in sampler_faults(recipe)]  # fmt: skip
        processes = options.own.get("processes")
        found += [Support(feature="compute", level="unsupported", reason=f"{fault}.")
                  for fault in (*precision_faults(recipe), *sharding_faults(recipe),
                                *team_faults(recipe, processes), *kernel_faults(recipe, processes))]  # fmt: skip
        found += [Support(feature="model.lora", level="unsupported", reason=f"{fault}.")
                  for fault in adapter_faults(recipe)]  # fmt: skip
        found += [Support(feature="reward.functions", level="unsupported", reason=f"{fault}.")
                  for fault in _reward_faults(recipe, options)]  # fmt: skip
        found += [Support(feature="turns", level="unsupported", reason=f"{fault}.")
                  for fault in _turn_faults(recipe, options)]  # fmt: skip
        return found

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return that a run uses any number of GPUs and nodes, or on CPUs a core a process; and who samples.

        Kernels in Triton need a GPU, or a part of one.
        """
        mathematics = ("math-verify", "sympy") if _verifier(recipe.task) == "math_verify" else ()
        adapters = () if recipe.model.lora is None else ("peft",)
        kernels = TRITON if recipe.compute.head == "triton" else ()
        found = {**versions("torch", "transformers", *mathematics, *adapters, *kernels), **of_sampler(recipe.rollout)}
        processes = options.own.get("processes")
        samplers = recipe.compute.sampling_processes
        least = float(samplers + 1) if samplers else LEAST if kernels and not interpreted() else 0.0
        return Requirements(
            least_gpus=least if processes is None else 0.0,
            most_gpus=None if processes is None else 0.0,
            least_cpus=int(processes or 1),
            processes=processes,
            versions=found,
            samples_with_training_code=recipe.rollout.engine == "torch",
        )

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of the trainer's source, of problems, verifier and reward functions, and of the initial model.

        Raises:
            ParibusError: a file cannot be read.
        """
        try:
            data = fingerprint.data(recipe, options.sources)
        except ParibusError as error:
            if nearest := nearest_file(str(error)):
                raise ParibusError(f"{error}.{nearest}") from error
            raise
        return Hashes(code=fingerprint.code(recipe), data=data, model=fingerprint.model(recipe))

    def set_hash(self, recipe: Recipe, options: Options, chosen: EvaluationSet) -> str:
        """Return a hash of the problems and the verifier of an evaluation set.

        Raises:
            ParibusError: a file cannot be read, or the model of the recipe cannot read the problems.
        """
        task, name = chosen.task or recipe.task, recipe.model.name
        if name in MODELS and task.kind != recipe.task.kind:
            raise ParibusError(
                f"`model.name: {name}` knows the task it is made for alone, `{recipe.task.kind}`: leave `task` out, or "
                "name another model"
            )
        found = fingerprint.problems(task)
        if isinstance(task, JsonlTask) and (fault := first_fault(task)):
            raise ParibusError(fault)
        if missing := _missing_verifier(task):
            raise ParibusError(missing)
        return found

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Return processes, counts, the first prompt and overlaps of the problems, and what is wrong with them."""
        processes = options.own.get("processes")
        found = examine(recipe, evaluate, processes)
        facts = () if processes is None else (f"processes: {processes} a run, on CPUs",)
        return replace(found, facts=(*facts, *found.facts))

    def warm(self) -> None:
        """Import torch and transformers, so that forked processes start at once; nothing is computed."""
        _main()

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make the tiny models that the recipe uses in ``cache``, if it uses some and they aren't there."""
        _main().prepare(recipe, cache)

    def run(self, folder: Path) -> None:
        """Train the job in ``folder`` to its end.

        Raises:
            RunFolderError: ``job.json`` is not a job.
            ParibusError: a file of data or model cannot be read, or has changed since the study was planned.
            SystemExit: with status 75 after SIGTERM.
        """
        self._refuse_changed_files(read_job(RunFolder(folder).job))
        _main().run(folder)

    def _refuse_changed_files(self, job: Job) -> None:
        """Raise an error if the results of a job would be recorded under a fingerprint of other data or models."""
        tasks = (job.recipe.task, *(each.task for each in job.evaluate.sets.values()))
        outside = any(isinstance(task, JsonlTask | DatasetTask) for task in tasks)  # generated problems can't change
        other = other_reference(job.recipe)
        models = [job.recipe.model.name, *(() if other is None else (other.name,))]
        folders = [Path(name).expanduser() for name in models]
        if job.hashes is None or not (outside or any(path.is_dir() or path.is_absolute() for path in folders)):
            return
        now = arm_hashes(self, job.recipe, job.options, job.evaluate)
        changed = []
        if now.data != job.hashes.data:
            changed.append("data (training, held out or of an evaluation set)")
        if now.model != job.hashes.model:
            changed.append(f"initial model ({' or '.join(models)})")
        if changed:
            raise ParibusError(
                f"{' and '.join(changed)} changed since the study was planned: restore the files and run "
                f"`paribus retry {job.study}`, or submit the study again, with its file"
            )

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Return the weight of each token in the gradient, computed by the functions that training calls."""
        module = _heavy("coefficients", "computing coefficients with the native runner")
        found: Sequence[ResponseCoefficients] = module.view(recipe, responses)
        return found

    def gradients(self, asked: GradientJob) -> Gradients:
        """Return the gradients of several objectives, computed by the functions that training calls."""
        found: Gradients = _heavy("gradients", "computing gradients with the native runner").gradients(asked)
        return found


def _reward_faults(recipe: Recipe, options: Options) -> Iterator[str]:
    """Yield what keeps the verifier or a reward function from running, as far as it shows without running it."""
    if missing := _missing_verifier(recipe.task):
        yield missing
    for name, function in recipe.reward.functions.items():
        if problem := fault(f"reward.functions.{name}", function, options.sources, _columns(recipe.task)):
            yield problem


def _turn_faults(recipe: Recipe, options: Options) -> Iterator[str]:
    """Yield what keeps turns from being answered, as far as it shows without loading model and function."""
    turns = recipe.turns
    if not isinstance(turns, FunctionTurns):
        return
    if problem := fault("turns", turns, options.sources, _columns(recipe.task), environment.GIVEN):
        yield problem
    if recipe.model.name in MODELS and recipe.task.kind in ("chain", "search"):
        symbols = (chain if recipe.task.kind == "chain" else search).SYMBOLS
        yield from mark_faults(turns.marks, lambda text: [symbols.find(letter) for letter in text], -1)


def _columns(task: Task) -> dict[str, str] | None:
    """Return the columns of the problems, each with the first place that lacks it; ``None`` if they can't be read."""
    if isinstance(task, JsonlTask | DatasetTask):
        return columns(task) if isinstance(task, JsonlTask) else columns_of(task)
    return {"answer": ""}


def _verifier(task: Task) -> str:
    """Return the verifier of problems from files; empty for generated ones."""
    if isinstance(task, DatasetTask):
        return verifier_of(task)
    return task.verifier if isinstance(task, JsonlTask) else ""


def _missing_verifier(task: Task) -> str:
    """Return what to install for a verifier that is a library of its own; empty if nothing is missing."""
    if _verifier(task) != "math_verify" or versions("math-verify"):
        return ""
    return f"`task.verifier: math_verify` needs a part that is not installed. Install it: {install_command('math')}"


def _main() -> ModuleType:
    """Import the module that trains."""
    return _heavy("main", "training with the native runner")


def _heavy(name: str, why: str) -> ModuleType:
    """Import a module that needs torch.

    Raises:
        MissingExtra: torch, transformers, tokenizers or safetensors are not installed.
    """
    try:
        return import_module(f"paribus_runners.native.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra("train", f"{why} ({error.name})") from error
