"""The native runner as the platform sees it. Light: torch is imported when a run starts."""

from __future__ import annotations

from pathlib import Path

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
        from paribus_runners.native import session  # noqa: F401 - the import is the purpose

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make the tiny model in ``cache`` if the recipe uses it and it is not there."""
        from paribus_runners.native import session

        session.prepare(recipe, cache)

    def run(self, folder: Path) -> None:
        """Train the job in ``folder`` to its end."""
        from paribus_runners.native import session

        session.run(folder)
