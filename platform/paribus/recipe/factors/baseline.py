"""F4 baseline: what is subtracted from the reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paribus.recipe.factors.level import Count, Fraction, Level, Positive


class NoBaseline(Level):
    """b = 0 (REINFORCE)."""

    kind: Literal["none"] = "none"


class GroupMean(Level):
    """b = mean of R over the group (GRPO, arXiv 2402.03300 section 4.1)."""

    kind: Literal["group_mean"] = "group_mean"


class GroupLeaveOneOut(Level):
    """b_i = mean of the other responses' R (RLOO, arXiv 2402.14740)."""

    kind: Literal["group_loo"] = "group_loo"


class GroupLengthWeighted(Level):
    """b = mean of R over the tokens of the group: sum of L R over sum of L (OPO, arXiv 2505.23585)."""

    kind: Literal["group_length_weighted"] = "group_length_weighted"


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


class GroupSteps(Level):
    """b = mean of the rewards of all steps of the group; A of a token = sum of what follows, step by step.

    Process supervision: the rewards of steps are normalised over all steps of the group, and a token has the sum of
    those of the steps that end at it or after it (DeepSeekMath, arXiv 2402.03300 section 4.1.3). Rewards of steps come
    from functions with `unit: step`; what rewards the whole response stands at its last token.
    """

    kind: Literal["group_steps"] = "group_steps"


class PassAtK(Level):
    """The objective is pass@k, or the expected maximum of k rewards, in place of the mean reward.

    With M_i the mean of max R over the sets of k responses of the group that hold this one: ``none``: A = k M_i (PKPO,
    arXiv 2505.15201, Eq. 19). ``loo_minus_one``: minus the same mean without this response in the sets (Eq. 33).
    ``mean``: A = M_i minus the mean of max R over all sets of k (arXiv 2508.10751, Eq. 14 and 15).
    """

    kind: Literal["pass_at_k"] = "pass_at_k"
    k: Count = Field(default=4, description="responses of which the best one counts; at most schedule.group_size")
    control: Literal["none", "loo_minus_one", "mean"] = Field(
        default="loo_minus_one", description="what is subtracted; the first two are unbiased for every k"
    )

    @model_validator(mode="after")
    def _others(self) -> PassAtK:
        if self.control == "loo_minus_one" and self.k == 1:
            raise ValueError(
                "`baseline.control: loo_minus_one` compares with sets of k - 1 responses: `baseline.k` must be 2 or "
                "more. With k = 1 write `baseline: group_loo`"
            )
        return self


Baseline = Annotated[
    NoBaseline
    | GroupMean
    | GroupLeaveOneOut
    | GroupLengthWeighted
    | BatchMean
    | CriticGae
    | History
    | PassAtK
    | GroupSteps,
    Field(discriminator="kind"),
]
