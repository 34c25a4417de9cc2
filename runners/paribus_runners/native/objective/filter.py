"""F3: which groups are trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import length, segment
from paribus_runners.native.objective.advantage import Scored, outcome, shaped_reward


def keep(level: f.Filter, correct: Tensor, reward: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return [groups] which groups have spread.

    ``metric: correct`` asks for both correct and incorrect responses (DAPO, arXiv 2503.14476, Eq. 11), ``reward_std``
    for any difference of R after shaping. With ``kind: none`` every group is kept.

    Args:
        level: the filter.
        correct: [N] correctness.
        reward: [N] R after length rule and KL.
        group: [N] index of the group of each response.
        groups: number of groups.
    """
    if isinstance(level, f.NoFilter):
        return torch.ones(groups, dtype=torch.bool)
    values = correct.to(reward.dtype) if level.metric == "correct" else reward
    return segment.spread(values, group, groups) > 0


def present(recipe: Recipe, scored: Scored) -> Tensor:
    """Return [N] which responses exist for the filter, the baseline and all that follows, by the length rule."""
    there = length.present(recipe.length, scored.truncated)
    return length.chosen(recipe.length, there, scored.length, outcome(recipe, scored), scored.group)


def good_groups(recipe: Recipe, scored: Scored) -> Tensor:
    """Return [groups] which groups pass the filter, by the responses that exist for the baseline."""
    there = present(recipe, scored)
    shaped = shaped_reward(recipe, scored)
    return keep(recipe.filter, scored.correct[there], shaped[there], scored.group[there], scored.groups)
