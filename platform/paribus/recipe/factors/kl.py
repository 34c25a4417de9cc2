"""F9 KL: the pull towards a reference model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paribus.recipe.factors.level import Level, Positive


class NoKl(Level):
    """No KL term; the reference model is not loaded."""

    kind: Literal["off"] = "off"


class _Kl(Level):
    estimator: Literal["k1", "k2", "k3"]
    beta: Positive
    reference: Literal["fixed", "synced"] = Field(default="fixed", description="fixed: the initial policy")


class KlInReward(_Kl):
    """beta times the estimate is subtracted from R, before the baseline."""

    kind: Literal["reward"] = "reward"
    estimator: Literal["k1", "k2", "k3"] = "k1"


class KlInLoss(_Kl):
    """beta times the estimate is added to the loss of each token (GRPO: k3)."""

    kind: Literal["loss"] = "loss"
    estimator: Literal["k1", "k2", "k3"] = "k3"
    beta: Positive = 0.04

    @model_validator(mode="after")
    def _acts(self) -> KlInLoss:
        if self.estimator == "k1":
            raise ValueError("k1 in the loss has gradient zero in expectation: use k2 or k3, or `kind: reward`")
        return self


class KlInLossWeighted(_Kl):
    """beta r k with a differentiable ratio (DeepSeek-V3.2; TRL's default)."""

    kind: Literal["loss_isw"] = "loss_isw"
    estimator: Literal["k1", "k2", "k3"] = "k3"


Kl = Annotated[NoKl | KlInReward | KlInLoss | KlInLossWeighted, Field(discriminator="kind")]
