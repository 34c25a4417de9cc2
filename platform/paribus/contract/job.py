"""The job that a runner trains, and when it writes checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from paribus.contract.rule import Rules
from paribus.evaluate import Evaluate
from paribus.recipe.recipe import Recipe
from paribus.text import every

EXTERNAL = "external"
"""In place of a runner's name in plans and jobs of runs that Paribus did not start: imported and tracked ones."""

STUDY_NAME = r"^[a-z0-9][a-z0-9_-]*$"

StudyName = Annotated[str, Field(pattern=STUDY_NAME, max_length=64)]
"""Name of a study. It also names files, folders and an experiment in MLflow, so no path can be one."""


class Checkpoints(BaseModel):
    """When a run writes checkpoints. They change no number, so this is part of no fingerprint."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    every: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="steps between checkpoints; absent: one after each evaluation. The last step always"
    )
    keep: Annotated[int, Field(ge=1)] = Field(default=1, description="newest checkpoints of an attempt that are kept")

    def about(self) -> str:
        """Return it in words, e.g. ``every 20 steps; the newest 2 are kept``."""
        when = "after each evaluation" if self.every is None else every(self.every, "step")
        kept = "the newest is kept" if self.keep == 1 else f"the newest {self.keep} are kept"
        return f"{when}; {kept}"


RunPhase = Literal["start", "rollout", "reward", "old_pass", "update", "sync", "evaluation", "checkpoint"]
"""What a run is doing: it loads; samples; waits for rewards; computes log-probabilities before its updates; updates;
hands the weights to the sampler; evaluates; saves."""

PHASES: tuple[str, ...] = get_args(RunPhase)

Wait = Annotated[float, Field(gt=0)]


class Timeouts(BaseModel):
    """Seconds that a phase of a run may take without a sign of progress, before the run is ended as hung.

    A forward pass, a token and the reward of a group are signs of progress, so a slow run is not a hung one. They
    change no number, so this is part of no fingerprint.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    start: Wait = Field(default=7200.0, description="to load model, data and reward functions")
    rollout: Wait = Field(default=3600.0, description="between two tokens or passes while sampling")
    reward: Wait = Field(default=3600.0, description="until the next group has its rewards")
    old_pass: Wait = Field(default=3600.0, description="between two passes before the updates")
    update: Wait = Field(default=3600.0, description="between two passes of the updates")
    sync: Wait = Field(default=3600.0, description="to hand the weights to the sampler")
    evaluation: Wait = Field(default=3600.0, description="between two tokens or passes of an evaluation")
    checkpoint: Wait = Field(default=3600.0, description="to write a checkpoint")

    def of(self, phase: RunPhase) -> float:
        """Return the limit of a phase, in seconds."""
        return float(getattr(self, phase))

    def about(self) -> str:
        """Return what differs from the defaults, e.g. ``reward 60 s``."""
        return ", ".join(f"{name} {value:g} s" for name, value in self if value != getattr(Timeouts(), name))


class Options(BaseModel):
    """What a study file says to its runner beside the recipe. Empty in most studies. Part of the fingerprint.

    Attributes:
        own: options that the runner defines: the keys beside ``kind`` in ``runner: {kind: command, ...}``.
        passthrough: settings in the words of the training library, handed on as they are: the section of the study
            file that is named after the runner, e.g. ``trl: {...}``.
        sources: the files beside the study file that its reward functions come from, and those that its options name
            (:meth:`~paribus.contract.Runner.sources`), by their path from its folder, as they were when the study was
            planned. Runs train with these, so a file that is edited later changes nothing that was planned. Not part of
            the fingerprint by themselves: the runner's hashes cover them for the arms that use them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    own: dict[str, Any] = {}
    passthrough: dict[str, Any] = {}
    sources: dict[str, str] = {}

    @field_validator("own", "passthrough", mode="before")
    @classmethod
    def _as_json(cls, given: Any) -> Any:
        return json.loads(json.dumps(given, allow_nan=False))  # so that a stored plan equals the one that was made

    @field_validator("sources")
    @classmethod
    def _inside(cls, sources: dict[str, str]) -> dict[str, str]:
        """Refuse a path that leads out of the folder into which a run writes the files."""
        if wrong := [p for p in sources if not p or p.startswith("/") or {"..", ""} & set(p.split("/"))]:
            raise ValueError(f"{wrong[0]!r} is not the path of a file beside the study")
        return sources

    @model_serializer(mode="wrap")
    def _without_no_sources(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out ``sources`` without any: version 0.1 reads plans and jobs too."""
        values: dict[str, Any] = dump(self)
        return values if self.sources else {k: v for k, v in values.items() if k != "sources"}

    @property
    def said(self) -> dict[str, Any]:
        """What the study says to its runner, for fingerprints; empty if it says nothing."""
        return {"own": self.own, "passthrough": self.passthrough} if self.own or self.passthrough else {}


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """SHA-256 of what the numbers of an arm depend on beside its recipe, 64 hexadecimal digits each.

    Attributes:
        code: the training program.
        data: problems and verifier: generator version and parameters, or file contents.
        model: the initial model: how it is made, file contents, or name and revision.
    """

    code: str
    data: str
    model: str


class Job(BaseModel):
    """One arm with one seed, resolved.

    Attributes:
        run: fingerprint, 64 hexadecimal digits.
        study: name of the study that first asked for the run.
        arm: label of the arm in that study.
        options: what the study says to the runner beside the recipe.
        seed: seeds sampling, prompt order and everything random in the run.
        gpus: GPUs that the run holds, or the part of one; 0: none, or whatever this process sees.
        nodes: machines on which it has them, each an equal part.
        token: fence token of the attempt, from 1.
        cache: folder for things made once (tiny models, data), shared by runs.
        stop_on: detectors that stop the run when they are critical.
        profile: thresholds of the detectors.
        rules: detectors of one's own.
        mirror: where metrics are copied to.
        checkpoint: when to write checkpoints, and how many to keep.
        timeouts: how long each phase may take without a sign of progress.
        hashes: of code, data and initial model when the arm was planned, so that a runner can refuse files that were
            changed since; ``None``: not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = 1
    run: str
    study: StudyName
    arm: str
    runner: str
    options: Options = Options()
    seed: int
    gpus: float = 0.0
    nodes: int = 1
    token: int
    recipe: Recipe
    evaluate: Evaluate
    cache: str
    stop_on: tuple[str, ...] = ()
    profile: str = "default"
    rules: Rules = ()
    mirror: tuple[str, ...] = ("mlflow",)
    checkpoint: Checkpoints = Checkpoints()
    timeouts: Timeouts = Timeouts()
    hashes: Hashes | None = None

    @property
    def known_recipe(self) -> Recipe | None:
        """The recipe; ``None`` for a run that Paribus did not start, whose ``recipe`` only counts its steps."""
        return None if self.runner == EXTERNAL else self.recipe
