"""The TRL runner as the platform sees it: what it claims, what it is made of, and one run of it. Light: no torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

import paribus
from paribus.contract import Job, Options, Requirements, Support
from paribus.errors import ParibusError, RunnerError
from paribus.recipe.recipe import Recipe
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.checkpoints import MANIFEST, publish
from paribus.run_folder.folder import RunFolder
from paribus.run_folder.resume import find_checkpoint, take_over
from paribus_runners.environments import clean_environment, own_code
from paribus_runners.installed import InstalledRunner
from paribus_runners.program.attempt import Asked, Attempt, Launch, termination
from paribus_runners.trl.check import trained
from paribus_runners.trl.options import TrlOptions, options_of, size_faults

ENTRY = "paribus_runners.trl.entry"


@dataclass(frozen=True)
class Places:
    """Where the entry program finds what, in the folder of an attempt."""

    program: Path

    @property
    def out(self) -> Path:
        """Its outbox."""
        return self.program / "out"


class TrlRunner(InstalledRunner):
    """Implements :class:`paribus.contract.Runner`; problems, models and sets are those of the native runner."""

    name = "trl"
    title: ClassVar[str] = "TRL"
    tried = "trained two steps of the tiny model"
    here: ClassVar[Path] = Path(__file__).resolve().parent
    counted: ClassVar[tuple[str, ...]] = ("trl", "torch", "transformers", "accelerate", "tokenizers")
    own_options: ClassVar[type[BaseModel]] = TrlOptions
    options_model = TrlOptions  # type: ignore[assignment] # of RunnerBase: any model

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return what TRL does not do, or does otherwise; and what keeps any run from this model or task."""
        capabilities = self.matrix(options).capabilities
        own = self.own(options)
        sizes = [Support(feature=place, level=level, reason=reason)
                 for place, level, reason in size_faults(recipe, own.microbatches)]  # fmt: skip
        others = [s for s in super().support(recipe, options) if not s.feature.startswith("rollout.")]
        return (*capabilities.support(recipe), *sizes, *others)

    def native_options(self, recipe: Recipe, options: Options) -> Mapping[str, Any]:
        """Return the options of ``GRPOConfig`` that a run sets; all others are at TRL's defaults."""
        return options_of(self.matrix(options).capabilities, recipe, options.passthrough, self.own(options))

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return that a run uses one GPU at most, its environment, and the versions that count."""
        return Requirements(
            most_gpus=1.0,
            environment=str(self.environment(options).folder),
            versions=self.counted_versions(options),
            samples_with_training_code=True,
        )

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make the tiny model that the recipe uses, in TRL's environment.

        Raises:
            ParibusError: there is no environment, or the program has failed.
        """
        self._ready(None)
        with own_code() as code:
            command = [str(self.environment().python), "-m", ENTRY, "prepare", str(cache)]
            done = subprocess.run(
                command, env=clean_environment(code), input=recipe.model_dump_json().encode(), stderr=subprocess.PIPE
            )
        if done.returncode:
            last = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise ParibusError(f"the tiny model could not be made in TRL's environment: {last}")

    def run(self, folder: Path) -> None:
        """Train the job in ``folder`` to its end, in TRL's environment.

        Raises:
            RunFolderError: ``job.json`` is not a job, or a record cannot be written.
            RunnerError: the training has failed.
            ParibusError: there is no environment, or data or model have changed since the study was planned.
            SystemExit: with status 75 after SIGTERM.
        """
        with termination() as asked:
            attempt = RunFolder(folder)
            job = read_job(attempt.job)
            self._refuse_changed_files(job)
            self._ready(job.options)
            if job.hashes is not None and self.hashes(job.recipe, job.options).code != job.hashes.code:
                raise ParibusError(
                    "the versions in TRL's environment, or the code around it, changed since the study was planned: "
                    "restore them, or submit the study again, with its file"
                )
            with own_code() as code:
                self._train(attempt, job, code, asked)

    def _ready(self, options: Options | None) -> None:
        environment = self.environment(options)
        state, wrong = environment.state()
        if wrong and not (state == "other" and environment.named):
            raise RunnerError(f"TRL's environment on this machine: {wrong}")

    def _train(self, attempt: RunFolder, job: Job, code: Path, asked: Asked) -> None:
        own, environment = self.own(job.options), self.environment(job.options)
        places = Places(attempt.path.resolve() / "trl")
        (places.out / "evals").mkdir(parents=True, exist_ok=True)
        (places.out / "checkpoints").mkdir(exist_ok=True)
        found = find_checkpoint(attempt, job)
        if found:
            take_over(attempt, found[0], found[2])
            if found[2] == job.recipe.schedule.steps:  # the program trains no step, and so writes no checkpoint
                copy = partial(shutil.copytree, found[1], ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)
                publish(attempt, job, found[2], copy)
        command = [str(environment.python), "-m", ENTRY, "train", str(attempt.job.resolve()), str(places.out)]
        if found:
            command += [str(found[1].resolve()), str(found[2])]
        launch = Launch(
            name="TRL",
            command=command,
            places=places,
            environment=clean_environment(code) | {"TOKENIZERS_PARALLELISM": "false", "PARIBUS_HERE": str(Path.cwd())},
            patience=own.patience,
            resumes=True,
            model="",
            about={
                **self.counted_versions(job.options),
                "paribus": paribus.__version__,
                "system": sys.platform,
                "environment": str(environment.folder),
            },
        )
        Attempt(attempt, job, launch, found[2] if found else -1, asked).run()

    def check(self) -> Iterator[str]:
        """Train two steps of the tiny model; yield what is wrong."""
        return trained(self.name)
