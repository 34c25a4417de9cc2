"""The loss family: what the 13 factors span, and the one thing outside."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paribus.recipe.factors.level import Level, Positive


class PolicyGradient(Level):
    """The family that the 13 factors span."""

    kind: Literal["policy_gradient"] = "policy_gradient"


class PairDpo(Level):
    """-log sigmoid of the margin between the best and the worst response of a group; outside the factors."""

    kind: Literal["pair_dpo"] = "pair_dpo"
    beta: Positive = 0.1


class MirrorDescent(Level):
    """Online mirror descent (OPMD, Kimi k1.5, arXiv 2501.12599, Eq. 3): the squared distance to the old policy, too.

    J loses tau/2 (log pi(o) - log pi_old(o))^2 of each response, which lets the plain policy gradient be off-policy.
    """

    kind: Literal["opmd"] = "opmd"
    tau: Positive = Field(default=0.1, description="weight of the squared distance; Kimi reports none")
    unit: Literal["sequence", "token"] = Field(
        default="sequence",
        description="sequence: the square of the sum over a response's tokens; token: the sum of squares (DRO in verl)",
    )


Loss = Annotated[PolicyGradient | PairDpo | MirrorDescent, Field(discriminator="kind")]
