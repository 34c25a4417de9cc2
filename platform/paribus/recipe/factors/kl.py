"""F9 KL: the pull towards a reference model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paribus.recipe.factors.level import Count, Fraction, Level, Positive
from paribus.recipe.trained import name_faults


class NoKl(Level):
    """No KL term; the reference model is not loaded."""

    kind: Literal["off"] = "off"


class FixedReference(Level):
    """The initial policy."""

    kind: Literal["fixed"] = "fixed"


class SyncedReference(Level):
    """A policy that follows the trained one: every so many steps it becomes mix new + (1 - mix) old weights."""

    kind: Literal["synced"] = "synced"
    every: Count = Field(default=10, description="steps between two updates of the reference")
    mix: Fraction = Field(default=1.0, description="1: a copy (TR-DPO, arXiv 2404.09656, hard update)")


class ModelReference(Level):
    """Another model, which stays as it is: the one before an earlier stage of training, or a teacher.

    It must give each token of the policy the same number: log-probabilities of other tokens cannot be compared.
    """

    kind: Literal["model"] = "model"
    name: Annotated[str, Field(min_length=1)] = Field(
        description="as `model.name`: a tiny model, a local folder, a name on the hub, or the model of a run "
        "(`study:NAME/ARM`)"
    )
    revision: str | None = Field(default=None, description="commit of the hub repository")

    @model_validator(mode="after")
    def _named(self) -> ModelReference:
        if fault := name_faults(self.name, self.revision):
            raise ValueError(fault)
        return self


class _Kl(Level):
    estimator: Literal["k1", "k2", "k3"]
    beta: Positive
    reference: Annotated[FixedReference | SyncedReference | ModelReference, Field(discriminator="kind")] = (
        FixedReference()
    )


class KlInReward(_Kl):
    """beta times the estimate is subtracted from R, before the baseline."""

    kind: Literal["reward"] = "reward"
    estimator: Literal["k1", "k2", "k3"] = "k1"
    unit: Literal["sequence", "token"] = Field(
        default="sequence",
        description="sequence: the response pays as a whole; token: each token pays for itself and what follows",
    )


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


class KlInAdvantage(_Kl):
    """beta log(pi / reference) is subtracted from the advantage of each token, after its scale.

    With a teacher as reference this is on-policy distillation, beside the rewards or, with weights of 0, alone: a token
    pays for its own distance, not for that of those behind it (arXiv 2306.13649; Lu, On-Policy Distillation, 2025).
    """

    kind: Literal["advantage"] = "advantage"
    estimator: Literal["k1"] = "k1"
    beta: Positive = 1.0


Kl = Annotated[NoKl | KlInReward | KlInAdvantage | KlInLoss | KlInLossWeighted, Field(discriminator="kind")]
