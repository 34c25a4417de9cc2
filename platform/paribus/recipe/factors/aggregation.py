"""F8 aggregation: how token losses become one number. x is the loss of a token."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paribus.recipe.factors.level import Count, Level


class SequenceMean(Level):
    """(1/N) sum_i (1/L_i) sum_t x (GRPO)."""

    kind: Literal["seq_mean"] = "seq_mean"


class TokenGroup(Level):
    """(1/P) sum_q [sum x / tokens of group q] (DAPO Eq. 8 as written)."""

    kind: Literal["token_group"] = "token_group"


class TokenBatch(Level):
    """sum x / T over the optimizer batch (DAPO's code): the token-level loss."""

    kind: Literal["token_batch"] = "token_batch"


class TokenMicro(Level):
    """sum x / T over each micro-batch, then averaged (TRL ``bnpo``); depends on the split."""

    kind: Literal["token_micro"] = "token_micro"
    microbatches: Count = Field(default=2, description="equal parts, in order, of the responses of an optimizer batch")


class ConstantLength(Level):
    """sum x / (N C) (Dr. GRPO, arXiv 2503.20783)."""

    kind: Literal["const"] = "const"
    length: Count | None = Field(default=None, description="C in tokens; absent: schedule.max_new_tokens")


class SequenceSum(Level):
    """(1/N) sum_i sum_t x (the policy gradient of J itself)."""

    kind: Literal["seq_sum"] = "seq_sum"


class SequenceMeanSum(Level):
    """sum_i (1/L_i) sum_t x (DCPO's only-token-mean)."""

    kind: Literal["seq_meansum"] = "seq_meansum"


Aggregation = Annotated[
    SequenceMean | TokenGroup | TokenBatch | TokenMicro | ConstantLength | SequenceSum | SequenceMeanSum,
    Field(discriminator="kind"),
]
