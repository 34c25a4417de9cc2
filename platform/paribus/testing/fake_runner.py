"""A runner that trains nothing and supports everything, for tests of what stands above runners.

Like any runner it is found by its entry point. Paribus installs none for it: a test calls :func:`install` and puts the
folder on the path. How the runner behaves is chosen as :mod:`paribus.testing.fake_training` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paribus.contract import Hashes, Options, Requirements, RunnerBase, Support
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.testing import fake_training


@dataclass(frozen=True, kw_only=True)
class FakeRunner(RunnerBase):
    """Implements :class:`paribus.contract.Runner` with hashes that depend on their subject alone.

    Attributes:
        name: the runner's name.
        missing: pairs of a ``clip.kind`` and why recipes with it are unsupported.
        approximate: pairs of a ``clip.kind`` and why recipes with it are trained approximately.
        gpus: least and most GPUs of a run.
        samples_with_training_code: as in :class:`paribus.contract.Requirements`.
        version: changes the hash of the code, as a new version of a trainer would.
    """

    name: str = "fake"
    missing: tuple[tuple[str, str], ...] = ()
    approximate: tuple[tuple[str, str], ...] = ()
    gpus: tuple[float, float | None] = (0.0, None)
    samples_with_training_code: bool = True
    version: str = "1"

    def warm(self) -> None:
        """Import the detectors: in tests leases are short, and on a slow machine the import outlasts one."""
        import paribus.health.live  # noqa: F401

    def support(self, recipe: Recipe, options: Options) -> tuple[Support, ...]:
        """Return what :attr:`missing` and :attr:`approximate` say of the recipe's clip rule."""
        kind = recipe.clip.kind
        return (
            *(Support(feature="clip.kind", level="unsupported", reason=r) for k, r in self.missing if k == kind),
            *(Support(feature="clip.kind", level="approximate", reason=r) for k, r in self.approximate if k == kind),
        )

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return :attr:`gpus` and :attr:`samples_with_training_code`."""
        least, most = self.gpus
        return Requirements(
            least_gpus=least, most_gpus=most, samples_with_training_code=self.samples_with_training_code
        )

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of :attr:`version`, of the task, and of the model with the task that warms it up."""
        return Hashes(
            code=fingerprint_of(["code", self.version]),
            data=fingerprint_of(["data", recipe.task.model_dump(mode="json")]),
            model=fingerprint_of(["model", recipe.model.model_dump(mode="json"), recipe.task.kind]),
        )

    def run(self, folder: Path) -> None:
        """Write made-up numbers, or misbehave as the environment says."""
        fake_training.train(folder)


runner = FakeRunner()
"""What an entry point names."""


def install(folder: Path) -> Path:
    """Write into ``folder`` what makes Python find the runner ``fake``; put the folder on ``PYTHONPATH``.

    Returns:
        The folder.
    """
    information = folder / "fake-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 0\n")
    (information / "entry_points.txt").write_text(f"[paribus.runners]\nfake = {__name__}:runner\n")
    return folder
