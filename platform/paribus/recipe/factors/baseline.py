"""F4 baseline: what is subtracted from the reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paribus.recipe.factors.level import Fraction, Level, Positive


class NoBaseline(Level):
    """b = 0 (REINFORCE)."""

    kind: Literal["none"] = "none"


class GroupMean(Level):
    """b = mean of R over the group (GRPO, arXiv 2402.03300 section 4.1)."""

    kind: Literal["group_mean"] = "group_mean"


class GroupLeaveOneOut(Level):
    """b_i = mean of the other responses' R (RLOO, arXiv 2402.14740)."""

    kind: Literal["group_loo"] = "group_loo"


class BatchMean(Level):
    """b = mean of R over the batch (REINFORCE++, arXiv 2501.03262)."""

    kind: Literal["batch_mean"] = "batch_mean"


class FixedLambda(Level):
    """One lambda for all responses."""

    kind: Literal["fixed"] = "fixed"
    value: Fraction = 1.0


class LengthAdaptiveLambda(Level):
    """lambda = 1 - 1/(alpha L), clamped to [0, 1] (VAPO, arXiv 2504.05118)."""

    kind: Literal["length_adaptive"] = "length_adaptive"
    alpha: Positive = 0.05


class CriticGae(Level):
    """Per-token advantage by generalised advantage estimation from a value head (PPO, VAPO)."""

    kind: Literal["critic_gae"] = "critic_gae"
    gamma: Fraction = 1.0
    policy_lambda: Annotated[FixedLambda | LengthAdaptiveLambda, Field(discriminator="kind")] = FixedLambda()
    critic_lambda: Fraction = Field(default=1.0, description="lambda of the critic's targets (decoupled GAE)")


class History(Level):
    """Running statistics of each prompt over its visits (DCPO, arXiv 2509.02333)."""

    kind: Literal["history"] = "history"


Baseline = Annotated[
    NoBaseline | GroupMean | GroupLeaveOneOut | BatchMean | CriticGae | History, Field(discriminator="kind")
]
