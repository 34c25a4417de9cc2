"""Steps 1 to 6 of the order of operations: from verdicts to advantages, once for the responses of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import baseline, length, scale
from paribus_runners.native.objective import reward as reward_map


@dataclass(frozen=True)
class Scored:
    """N verified responses of a step, as numbers.

    Attributes:
        group: [N] index of the group of each response.
        groups: number of groups.
        score: [N] the task's own score, float64.
        correct: [N] correctness.
        length: [N] tokens.
        truncated: [N] whether the length limit ended the response.
        kl: [N] KL that is subtracted from the reward; zeros if the recipe has none there.
    """

    group: Tensor
    groups: int
    score: Tensor
    correct: Tensor
    length: Tensor
    truncated: Tensor
    kl: Tensor


def raw_reward(recipe: Recipe, scored: Scored) -> Tensor:
    """Return R [N] before shaping."""
    return reward_map.reward(recipe.reward, scored.score, scored.correct)


def shaped_reward(recipe: Recipe, scored: Scored) -> Tensor:
    """Return R [N] after length rule and KL."""
    raw = raw_reward(recipe, scored)
    return raw + length.punishment(recipe.length, scored.length, raw.dtype) - scored.kl


def advantages(recipe: Recipe, scored: Scored, kept: Tensor) -> Tensor:
    """Return A [N]; 0 for responses that are not ``kept`` [N], which take no part in any statistic."""
    shaped = shaped_reward(recipe, scored)
    R, group = shaped[kept], scored.group[kept]
    centred = baseline.centre(recipe.baseline, R, group, scored.groups)
    A = scale.scale(recipe.scale, centred, R, scored.length[kept], group, scored.groups)
    return torch.zeros_like(shaped).masked_scatter(kept, A)
