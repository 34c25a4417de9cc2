"""The native runner as the platform sees it. Light: torch is imported when a run starts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from paribus.errors import MissingExtra
from paribus.recipe.recipe import Recipe
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


def _session() -> ModuleType:
    """Import what trains.

    Raises:
        MissingExtra: torch, transformers, tokenizers or safetensors are not installed.
    """
    try:
        return import_module("paribus_runners.native.session")
    except ModuleNotFoundError as error:
        raise MissingExtra("train", f"training with the native runner ({error.name})") from error
