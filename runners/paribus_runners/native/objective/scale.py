"""F5: what the centred reward is divided by."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import segment


def scale(level: f.Scale, centred: Tensor, reward: Tensor, length: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the advantage A [N]; 0 wherever the divisor is 0.

    ``none``: divisor 1 (Dr. GRPO, arXiv 2503.20783). ``group_std``: std of R over the group (GRPO). ``batch_std_raw``:
    std of R over the batch (Lite PPO, arXiv 2508.08221). ``batch_std_centred``: std over the batch of R minus its
    group's mean (REINFORCE++-baseline). ``batch_whiten``: minus the batch mean, then divided by the batch std
    (REINFORCE++, arXiv 2501.03262). All but ``none`` add ``eps`` to the std and have ``ddof`` in its denominator;
    ``unit: token`` weighs a response by its length.

    Args:
        level: the scale.
        centred: [N] R - b.
        reward: [N] R.
        length: [N] tokens of each response.
        group: [N] index of the group of each response.
        groups: number of groups.
    """
    if isinstance(level, f.NoScale) or not len(reward):
        return centred
    if isinstance(level, f.GroupStd):
        return by_group_std(level, centred, reward, group, groups)
    assert isinstance(level, f.BatchStdRaw | f.BatchStdCentred | f.BatchWhiten)
    weight = length.to(reward.dtype) if level.unit == "token" else torch.ones_like(reward)
    if isinstance(level, f.BatchWhiten):
        return whiten(level, centred, weight)
    raw = isinstance(level, f.BatchStdRaw)
    values = reward if raw else reward - segment.mean(reward, group, groups)[group]
    return divide(centred, _std(values, weight, level.ddof), level.eps)


def by_group_std(
    level: f.GroupStd | f.BatchWhiten, centred: Tensor, reward: Tensor, group: Tensor, groups: int
) -> Tensor:
    """Return ``centred`` [N] divided by the std of ``reward`` [N] over its group, with ddof and eps of ``level``."""
    return divide(centred, segment.variance(reward, group, groups, level.ddof).sqrt()[group], level.eps)


def whiten(level: f.BatchWhiten, x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x`` [n] minus its mean, divided by its std, each value counted ``weight`` [n] times."""
    x = x - (weight * x).sum() / weight.sum()
    return divide(x, _std(x, weight, level.ddof), level.eps)


def _std(x: Tensor, weight: Tensor, ddof: int) -> Tensor:
    """Return the standard deviation of ``x`` [n], each value counted ``weight`` [n] times."""
    mean = (weight * x).sum() / weight.sum()
    return ((weight * (x - mean) ** 2).sum() / (weight.sum() - ddof).clamp_min(1)).sqrt()


def divide(x: Tensor, std: Tensor, eps: float) -> Tensor:
    """Return ``x`` [n] over ``std`` plus ``eps``; 0 where that is 0."""
    divisor = std + eps
    return torch.where(divisor > 0, x / divisor, torch.zeros_like(x))
