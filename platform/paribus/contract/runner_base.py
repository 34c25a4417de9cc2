"""The base class of runners: a default for every member of the protocol but ``name`` and ``run``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from paribus.contract.files import files_in, input_hash
from paribus.contract.gradients import GradientJob, Gradients
from paribus.contract.job import Hashes, Options
from paribus.contract.runner import Examination, OptionProblem, Requirements, Support
from paribus.errors import ParibusError
from paribus.evaluate import HELDOUT, Evaluate, EvaluationSet
from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.recipe import TINY_MODELS, DatasetTask, JsonlTask, Recipe, Task, fingerprint_of
from paribus.yaml_file.messages import explain, fields_at, plain_location, split_errors


class RunnerBase:
    """Defaults for everything in :class:`Runner` but ``name`` and ``run``.

    Attributes:
        name: what a study writes as ``runner``.
        options_model: pydantic model of :attr:`Options.own`; ``None``: the runner has no options.
        passthrough_model: pydantic model of :attr:`Options.passthrough`; ``None``: nothing is passed through.
        evaluates_sets: whether runs evaluate all sets of ``job.evaluate.due``, not ``heldout`` alone.
        ends_by_tokens: whether runs end with the step that spends ``schedule.tokens``, and evaluate after it.
        ends_by_prompts: the same of ``schedule.prompts``.
    """

    name: str
    evaluates_sets: bool = False
    ends_by_tokens: bool = False
    ends_by_prompts: bool = False
    options_model: type[BaseModel] | None = None
    passthrough_model: type[BaseModel] | None = None

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return what the two models find wrong."""
        return (
            *option_problems(self.name, self.options_model, options.own),
            *option_problems(self.name, self.passthrough_model, options.passthrough, passthrough=True),
        )

    def sources(self, options: Options, folder: Path) -> Mapping[str, str]:
        """Name no files beside a study."""
        return {}

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Declare everything ``exact``."""
        return ()

    def native_options(self, recipe: Recipe, options: Options) -> Mapping[str, Any]:
        """Return none."""
        return {}

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Declare nothing: any number of GPUs, this environment, other sampling code than training code."""
        return Requirements()

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Hash the file that defines the class with the declared versions, the files of the task, and the model.

        A model or dataset is hashed by its files if it is a local folder, else by its name and revision; a tiny
        model is no folder, whatever lies beside the study.
        """
        versions = self.requirements(recipe, options).versions
        model = Path(recipe.model.name).expanduser()
        weights = files_in(model) if recipe.model.name not in TINY_MODELS and model.is_dir() else []
        return Hashes(
            code=fingerprint_of([_hash_of(Path(inspect.getfile(type(self)))), dict(versions)]),
            data=_hash_of_task(recipe.task, *([options.sources] if recipe.functions else [])),
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

    def gradients(self, asked: GradientJob) -> Gradients:
        """Raise an error: this runner does not compute them."""
        raise ParibusError(
            f"the runner `{self.name}` does not compute the gradients of several objectives: a study of the runner "
            "`native` has them."
        )


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
            message = explain(item, fields_at(model, item["loc"]) if unknown else (), model)
            found.append(
                OptionProblem(
                    path=path[:-1] if missing else path,
                    message=f"`{path[-1]}` is missing{_described(model, path)}" if missing else message,
                    passthrough=passthrough,
                    at_key=unknown,
                )
            )
        return found
    return ()


def _described(model: type[BaseModel], path: Sequence[str | int]) -> str:
    """Return what an option is, as its model describes it; empty for one inside another, or without description."""
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return f": {field.description}" if field is not None and field.description else ""


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


def _hash_of(path: Path) -> str:
    try:
        return input_hash(path)
    except OSError as error:
        raise ParibusError(f"cannot read {path}: {error.strerror or error}") from error
