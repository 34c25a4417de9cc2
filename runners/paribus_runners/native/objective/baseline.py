"""F4: what is subtracted from the reward."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import pass_at_k, segment


def centre(level: f.Baseline, reward: Tensor, group: Tensor, groups: int, length: Tensor | None = None) -> Tensor:
    """Return R - b [N].

    ``none``: b = 0 (REINFORCE). ``group_mean``: mean of the group (GRPO, arXiv 2402.03300, section 4.1).
    ``group_loo``: mean of the other responses of the group (RLOO, arXiv 2402.14740, Eq. 8), which is G/(G-1) (R -
    group mean); 0 for a response alone in its group. ``batch_mean``: mean of the batch (REINFORCE++, arXiv
    2501.03262). A group without spread gives exactly 0 under all group baselines. ``group_length_weighted``: sum of L R
    over sum of L in the group (OPO, arXiv 2505.23585: the baseline of least variance if the squared norm of a
    response's gradient grows with its tokens). ``pass_at_k``: :mod:`.pass_at_k`.

    Args:
        level: the baseline.
        reward: [N] R, in float64 so that rounding cannot pass for spread.
        group: [N] index of the group of each response.
        groups: number of groups.
        length: [N] tokens of each response; for ``group_length_weighted`` alone.
    """
    if isinstance(level, f.NoBaseline):
        return reward
    if isinstance(level, f.PassAtK):
        return pass_at_k.centre(level, reward, group, groups)
    if isinstance(level, f.BatchMean):
        return reward - reward.mean() if len(reward) else reward
    if isinstance(level, f.GroupLengthWeighted):
        assert length is not None
        L = length.to(reward.dtype)
        mean = segment.total(L * reward, group, groups) / segment.total(L, group, groups).clamp_min(1)
    else:
        mean = segment.mean(reward, group, groups)
    centred = reward - mean[group]
    centred = torch.where(segment.spread(reward, group, groups)[group] > 0, centred, torch.zeros_like(centred))
    if isinstance(level, f.GroupLeaveOneOut):
        size = segment.size(group, groups)[group].to(reward.dtype)
        centred = centred * size / (size - 1).clamp_min(1)
    return centred
