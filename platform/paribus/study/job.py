"""A job: everything that a runner needs to train one run, in one readable file (``job.json``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from paribus.recipe.recipe import Recipe


class Evaluate(BaseModel):
    """How runs are evaluated; part of the fingerprint, so that only equal evaluations are compared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    every: Annotated[int, Field(ge=1)] = Field(
        default=10, description="steps between evaluations; step 0 and the last always"
    )
    problems: Annotated[int, Field(ge=2)] = Field(default=1000, description="held-out problems")
    samples: Annotated[int, Field(ge=1)] = Field(default=1, description="responses per problem (k)")
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="sampling temperature of the evaluation"
    )
    primary: str = Field(default="", description="the metric of the tables; absent: eval/heldout/avg_at_<samples>")
    checkpoint: Literal["final", "mean_of_last_3"] = Field(
        default="mean_of_last_3", description="which evaluations make a run's score; declared before the run"
    )

    @property
    def primary_metric(self) -> str:
        """The metric of the tables, with the default resolved."""
        return self.primary or f"eval/heldout/avg_at_{self.samples}"


class Job(BaseModel):
    """One arm with one seed, resolved.

    Attributes:
        run: fingerprint, 64 hexadecimal digits.
        study: name of the study that first asked for the run.
        arm: label of the arm in that study.
        seed: seeds sampling, prompt order and everything random in the run.
        token: fence token of the attempt, from 1.
        cache: folder for things made once (tiny models, data), shared by runs.
        stop_on: detectors that stop the run when they are critical.
        profile: thresholds of the detectors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = 1
    run: str
    study: str
    arm: str
    runner: str
    seed: int
    token: int
    recipe: Recipe
    evaluate: Evaluate
    cache: str
    stop_on: tuple[str, ...] = ()
    profile: str = "default"
