"""Runners: what trains. Found by entry points, listed from metadata, loaded on use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, cast

from paribus.errors import ParibusError, did_you_mean
from paribus.recipe.recipe import Recipe
from paribus.study.coefficients import ResponseCoefficients
from paribus.study.responses import Response

GROUP = "paribus.runners"


class Runner(Protocol):
    """What an entry point of the group ``paribus.runners`` names. Importing it must load nothing heavy."""

    name: str

    def unsupported(self, recipe: Recipe) -> tuple[str, ...]:
        """Return what of the recipe this runner cannot train, one sentence each; empty: it can train all of it."""

    def code_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the code that the numbers of a run depend on."""

    def data_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of problems and verifier: generator version and parameters, or file contents.

        Raises:
            ParibusError: a data file cannot be read.
        """

    def model_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the initial model: how it is made, file contents, or name and revision."""

    def warm(self) -> None:
        """Import what is heavy, so that a process forked later starts at once. Must not start threads or use a GPU."""

    def run(self, folder: Path) -> None:
        """Train the job in ``folder/job.json`` to its end and write ``result.json`` last.

        On SIGTERM: write a checkpoint at the next step boundary and raise ``SystemExit(75)``. The process ends by
        exception on failure. A folder ``../a<smaller token>/checkpoint`` may be resumed from.
        """

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make what runs share (tiny model, data), once, under a lock; may take minutes."""

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Return the weight of each token in the gradient, one record a response, all in one optimizer batch.

        They are those of the code that trains. The command `paribus recipes coefficients` shows them, and
        :func:`paribus.study.coefficients.summary` says where they lie, for the rollouts of a run as well.

        Raises:
            MissingExtra: what computes them is not installed.
        """


def available() -> Sequence[EntryPoint]:
    """Return the installed runners by name, without importing one."""
    return sorted(entry_points(group=GROUP), key=lambda e: e.name)


def load_runner(name: str) -> Runner:
    """Return the runner ``name``.

    Raises:
        ParibusError: no runner has this name; the message lists those that there are.
    """
    names = [e.name for e in available()]
    for entry in available():
        if entry.name == name:
            return cast(Runner, entry.load())
    raise ParibusError(f"there is no runner `{name}`.{did_you_mean(name, names)} Installed: {', '.join(names)}.")
