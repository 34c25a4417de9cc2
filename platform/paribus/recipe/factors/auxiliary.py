"""F12 auxiliary losses: terms beside the policy loss."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paribus.recipe.factors.level import Level, NonNegative, Positive


class ValueLoss(Level):
    """The critic: a network of its own that starts as the initial policy, with a value head of 0."""

    clip: Positive | None = Field(default=None, description="half-width of the value clip; absent: none")
    pretrain_steps: Annotated[int, Field(ge=0)] = 0
    learning_rate: Positive = 1e-3


class Auxiliary(Level):
    """F12: terms beside the policy loss; 0 switches one off."""

    entropy: float = Field(default=0.0, description="coefficient of the entropy bonus")
    positive_nll: NonNegative = Field(default=0.0, description="coefficient mu of the NLL of correct responses (VAPO)")
    value: ValueLoss | None = None
