"""F2: what the length of a response does to its reward and to its place in the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe.factors import KeepAll, KeepShortest, Length, SoftOverlong


def punishment(level: Length, length: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to R [N] for responses of ``length`` [N] tokens.

    Soft overlong punishment (DAPO, arXiv 2503.14476, Eq. 13): 0 up to ``soft_start``, then linear to -1 at
    ``hard_cap``, -1 beyond; times ``factor``.
    """
    rule = level.rule
    if not isinstance(rule, SoftOverlong):
        return torch.zeros(len(length), dtype=dtype)
    over = (rule.soft_start - length.to(dtype)) / (rule.hard_cap - rule.soft_start)
    return rule.factor * over.clamp(-1, 0)


def present(level: Length, truncated: Tensor) -> Tensor:
    """Return [N] which responses exist for the baseline and all that follows: ``drop`` removes truncated ones."""
    return ~truncated if level.truncated == "drop" else torch.ones_like(truncated)


def chosen(level: Length, there: Tensor, length: Tensor, reward: Tensor, group: Tensor) -> Tensor:
    """Return [N] which of the responses ``there`` [N] are kept in their group; of equals the earlier ones.

    ``shortest``: the ``count`` with the fewest tokens. ``efficient``: those with the largest R / L (GFPO, arXiv
    2508.09726, Algorithm 1: mean and std are those of the kept responses, and the others have no part in the loss).

    Args:
        level: gives what is kept.
        there: [N] which responses exist.
        length: [N] tokens.
        reward: [N] R after the length rule.
        group: [N] index of the group of each response.
    """
    keep = level.keep
    if isinstance(keep, KeepAll):
        return there
    merit = -length.to(reward.dtype) if isinstance(keep, KeepShortest) else reward / length
    order = torch.where(there, merit, -torch.inf).argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    sizes = group.bincount()
    rank = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[group[order]]
    return there & torch.zeros_like(there).index_copy(0, order, rank < keep.count)


def in_loss(level: Length, truncated: Tensor) -> Tensor:
    """Return [N] which responses enter the loss: ``mask_loss`` takes truncated ones out (overlong filtering)."""
    return ~truncated if level.truncated == "mask_loss" else torch.ones_like(truncated)
