"""F5 advantage scale: what the centred reward is divided by."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paribus.recipe.factors.level import Level, NonNegative


class NoScale(Level):
    """Divisor 1 (Dr. GRPO, RLOO)."""

    kind: Literal["none"] = "none"


class _Std(Level):
    ddof: Literal[0, 1] = Field(default=1, description="0: population, 1: sample standard deviation")
    eps: NonNegative = Field(default=1e-6, description="added to the standard deviation")


class GroupStd(_Std):
    """Divisor std of R over the group + eps (GRPO)."""

    kind: Literal["group_std"] = "group_std"


class _BatchStd(_Std):
    unit: Literal["sequence", "token"] = Field(default="sequence", description="what one response counts: 1, or L")


class BatchStdRaw(_BatchStd):
    """Divisor std of raw R over the batch (Lite PPO as TRL has it)."""

    kind: Literal["batch_std_raw"] = "batch_std_raw"


class BatchStdCentred(_BatchStd):
    """Divisor std over the batch of R minus its group's mean (REINFORCE++-baseline)."""

    kind: Literal["batch_std_centred"] = "batch_std_centred"


class BatchWhiten(_BatchStd):
    """Batch mean subtracted, then divided by the batch std (REINFORCE++, PPO)."""

    kind: Literal["batch_whiten"] = "batch_whiten"


class HistorySmooth(_Std):
    """DCPO's smoothed advantage standardisation."""

    kind: Literal["history_smooth"] = "history_smooth"


class PassAtKStd(Level):
    """Divisor std of max R over the sets of k responses of the group + eps (sigma of arXiv 2508.10751)."""

    kind: Literal["pass_at_k_std"] = "pass_at_k_std"
    eps: NonNegative = Field(default=1e-6, description="added to the standard deviation")


Scale = Annotated[
    NoScale | GroupStd | BatchStdRaw | BatchStdCentred | BatchWhiten | HistorySmooth | PassAtKStd,
    Field(discriminator="kind"),
]
