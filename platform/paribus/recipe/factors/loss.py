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


Loss = Annotated[PolicyGradient | PairDpo, Field(discriminator="kind")]
