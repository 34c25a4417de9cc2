"""F4, ``group_steps``: advantages of tokens from rewards that stand at the ends of the steps of a response."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import baseline, scale
from paribus_runners.native.objective.advantage import Scored, shaped_reward


def whole_counts(recipe: Recipe) -> bool:
    """Return whether something rewards a response as a whole, so that its end is a step."""
    level = recipe.reward
    functions = any(x.weight for x in level.functions.values() if x.unit == "response")
    shaped = recipe.length.rule.kind != "none" or recipe.kl.kind == "reward"
    return bool(level.weights.correct or level.weights.format or functions or shaped)


def rewards(recipe: Recipe, scored: Scored, steps: Tensor | None, length: Tensor) -> Tensor:
    """Return [T] the reward of the step that ends at each token; nan where none ends.

    What rewards a response as a whole (verdict, form, functions of responses, length rule, KL) stands at its last
    token. Rewards at one token add up.

    Args:
        recipe: weights and factor of the rewards.
        scored: the responses.
        steps: [T, F] what functions of steps returned, by name; nan where no step ends. ``None`` without any.
        length: [N] tokens of each response.
    """
    level, last = recipe.reward, length.cumsum(0) - 1
    found = torch.full((int(length.sum()),), torch.nan, dtype=torch.float64)
    whole = shaped_reward(recipe, scored).double()
    if steps is not None:
        for place, function in enumerate(level.functions.values()):
            if function.unit == "step" and function.weight:
                here = ~steps[:, place].isnan()
                value = function.weight * level.factor * steps[here, place]
                found[here] = found[here].nan_to_num() + value
                whole = whole - function.weight * level.factor * scored.rewards[:, place]
    if whole_counts(recipe):
        found[last] = found[last].nan_to_num() + whole
    return found


def advantages(recipe: Recipe, scored: Scored, kept: Tensor, reward: Tensor, length: Tensor) -> Tensor:
    """Return A [T]: the sum of the normalised rewards of the steps that end at the token or after it.

    r' = (r - mean) / std with mean and std over all steps of all kept responses of the group (process supervision:
    DeepSeekMath, arXiv 2402.03300, section 4.1.3); under ``scale: none`` the std is 1. A is 0 for responses that are
    not ``kept`` [N]. With one step a response, at its last token, this is GRPO.

    Args:
        recipe: one with ``baseline: group_steps``.
        scored: the responses.
        kept: which responses take part.
        reward: [T] of :func:`rewards`.
        length: [N] tokens of each response.
    """
    row = torch.arange(len(length)).repeat_interleave(length)
    ends = ~reward.isnan() & kept[row]
    r, group = reward[ends], scored.group[row[ends]]
    centred = baseline.centre(f.GroupMean(), r, group, scored.groups)
    normalised = scale.scale(recipe.scale, centred, r, torch.ones_like(group), group, scored.groups)
    placed = torch.zeros_like(reward).masked_scatter(ends, normalised)
    mask = torch.arange(int(length.max())) < length[:, None]
    dense = placed.new_zeros(mask.shape).masked_scatter(mask, placed)
    return dense.flip(1).cumsum(1).flip(1)[mask]
