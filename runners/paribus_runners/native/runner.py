"""The native runner as the platform sees it. Light: torch is imported when a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from paribus.errors import MissingExtra
from paribus.recipe.recipe import Recipe
from paribus.study.coefficients import ResponseCoefficients
from paribus.study.responses import Response
from paribus_runners.native import capabilities, fingerprint


class NativeRunner:
    """Implements :class:`paribus.study.runner.Runner`."""

    name = "native"

    def unsupported(self, recipe: Recipe) -> tuple[str, ...]:
        """Return what of the recipe is not trained here, one sentence each."""
        return capabilities.missing(recipe)

    def code_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the trainer's source files."""
        return fingerprint.code(recipe)

    def data_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of problems and verifier; raises ParibusError for an unreadable file."""
        return fingerprint.data(recipe)

    def model_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the initial model; raises ParibusError for an unreadable file."""
        return fingerprint.model(recipe)

    def warm(self) -> None:
        """Import torch and transformers, so that forked processes start at once; nothing is computed."""
        _session()

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make the tiny model in ``cache`` if the recipe uses it and it is not there."""
        _session().prepare(recipe, cache)

    def run(self, folder: Path) -> None:
        """Train the job in ``folder`` to its end."""
        _session().run(folder)

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Return the weight of each token in the gradient, by the functions that training uses."""
        module = _heavy("coefficient_view", "computing coefficients with the native runner")
        found: Sequence[ResponseCoefficients] = module.view(recipe, responses)
        return found


def _session() -> ModuleType:
    """Import what trains."""
    return _heavy("session", "training with the native runner")


def _heavy(name: str, why: str) -> ModuleType:
    """Import a module that needs torch.

    Raises:
        MissingExtra: torch, transformers, tokenizers or safetensors are not installed.
    """
    try:
        return import_module(f"paribus_runners.native.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra("train", f"{why} ({error.name})") from error
