"""A runner that trains nothing and supports everything, for tests of what stands above runners.

Like any runner it is found by its entry point. Paribus installs none for it: a test calls :func:`install` and puts the
folder on the path. How the runner behaves is chosen as :mod:`paribus.testing.fake_training` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.study.coefficients import ResponseCoefficients
from paribus.study.responses import Response
from paribus.testing import fake_training


@dataclass(frozen=True, kw_only=True)
class FakeRunner:
    """Implements :class:`paribus.study.runner.Runner` with fingerprints that depend on their subject alone.

    Attributes:
        name: the runner's name.
        missing: what :meth:`unsupported` answers for recipes whose ``clip.kind`` is a key, one sentence each.
        version: changes the code fingerprint, as a new version of a trainer would.
    """

    name: str = "fake"
    missing: tuple[tuple[str, str], ...] = ()
    version: str = "1"

    def unsupported(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the sentences of :attr:`missing` for the recipe's clip rule."""
        return tuple(sentence for kind, sentence in self.missing if recipe.clip.kind == kind)

    def code_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of :attr:`version`."""
        return fingerprint_of(["code", self.version])

    def data_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the task."""
        return fingerprint_of(["data", recipe.task.model_dump(mode="json")])

    def model_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the model and the task that warms it up."""
        return fingerprint_of(["model", recipe.model.model_dump(mode="json"), recipe.task.kind])

    def warm(self) -> None:
        """Import nothing."""

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make nothing."""

    def run(self, folder: Path) -> None:
        """Write made-up numbers, or misbehave as the environment says."""
        fake_training.train(folder)

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Return those of a sum of R log pi: c is the score of the response at each token."""
        return [_reinforce(x) for x in responses]


def _reinforce(response: Response) -> ResponseCoefficients:
    ones, zeros = (1.0,) * response.length, (0.0,) * response.length
    c = tuple(response.score for _ in ones)
    return ResponseCoefficients(
        state="in_loss", reward=response.score, weight=1.0, advantage=c, token_weight=ones, correction=ones,
        ratio=ones, factor=ones, surrogate=c, kl=zeros, nll=zeros, total=c,
    )  # fmt: skip


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
