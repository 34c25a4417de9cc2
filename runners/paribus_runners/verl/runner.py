"""The verl runner as the platform sees it: what it claims, what it is made of, and one run of it. Light: no torch."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from paribus.contract import OptionProblem, Options, Requirements, Support
from paribus.errors import ParibusError, RunnerError
from paribus.recipe.recipe import Recipe
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import RunFolder
from paribus_runners.environments import clean_environment
from paribus_runners.installed import InstalledRunner
from paribus_runners.verl.options import VerlOptions, options_of
from paribus_runners.verl.overrides import written
from paribus_runners.verl.sizes import faults

UNTRIED = (
    "no training with verl has ever been tried with this runner, only its configuration: read docs/howto/verl.md, and "
    "write `runner: {kind: verl, untested: true}` to try it"
)


class VerlRunner(InstalledRunner):
    """Implements :class:`paribus.contract.Runner`; problems and sets are those of the native runner."""

    name = "verl"
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

    def run(self, folder: Path) -> None:
        """Refuse the job: no training with verl has been tried.

        Raises:
            RunFolderError: ``job.json`` is not a job, or a record cannot be written.
            RunnerError: always; the message says what is missing.
        """
        job = read_job(RunFolder(folder).job)
        if not self.own(job.options).untested:
            raise RunnerError(UNTRIED)
        self._refuse_changed_files(job)
        self.ready(job.options)
        self.refuse_other_code(job)

    def check(self) -> Iterator[str]:
        """Import verl and the parts of it that a run uses; yield what is wrong. Nothing is trained."""
        command = [str(self.environment().python), "-c", "import verl.trainer.main_ppo, vllm, transfer_queue"]
        done = subprocess.run(command, env=clean_environment(Path()), text=True, capture_output=True, check=False)
        if done.returncode:
            yield (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _unwritable(name: str, value: Any) -> ParibusError | None:
    try:
        written(value, name)
    except ParibusError as error:
        return error
    return None
