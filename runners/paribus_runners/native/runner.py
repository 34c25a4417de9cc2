"""The native runner as the platform sees it. Light: torch is imported when a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from paribus.contract import Evaluate, Examination, Hashes, Options, Requirements, RunnerBase, Support
from paribus.errors import MissingExtra
from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.recipe import JsonlTask, Recipe
from paribus_runners.native import fingerprint
from paribus_runners.native.examine import examine
from paribus_runners.native.tiny.spec import MODELS
from paribus_runners.tasks.jsonl import first_fault


class NativeRunner(RunnerBase):
    """Implements :class:`paribus.contract.Runner`."""

    name = "native"

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return what this runner can't train: it knows all levels of all factors, but not every model fits a task."""
        found = []
        name, tiny = recipe.model.name, MODELS.get(recipe.model.name)
        if tiny is not None and (kind := recipe.task.kind) in ("jsonl", "dataset"):
            reason = (
                f"`model.name: {name}` reads only the symbols of the generated tasks: name another model for `{kind}`."
            )
            found.append(Support(feature="task.kind", level="unsupported", reason=reason))
        if isinstance(recipe.task, JsonlTask) and (fault := first_fault(recipe.task)):
            found.append(Support(feature="task.kind", level="unsupported", reason=f"{fault}."))
        if tiny is not None and tiny.mixture is None and recipe.token_weight.kind == "router_shift":
            needs = "`token_weight: router_shift` needs a mixture of experts"
            reason = f"{needs}; `model.name: {name}` is dense: set `tiny_moe`."
            found.append(Support(feature="token_weight.kind", level="unsupported", reason=reason))
        return found

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return that a run uses at most one GPU and samples with the code that trains."""
        return Requirements(most_gpus=1.0, versions=_versions(), samples_with_training_code=True)

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of the trainer's source, of problems and verifier, and of the initial model.

        Raises:
            ParibusError: a file cannot be read.
        """
        return Hashes(code=fingerprint.code(recipe), data=fingerprint.data(recipe), model=fingerprint.model(recipe))

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Return counts, the first prompt and the overlap of the task's data, and what is wrong with data or model."""
        return examine(recipe, evaluate.problems)

    def warm(self) -> None:
        """Import torch and transformers, so that forked processes start at once; nothing is computed."""
        _main()

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make the tiny model that the recipe uses in ``cache``, if it uses one and it isn't there."""
        _main().prepare(recipe, cache)

    def run(self, folder: Path) -> None:
        """Train the job in ``folder`` to its end."""
        _main().run(folder)

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Return the weight of each token in the gradient, computed by the functions that training calls."""
        module = _heavy("coefficients", "computing coefficients with the native runner")
        found: Sequence[ResponseCoefficients] = module.view(recipe, responses)
        return found


@cache
def _versions() -> dict[str, str]:
    """Return the versions of the packages that train, without importing them."""
    found = {}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


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
