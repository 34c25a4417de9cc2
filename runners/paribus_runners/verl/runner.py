"""The verl runner as the platform sees it: what it claims and what it is made of. It plans, and does not train."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from paribus.contract import Evaluate, Examination, OptionProblem, Options, Requirements, Support
from paribus.errors import ParibusError, RunnerError
from paribus.recipe.recipe import Recipe
from paribus_runners.environments import clean_environment
from paribus_runners.installed import InstalledRunner
from paribus_runners.verl.options import VerlOptions, options_of
from paribus_runners.verl.overrides import written
from paribus_runners.verl.sizes import faults

PLANS_ONLY = (
    "this runner plans studies of verl, and does not start verl: nothing has been trained with it. "
    "docs/howto/verl.md says what it does, and how to train with the options of a plan"
)


class VerlRunner(InstalledRunner):
    """Implements :class:`paribus.contract.Runner`; problems and sets are those of the native runner."""

    name = "verl"
    tried = "imported verl, vLLM and TransferQueue; nothing was trained"
    title: ClassVar[str] = "verl"
    here: ClassVar[Path] = Path(__file__).resolve().parent
    counted: ClassVar[tuple[str, ...]] = ("verl", "torch", "transformers", "vllm", "ray", "tensordict")
    own_options: ClassVar[type[BaseModel]] = VerlOptions
    options_model = VerlOptions  # type: ignore[assignment] # of RunnerBase: any model

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return what is wrong with the options, and with those that are passed on to verl."""
        if found := super().check_options(options):
            return found
        return [
            OptionProblem(path=(name,), message=str(error), passthrough=True)
            for name, value in options.passthrough.items()
            if (error := _unwritable(name, value))
        ]

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return what verl does not do, or does otherwise; and what keeps any run from this model or task."""
        capabilities, own = self.matrix(options).capabilities, self.own(options)
        several = [Support(feature=place, level=level, reason=reason)
                   for place, level, reason in faults(recipe, deterministic=own.deterministic)]  # fmt: skip
        others = [s for s in super().support(recipe, options) if not s.feature.startswith("rollout.")]
        return (*capabilities.support(recipe), *several, *others)

    def native_options(self, recipe: Recipe, options: Options) -> Mapping[str, Any]:
        """Return verl's options that a recipe decides; seeds, folders, GPUs and evaluations are a run's own."""
        return options_of(self.matrix(options).capabilities, recipe, options.passthrough, self.own(options))

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return that a run needs a GPU, its environment, and the versions that count."""
        return Requirements(
            least_gpus=1.0,
            environment=str(self.environment(options).folder),
            versions=self.counted_versions(options),
        )

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make nothing: verl trains no model that is made on the spot."""

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Return what every runner sees, the versions, and that no run would be started.

        No step repeats problems: verl's loader refuses data that don't fill a batch.
        """
        found = super().examine(recipe, evaluate, options)
        return replace(found, faults=(*found.faults, PLANS_ONLY), problems=None)

    def run(self, folder: Path) -> None:
        """Refuse the job: verl is not started.

        Raises:
            RunnerError: always.
        """
        raise RunnerError(PLANS_ONLY)

    def check(self) -> Iterator[str]:
        """Import verl and the parts of it that a run uses; yield what is wrong. Nothing is trained."""
        command = [str(self.environment().python), "-c", "import verl.trainer.main_ppo, vllm, transfer_queue"]
        done = subprocess.run(
            command, env=clean_environment(Path()), text=True, errors="replace", capture_output=True, check=False
        )
        if done.returncode:
            yield (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _unwritable(name: str, value: Any) -> ParibusError | None:
    try:
        written(value, name)
    except ParibusError as error:
        return error
    return None
