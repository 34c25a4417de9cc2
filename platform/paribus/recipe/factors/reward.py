"""F1 reward: from the verifier's answer to the scalar reward of a response."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paribus.recipe.factors.level import Level, Positive


class Weights(Level):
    """How much each reward of a response counts; every task gives both."""

    correct: float = Field(default=1.0, description="the verdict, through `map`")
    format: float = Field(
        default=0.0, description="whether the response ended by itself and holds an answer, 1 or -1 (binary01: 0)"
    )


class Reward(Level):
    """F1: from the verifier's answer to the scalar reward of a response."""

    map: Literal["binary01", "pm1", "scalar"] = Field(
        default="scalar",
        description="binary01: R = y; pm1: R = 2y - 1 (DAPO Eq. 7); scalar: the task's own score",
    )
    factor: Positive = Field(default=1.0, description="multiplies R (Olmo 3 uses 10)")
    combine: Literal["sum_then_norm", "norm_then_sum"] = Field(
        default="sum_then_norm",
        description="several rewards: weighted sum, then advantages; or each normalised in its group, then summed",
    )
    weights: Weights = Weights()
