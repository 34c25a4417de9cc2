"""The contract between Paribus and a training program: the job, the resources of a run, and the runner.

**To write a runner**, subclass :class:`RunnerBase`, set ``name``, write ``run``, and name an instance of the class in
the entry points of your package::

    [project.entry-points."paribus.runners"]
    toy = "my_package.toy:runner"

``run`` gets the folder of one attempt. It reads the :class:`Job` in ``job.json``, trains, appends one line a step to
``metrics.jsonl``, writes an evaluation of each set that ``job.evaluate.due`` names, and writes ``result.json`` last.
:class:`paribus.run_folder.folder.RunFolder` reads and writes these files; :mod:`paribus.run_folder.metrics` lists the
metrics. This runner is complete; a real one trains where this one draws numbers::

    class Toy(RunnerBase):
        name = "toy"
        evaluates_sets = True

        def run(self, folder: Path) -> None:
            files = RunFolder(folder)
            job = Job.model_validate_json(files.job.read_bytes())
            chance, steps = random.Random(job.seed), job.recipe.schedule.steps
            write_json(files.environment, {"toy": "1"})
            for step in range(steps + 1):
                skill = 0.2 + job.recipe.clip.high * step / steps
                values = {"reward/mean": skill + chance.gauss(0, 0.01)}
                for name, chosen in job.evaluate.due(step, steps).items():
                    n, k = chosen.problems, chosen.samples
                    right = tuple(sum(chance.random() < skill for _ in range(k)) for _ in range(n))
                    files.write_evaluation(Evaluation(
                        step=step, set=name, samples=k, problems=tuple(map(str, range(n))), correct=right,
                        truncated=(0,) * n, tokens=(9 * k,) * n, tokens_correct=tuple(9 * c for c in right),
                        answers=tuple({"right": c, "wrong": k - c} for c in right),
                    ))
                    values[f"eval/{name}/avg_at_{k}"] = sum(right) / (n * k)
                files.append_metrics(MetricLine(step=step, time_ms=time.time_ns() // 1_000_000, values=values))
            write_json(files.result, {"status": "succeeded", "steps": steps})


    runner = Toy()

All other members of :class:`Runner` have a default in :class:`RunnerBase`. Override ``support`` to declare what your
program trains approximately or not at all, ``requirements`` to declare GPUs and package versions, ``hashes`` if the
numbers depend on more files than the one that defines the class, and ``examine`` to show a plan what the data hold. A
runner that sets ``evaluates_sets`` also evaluates the sets of ``evaluate.sets``, each with its own problems, responses,
temperature, top-p and length limit; without it, a study with sets is refused. Test the runner with
``paribus.testing.runner_suite.RunnerTestCase``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from paribus.errors import ParibusError, did_you_mean
from paribus.evaluate import HELDOUT
from paribus.evaluate import Evaluate as Evaluate  # runners find the whole contract here
from paribus.evaluate import EvaluationSet as EvaluationSet
from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.recipe import DatasetTask, JsonlTask, Recipe, Task, fingerprint_of
from paribus.yaml_file.messages import explain, fields_at, plain_location, split_errors

GROUP = "paribus.runners"

PREEMPTED = 75
"""Exit status of a runner that was asked to stop and can be resumed from a checkpoint."""

LEAST = 0.01
"""The smallest part of a GPU that a run can hold."""


class Checkpoints(BaseModel):
    """When a run writes checkpoints. They change no number, so this is part of no fingerprint."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    every: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="steps between checkpoints; absent: one after each evaluation. The last step always"
    )
    keep: Annotated[int, Field(ge=1)] = Field(default=1, description="newest checkpoints of an attempt that are kept")

    def about(self) -> str:
        """Return it in words, e.g. ``every 20 steps; the newest 2 are kept``."""
        steps = {None: "after each evaluation", 1: "after each step"}
        kept = "the newest is kept" if self.keep == 1 else f"the newest {self.keep} are kept"
        return f"{steps.get(self.every, f'every {self.every} steps')}; {kept}"


class Options(BaseModel):
    """What a study file says to its runner beside the recipe. Empty in most studies. Part of the fingerprint.

    Attributes:
        own: options that the runner defines: the keys beside ``kind`` in ``runner: {kind: command, ...}``.
        passthrough: settings in the words of the training library, handed on as they are: the section of the study
            file that is named after the runner, e.g. ``trl: {...}``.
        sources: the Python files beside the study file that its reward functions come from, by their path from its
            folder, as they were when the study was planned; empty without such functions. Runs train with these, so a
            file that is edited later changes nothing that was planned. Not part of the fingerprint by themselves: the
            runner's hashes cover them for the arms that use them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    own: dict[str, Any] = {}
    passthrough: dict[str, Any] = {}
    sources: dict[str, str] = {}

    @field_validator("own", "passthrough", mode="before")
    @classmethod
    def _as_json(cls, given: Any) -> Any:
        return json.loads(json.dumps(given, allow_nan=False))  # so that a stored plan equals the one that was made

    @field_validator("sources")
    @classmethod
    def _inside(cls, sources: dict[str, str]) -> dict[str, str]:
        """Refuse a path that leads out of the folder into which a run writes the files."""
        if wrong := [p for p in sources if not p or p.startswith("/") or {"..", ""} & set(p.split("/"))]:
            raise ValueError(f"{wrong[0]!r} is not the path of a file beside the study")
        return sources

    @model_serializer(mode="wrap")
    def _without_no_sources(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out ``sources`` without any: version 0.1 reads plans and jobs too."""
        values: dict[str, Any] = dump(self)
        return values if self.sources else {k: v for k, v in values.items() if k != "sources"}

    @property
    def said(self) -> dict[str, Any]:
        """What the study says to its runner, for fingerprints; empty if it says nothing."""
        return {"own": self.own, "passthrough": self.passthrough} if self.own or self.passthrough else {}


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """SHA-256 of what the numbers of an arm depend on beside its recipe, 64 hexadecimal digits each.

    Attributes:
        code: the training program.
        data: problems and verifier: generator version and parameters, or file contents.
        model: the initial model: how it is made, file contents, or name and revision.
    """

    code: str
    data: str
    model: str


class Job(BaseModel):
    """One arm with one seed, resolved.

    Attributes:
        run: fingerprint, 64 hexadecimal digits.
        study: name of the study that first asked for the run.
        arm: label of the arm in that study.
        options: what the study says to the runner beside the recipe.
        seed: seeds sampling, prompt order and everything random in the run.
        token: fence token of the attempt, from 1.
        cache: folder for things made once (tiny models, data), shared by runs.
        stop_on: detectors that stop the run when they are critical.
        profile: thresholds of the detectors.
        checkpoint: when to write checkpoints, and how many to keep.
        hashes: of code, data and initial model when the arm was planned, so that a runner can refuse files that were
            changed since; ``None``: not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = 1
    run: str
    study: str
    arm: str
    runner: str
    options: Options = Options()
    seed: int
    token: int
    recipe: Recipe
    evaluate: Evaluate
    cache: str
    stop_on: tuple[str, ...] = ()
    profile: str = "default"
    checkpoint: Checkpoints = Checkpoints()
    hashes: Hashes | None = None


class Resources(BaseModel):
    """What each run holds; the engine chooses what is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    gpus: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="GPUs of a run: whole ones, a part of one (0.25 puts four runs on one), or 0"
    )
    cpus: Annotated[int, Field(ge=1)] | None = Field(default=None, description="CPU cores of a run")

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float | None) -> float | None:
        if gpus is not None and (0 < gpus < LEAST or (gpus > 1 and gpus != int(gpus))):
            raise ValueError(
                f"{gpus:g} GPUs are not possible: write 0, a part of one from {LEAST} on, or a whole number"
            )
        return gpus

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_plan(cls, values: Any, info: ValidationInfo) -> Any:
        """Read stored plans of versions in which a run could declare GiB of a GPU: such a run gets a whole GPU."""
        if info.mode == "json" and isinstance(values, dict) and "gpu_memory_gib" in values:
            values = dict(values)
            if values.pop("gpu_memory_gib") is not None:
                values["gpus"] = 1.0
        return values

    @property
    def declared(self) -> bool:
        """Whether the study declares anything."""
        return self != Resources()

    def about(self) -> str:
        """Return the declared resources in words, e.g. ``2 GPUs, 4 CPU cores``."""
        parts = []
        if self.gpus is not None:
            parts.append("1 GPU" if self.gpus == 1 else f"{self.gpus:g} GPUs")
        if self.cpus is not None:
            parts.append("1 CPU core" if self.cpus == 1 else f"{self.cpus} CPU cores")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run holds on an engine.

    Attributes:
        gpus: whole GPUs, or a fraction of one; 0: none.
        cpus: CPU cores that are counted.
        threads: threads for numerical libraries; ``None``: their own choice.
    """

    gpus: float = 0.0
    cpus: float = 0.0
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device of a machine that runs hold: a GPU, or all CPU cores together.

    Attributes:
        name: as in ``CUDA_VISIBLE_DEVICES``; ``cpu``.
        amount: 1 for a GPU, otherwise the number of cores.
        memory: GiB of a GPU; 0: unknown.
        used: GiB of it in use, by any process.
    """

    kind: Literal["gpu", "cpu"]
    name: str
    amount: float
    memory: float = 0.0
    used: float = 0.0


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
        most_gpus: most GPUs that a run can use; ``None`` if there is no limit.
        environment: name or path of the Python environment in which the training program runs; empty: this one.
        versions: package to version, of the packages that the numbers depend on.
        samples_with_training_code: whether the code that trains also samples the rollouts, so that both give the same
            log-probabilities up to rounding.
    """

    least_gpus: float = 0.0
    most_gpus: float | None = None
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
    """

    facts: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()


class Runner(Protocol):
    """A training program as Paribus sees it: what an entry point of the group ``paribus.runners`` names.

    Importing it must not import torch or anything else that is slow to load. :class:`RunnerBase` has a default for
    every member but ``name`` and ``run``.
    """

    name: str

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return every mistake in the options of a study; Paribus adds their places in the file."""

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return how well the runner trains each factor level and feature that the recipe uses.

        What is not returned counts as ``exact``. A plan refuses a study with anything ``unsupported``, and warns of
        anything ``approximate``, which the report repeats.
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

        May take seconds. Only the parts ``model`` and ``task`` of the recipe may count: a plan asks once for each
        distinct pair of them.
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


class RunnerBase:
    """Defaults for everything in :class:`Runner` but ``name`` and ``run``.

    Attributes:
        name: what a study writes as ``runner``.
        options_model: pydantic model of :attr:`Options.own`; ``None``: the runner has no options.
        passthrough_model: pydantic model of :attr:`Options.passthrough`; ``None``: nothing is passed through.
        evaluates_sets: whether runs evaluate all sets of ``job.evaluate.due``, not ``heldout`` alone.
    """

    name: str
    evaluates_sets: bool = False
    options_model: type[BaseModel] | None = None
    passthrough_model: type[BaseModel] | None = None

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return what the two models find wrong."""
        return (
            *option_problems(self.name, self.options_model, options.own),
            *option_problems(self.name, self.passthrough_model, options.passthrough, passthrough=True),
        )

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Declare everything ``exact``."""
        return ()

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Declare nothing: any number of GPUs, this environment, other sampling code than training code."""
        return Requirements()

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Hash the file that defines the class with the declared versions, the files of the task, and the model.

        A model or dataset is hashed by its files if it is a local folder, else by its name and revision.
        """
        versions = self.requirements(recipe, options).versions
        model = Path(recipe.model.name).expanduser()
        weights = files_in(model) if model.is_dir() else []
        return Hashes(
            code=fingerprint_of([_hash_of(Path(inspect.getfile(type(self)))), dict(versions)]),
            data=_hash_of_task(recipe.task, *([options.sources] if recipe.reward.functions else [])),
            model=fingerprint_of(
                [recipe.model.name, recipe.model.revision, [[str(p.relative_to(model)), _hash_of(p)] for p in weights]]
            ),
        )

    def set_hash(self, recipe: Recipe, options: Options, chosen: EvaluationSet) -> str:
        """Hash the set's task and its files.

        Raises:
            ParibusError: a file cannot be read, or the runner does not evaluate sets.
        """
        if not self.evaluates_sets:
            raise ParibusError(f"the runner `{self.name}` evaluates `{HELDOUT}` alone: remove this set")
        return _hash_of_task(chosen.task or recipe.task)

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Look at nothing."""
        return Examination()

    def warm(self) -> None:
        """Import nothing."""

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make nothing."""

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Raise an error: this runner does not compute them."""
        raise ParibusError(f"the runner `{self.name}` does not compute the weights of tokens: use `native`.")


def option_problems(
    runner: str, model: type[BaseModel] | None, given: Mapping[str, Any], *, passthrough: bool = False
) -> Sequence[OptionProblem]:
    """Return what is wrong with options that a pydantic model describes.

    Args:
        runner: name of the runner, for messages.
        model: describes the options; ``None``: there are none.
        given: as in :class:`Options`.
        passthrough: whether they are :attr:`Options.passthrough`.
    """
    if model is None:
        what = (
            f"the runner `{runner}` passes nothing through" if passthrough else f"the runner `{runner}` has no options"
        )
        return [OptionProblem(path=(key,), message=f"{what}: remove `{key}`", passthrough=passthrough, at_key=True)
                for key in given]  # fmt: skip
    try:
        model.model_validate(given)
    except ValidationError as error:
        found = []
        for item in split_errors(error):
            unknown, missing = item["type"] == "extra_forbidden", item["type"] == "missing"
            path = plain_location(item, given)
            message = explain(item, fields_at(model, item["loc"]) if unknown else ())
            found.append(
                OptionProblem(
                    path=path[:-1] if missing else path,
                    message=f"`{path[-1]}` is missing" if missing else message,
                    passthrough=passthrough,
                    at_key=unknown,
                )
            )
        return found
    return ()


def _hash_of_task(task: Task, *more: Any) -> str:
    paths = [Path(p).expanduser() for p in _paths_of(task)]
    files = [q for p in paths for q in (files_in(p) if p.is_dir() else [p])]
    return fingerprint_of([task.model_dump(mode="json"), [_hash_of(p) for p in files], *more])


def _paths_of(task: Task) -> Sequence[str]:
    """Return the files and folders that a task names."""
    if isinstance(task, JsonlTask):
        return (task.train, task.heldout)
    if isinstance(task, DatasetTask):
        return tuple(source.path for source in (task.train, task.heldout) if source.path is not None)
    return ()


def files_in(folder: Path) -> list[Path]:
    """Return all files in a folder and its folders, sorted; none of what is hidden, such as marks of a download.

    Raises:
        ParibusError: a folder cannot be read.
    """
    try:
        shown = (p for p in folder.rglob("*") if not any(x.startswith(".") for x in p.relative_to(folder).parts))
        return sorted(p for p in shown if p.is_file())
    except OSError as error:
        raise ParibusError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def _hash_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ParibusError(f"cannot read {path}: {error.strerror or error}") from error


def available() -> Sequence[EntryPoint]:
    """Return the entry points of the installed runners by name, without importing one."""
    return sorted(entry_points(group=GROUP), key=lambda e: e.name)


def unknown_runner(name: str) -> str:
    """Return that no runner of this name is installed, and which are; empty if one is."""
    names = [e.name for e in available()]
    if name in names:
        return ""
    return f"there is no runner `{name}`.{did_you_mean(name, names)} Installed: {', '.join(names)}."


def load_runner(name: str) -> Runner:
    """Return the runner ``name``.

    Raises:
        ParibusError: no runner has this name; the message lists the installed ones.
    """
    if problem := unknown_runner(name):
        raise ParibusError(problem)
    return cast(Runner, next(e for e in available() if e.name == name).load())
