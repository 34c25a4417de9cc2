"""What runners have in common whose trainer lies in an environment of its own: its versions, its matrix, its state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from paribus.contract import Evaluate, Examination, Hashes, OptionProblem, Options, RunnerBase
from paribus.errors import ParibusError
from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus_runners.capabilities import Matrix, matrix_for
from paribus_runners.environments import Environment, public
from paribus_runners.native import fingerprint
from paribus_runners.native.runner import NativeRunner


class InstalledRunner(NativeRunner):
    """A runner with an environment of its own; problems, models and sets are those of the native runner.

    Attributes:
        title: the trainer in messages.
        here: the folder of the runner, with its lock file and capability files.
        counted: packages of the environment on whose versions the numbers depend.
        own_options: pydantic model of the runner's options, with a field ``environment``.
    """

    title: ClassVar[str]
    here: ClassVar[Path]
    counted: ClassVar[tuple[str, ...]]
    own_options: ClassVar[type[BaseModel]]
    ends_by_tokens = False
    ends_by_prompts = False

    def own(self, options: Options | None) -> Any:
        """Return the options of the runner; the defaults where they are wrong, which is refused elsewhere."""
        try:
            return self.own_options.model_validate(options.own if options else {})
        except ValidationError:
            return self.own_options()

    def environment(self, options: Options | None = None) -> Environment:
        """Return the environment that runs use."""
        named = self.own(options).environment
        return Environment(self.name, self.here / "requirements.lock", Path(named).expanduser() if named else None)

    def matrix(self, options: Options | None = None) -> Matrix:
        """Return what the version can do that runs use; without an environment, the one that is installed next.

        Raises:
            ParibusError: nothing is known of this version.
        """
        return matrix_for(self.name, public(self.versions(options)[self.name]))

    def versions(self, options: Options | None) -> Mapping[str, str]:
        """Return the version of each package of the environment."""
        environment = self.environment(options)
        return {**environment.locked, **environment.versions}

    def counted_versions(self, options: Options | None) -> dict[str, str]:
        """Return the versions on which the numbers depend."""
        versions = self.versions(options)
        return {name: versions[name] for name in self.counted if name in versions}

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return what is wrong with the options, and with those that are passed on."""
        if found := RunnerBase.check_options(self, Options(own=options.own)):
            return found
        try:
            wrong = list(self.matrix(options).capabilities.wrong_options(options.passthrough))
        except ParibusError as error:
            return [OptionProblem(path=("environment",), message=str(error))]
        return [OptionProblem(path=(name,), message=m, passthrough=True, at_key=True) for name, m in wrong]

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of the code around the trainer with its version and others, of the problems, and of the model.

        Raises:
            ParibusError: a file cannot be read.
        """
        others = super().hashes(recipe, options)
        own = fingerprint.hash_source(self.here.parent, sorted(self.here.glob("*.py")))
        matrix = fingerprint_of(self.matrix(options).capabilities.model_dump(mode="json"))
        return replace(others, code=fingerprint_of([others.code, own, matrix, self.counted_versions(options)]))

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Return what the native runner sees, the versions, and what is wrong with the environment."""
        found = super().examine(recipe, evaluate, Options())
        environment = self.environment(options)
        state, wrong = environment.state()
        if wrong and (state != "other" or environment.named is None):
            return replace(found, faults=(*found.faults, f"{self.title}'s environment: {wrong}"))
        own = f", which is your own: {wrong}" if wrong else ""
        versions = ", ".join(f"{k} {v}" for k, v in self.counted_versions(options).items())
        return replace(found, facts=(f"{self.title}'s environment: {versions}{own}", *found.facts))

    def warm(self) -> None:
        """Import nothing: the trainer is loaded in its own environment."""

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Raise an error: the trainer's loss does not show them."""
        return RunnerBase.coefficients(self, recipe, responses)

    @abstractmethod
    def check(self) -> Iterator[str]:
        """Try the environment; yield what is wrong."""
