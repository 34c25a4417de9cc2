"""The runner: a training program as Paribus sees it, what it declares about itself, and which ones are installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from paribus.contract.gradients import GradientJob, Gradients
from paribus.contract.job import Hashes, Options
from paribus.errors import ParibusError, did_you_mean
from paribus.evaluate import Evaluate, EvaluationSet
from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.recipe import Recipe

GROUP = "paribus.runners"

PREEMPTED = 75
"""Exit status of a runner that was asked to stop and can be resumed from a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Support:
    """How well a runner trains one thing that a recipe or an option asks for.

    Attributes:
        feature: the path that asks for it, e.g. ``clip.kind`` or ``kl.estimator``.
        level: ``exact``: as the formulas of the recipe say; ``approximate``: close to it, and ``reason`` says how far;
            ``unsupported``: not at all.
        reason: one sentence, with what to write instead where there is something.
    """

    feature: str
    level: Literal["exact", "approximate", "unsupported"]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a run needs, and what it is made of.

    Attributes:
        least_gpus: fewest GPUs that a run can use; 0 if it also trains on a CPU.
        most_gpus: most GPUs that a run can use; ``None`` if there is no limit; 0: it gets none unless the study asks.
        least_cpus: fewest CPU cores that a run needs; a run of a study that declares none holds as many.
        processes: processes of a run, of which each of several nodes gets an equal part; ``None``: one a GPU.
        environment: name or path of the Python environment in which the training program runs; empty: this one.
        versions: package to version, of the packages that the numbers depend on.
        samples_with_training_code: whether the code that trains also samples the rollouts, so that both give the same
            log-probabilities up to rounding.
    """

    least_gpus: float = 0.0
    most_gpus: float | None = None
    least_cpus: int = 1
    processes: int | None = 1
    environment: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    samples_with_training_code: bool = False


@dataclass(frozen=True, kw_only=True)
class OptionProblem:
    """One mistake in the options of a study.

    Attributes:
        path: keys that lead to it inside :attr:`Options.own` or :attr:`Options.passthrough`; empty: the whole of it.
        message: what is wrong, and what is allowed.
        passthrough: whether it is in :attr:`Options.passthrough`.
        at_key: whether the last key is wrong, not its value.
    """

    path: tuple[str | int, ...]
    message: str
    passthrough: bool = False
    at_key: bool = False


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What a runner has seen of the data and the model of a recipe.

    Attributes:
        facts: lines that a plan prints, e.g. how many problems there are.
        warnings: codes and messages; a code is one of :data:`paribus.study.spec.WARNING_CODES`, so that a study can
            allow it.
        faults: what would end every run, each with its place and the remedy. Such a plan is shown, but not run.
        problems: number of training problems, of which a step with more prompts would repeat some; ``None``: the task
            has new ones without end, the number is not known, or such a step cannot be.
    """

    facts: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    problems: int | None = None


class Runner(Protocol):
    """A training program as Paribus sees it: what an entry point of the group ``paribus.runners`` names.

    Importing it must not import torch or anything else that is slow to load. :class:`RunnerBase` has a default for
    every member but ``name`` and ``run``.
    """

    name: str

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return every mistake in the options of a study; Paribus adds their places in the file."""

    def sources(self, options: Options, folder: Path) -> Mapping[str, str]:
        """Return the text files beside a study that its options name: path from the study's folder to content.

        A plan holds them, and each job has them in :attr:`Options.sources`, so that a file that is edited later changes
        nothing that was planned. The hashes of the runner must cover them. The options may have any mistake.

        Raises:
            ParibusError: a file cannot be read.
        """

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return how well the runner trains each factor level and feature that the recipe uses.

        What is not returned counts as ``exact``. A plan refuses a study with anything ``unsupported``, and warns of
        anything ``approximate``, which the report repeats.
        """

    def native_options(self, recipe: Recipe, options: Options) -> Mapping[str, Any]:
        """Return the options of the training library under which a recipe is trained, by the library's own names.

        All that a run sets, also what every run has in common: a plan compares arms by it. Empty if there is none.
        """

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return the GPUs, the environment and the package versions of a run."""

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of code, data and initial model.

        Raises:
            ParibusError: a file cannot be read.
        """

    def set_hash(self, recipe: Recipe, options: Options, chosen: EvaluationSet) -> str:
        """Return a hash of the problems and the verifier of an evaluation set; it becomes part of the hash of data.

        Raises:
            ParibusError: a file cannot be read, or a run of this recipe cannot evaluate the set.
        """

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Return what can be seen of data and model before a run: counts, overlaps, rows and files that are damaged.

        May take seconds. Of the recipe only ``model``, ``task`` and ``schedule.max_new_tokens`` may count: a plan asks
        once for each distinct combination of them.
        """

    def warm(self) -> None:
        """Import what is slow to load, so that processes forked later start at once.

        Must not start threads or use a GPU.
        """

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make what runs share (tiny model, data) in the folder ``cache``, once, under a lock. May take minutes."""

    def run(self, folder: Path) -> None:
        """Train the job in ``folder/job.json`` and write ``result.json`` last.

        On SIGTERM: write a checkpoint of the newest complete step and raise ``SystemExit(PREEMPTED)``; a step that
        takes minutes is left without one. On failure: raise any other exception. A run may resume from the checkpoints
        of an attempt with a smaller token; :mod:`paribus.run_folder.checkpoints` writes and finds them.
        """

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Return the weight of each token in the gradient: one record a response, all in one optimizer batch.

        The code that trains must compute them. `paribus recipes coefficients` shows them.

        Raises:
            ParibusError: the runner cannot compute them, or a package that it needs is missing.
        """

    def gradients(self, asked: GradientJob) -> Gradients:
        """Return the gradients of several objectives at the same weights, on the same rollouts; write nothing.

        The code that trains must compute them. `paribus gradients` shows them.

        Raises:
            ParibusError: the runner cannot compute them, the checkpoint is damaged, or a package is missing.
        """


def available() -> Sequence[EntryPoint]:
    """Return the entry points of the installed runners by name, without importing one."""
    return sorted(entry_points(group=GROUP), key=lambda e: e.name)


def unknown_runner(name: str) -> str:
    """Return that no runner of this name is installed, and which are; empty if one is."""
    names = [e.name for e in available()]
    if name in names:
        return ""
    if name == "vllm":
        return (
            "vLLM is no runner: it samples for `native`, with `rollout.engine: vllm` in a recipe. It needs an "
            "environment of its own with Paribus in it: `make vllm` in a checkout, or Paribus with the extra `vllm`"
        )
    return f"there is no runner `{name}`.{did_you_mean(name, names)} Installed: {', '.join(names)}."


def load_runner(name: str) -> Runner:
    """Return the runner ``name``.

    Raises:
        ParibusError: no runner has this name; the message lists the installed ones.
    """
    if problem := unknown_runner(name):
        raise ParibusError(problem)
    return cast(Runner, next(e for e in available() if e.name == name).load())
