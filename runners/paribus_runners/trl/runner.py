"""The TRL runner as the platform sees it: what it claims, what it is made of, and one run of it. Light: no torch."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import paribus
from paribus.contract import (
    Evaluate,
    Examination,
    Hashes,
    Job,
    OptionProblem,
    Options,
    Requirements,
    RunnerBase,
    Support,
)
from paribus.errors import ParibusError, RunnerError
from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import RunFolder
from paribus.run_folder.resume import find_checkpoint, take_over
from paribus_runners.capabilities import Matrix, matrix_for
from paribus_runners.environments import Environment, clean_environment, own_code, public
from paribus_runners.native import fingerprint
from paribus_runners.native.runner import NativeRunner
from paribus_runners.program.attempt import Attempt, Launch, termination
from paribus_runners.trl.check import trained
from paribus_runners.trl.options import TrlOptions, options_of, size_faults

HERE = Path(__file__).resolve().parent
ENTRY = "paribus_runners.trl.entry"
COUNTED = ("trl", "torch", "transformers", "accelerate", "tokenizers")
"""Packages of TRL's environment on whose versions the numbers depend."""


@dataclass(frozen=True)
class Places:
    """Where the entry program finds what, in the folder of an attempt."""

    program: Path

    @property
    def out(self) -> Path:
        """Its outbox."""
        return self.program / "out"


class TrlRunner(NativeRunner):
    """Implements :class:`paribus.contract.Runner`; problems, models and sets are those of the native runner."""

    name = "trl"
    tried = "trained two steps of the tiny model"
    options_model = TrlOptions  # type: ignore[assignment] # of RunnerBase: any model

    def environment(self, options: Options | None = None) -> Environment:
        """Return the environment that runs use."""
        named = _own(options).environment
        return Environment(self.name, HERE / "requirements.lock", Path(named).expanduser() if named else None)

    def matrix(self, options: Options | None = None) -> Matrix:
        """Return what the version of TRL can do that runs use; without an environment, the one that is installed next.

        Raises:
            ParibusError: nothing is known of this version.
        """
        return matrix_for(self.name, public(self._versions(options)["trl"]))

    def _versions(self, options: Options | None) -> Mapping[str, str]:
        environment = self.environment(options)
        return {**environment.locked, **environment.versions}

    def check_options(self, options: Options) -> Sequence[OptionProblem]:
        """Return what is wrong with the options, and with those that are passed on to ``GRPOConfig``."""
        if found := RunnerBase.check_options(self, Options(own=options.own)):
            return found
        try:
            wrong = list(self.matrix(options).capabilities.wrong_options(options.passthrough))
        except ParibusError as error:
            return [OptionProblem(path=("environment",), message=str(error))]
        return [OptionProblem(path=(name,), message=m, passthrough=True, at_key=True) for name, m in wrong]

    def support(self, recipe: Recipe, options: Options) -> Sequence[Support]:
        """Return what TRL does not do, or does otherwise; and what keeps any run from this model or task."""
        capabilities = self.matrix(options).capabilities
        own = _own(options)
        sizes = [Support(feature=place, level=level, reason=reason)
                 for place, level, reason in size_faults(recipe, own.microbatches)]  # fmt: skip
        others = [s for s in super().support(recipe, options) if not s.feature.startswith("rollout.")]
        return (*capabilities.support(recipe), *sizes, *others)

    def native_options(self, recipe: Recipe, options: Options) -> Mapping[str, Any]:
        """Return the options of ``GRPOConfig`` that a run sets; all others are at TRL's defaults."""
        return options_of(self.matrix(options).capabilities, recipe, options.passthrough, _own(options))

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return that a run uses one GPU at most, its environment, and the versions that count."""
        versions = self._versions(options)
        return Requirements(
            most_gpus=1.0,
            environment=str(self.environment(options).folder),
            versions={name: versions[name] for name in COUNTED if name in versions},
            samples_with_training_code=True,
        )

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of the code around TRL with TRL's version and others, of the problems, and of the model.

        Raises:
            ParibusError: a file cannot be read.
        """
        others = super().hashes(recipe, options)
        own = fingerprint.hash_source(HERE.parent, sorted(HERE.glob("*.py")))
        matrix = fingerprint_of(self.matrix(options).capabilities.model_dump(mode="json"))
        versions = dict(self.requirements(recipe, options).versions)
        return replace(others, code=fingerprint_of([others.code, own, matrix, versions]))

    def examine(self, recipe: Recipe, evaluate: Evaluate, options: Options) -> Examination:
        """Return what the native runner sees, the version of TRL, and what is wrong with its environment."""
        found = super().examine(recipe, evaluate, Options())
        environment = self.environment(options)
        state, wrong = environment.state()
        if wrong and (state != "other" or environment.named is None):
            return replace(found, faults=(*found.faults, f"TRL's environment: {wrong}"))
        own = f", which is your own: {wrong}" if wrong else ""
        versions = ", ".join(f"{k} {v}" for k, v in self.requirements(recipe, options).versions.items())
        return replace(found, facts=(f"TRL's environment: {versions}{own}", *found.facts))

    def warm(self) -> None:
        """Import nothing: TRL is loaded in its own environment."""

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make the tiny model that the recipe uses, in TRL's environment.

        Raises:
            ParibusError: there is no environment, or the program has failed.
        """
        self._ready(None)
        with own_code() as code:
            command = [str(self.environment().python), "-m", ENTRY, "prepare", str(cache)]
            done = subprocess.run(
                command, env=clean_environment(code), input=recipe.model_dump_json(), text=True, stderr=subprocess.PIPE
            )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
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

    def _train(self, attempt: RunFolder, job: Job, code: Path, asked: threading.Event) -> None:
        own, environment = _own(job.options), self.environment(job.options)
        places = Places(attempt.path.resolve() / "trl")
        (places.out / "evals").mkdir(parents=True, exist_ok=True)
        (places.out / "checkpoints").mkdir(exist_ok=True)
        found = find_checkpoint(attempt, job)
        if found:
            take_over(attempt, found[0], found[2])
        command = [str(environment.python), "-m", ENTRY, "train", str(attempt.job.resolve()), str(places.out)]
        if found:
            command += [str(found[1].resolve()), str(found[2])]
        versions = {name: environment.versions.get(name, "") for name in COUNTED}
        launch = Launch(
            name="TRL",
            command=command,
            places=places,
            environment=clean_environment(code) | {"TOKENIZERS_PARALLELISM": "false", "PARIBUS_HERE": str(Path.cwd())},
            patience=own.patience,
            resumes=True,
            model="",
            about={
                **versions,
                "paribus": paribus.__version__,
                "system": sys.platform,
                "environment": str(environment.folder),
            },
        )
        Attempt(attempt, job, launch, found[2] if found else -1, asked).run()

    def coefficients(self, recipe: Recipe, responses: Sequence[Response]) -> Sequence[ResponseCoefficients]:
        """Raise an error: TRL's loss does not show them."""
        return RunnerBase.coefficients(self, recipe, responses)

    def check(self) -> Iterator[str]:
        """Train two steps of the tiny model; yield what is wrong."""
        return trained(self.name)


def _own(options: Options | None) -> TrlOptions:
    """Return the options of the runner; the defaults where they are wrong, which is refused elsewhere."""
    try:
        return TrlOptions.model_validate(options.own if options else {})
    except ValidationError:
        return TrlOptions()
