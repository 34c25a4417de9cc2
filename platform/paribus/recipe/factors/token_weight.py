"""F11 token weight: tokens that weigh more than others."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paribus.recipe.factors.level import Fraction, Level


class UniformWeight(Level):
    """All tokens weigh the same."""

    kind: Literal["uniform"] = "uniform"


class TopEntropy(Level):
    """Only the given fraction of tokens with the highest entropy is trained on."""

    kind: Literal["top_entropy"] = "top_entropy"
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.2


class AdvantageReweight(Level):
    """A (alpha p_old + 1 - alpha) on each token (companion of Lopti)."""

    kind: Literal["advantage_reweight"] = "advantage_reweight"
    alpha: Fraction = 0.3


class RouterShift(Level):
    """Tokens whose experts changed weigh less (RSPO, arXiv 2510.23027); needs a mixture-of-experts model."""

    kind: Literal["router_shift"] = "router_shift"
    floor: Fraction = 0.8
    target: Literal["ratio", "token"] = Field(
        default="ratio", description="what gamma multiplies; the sources leave it open"
    )


TokenWeight = Annotated[UniformWeight | TopEntropy | AdvantageReweight | RouterShift, Field(discriminator="kind")]
