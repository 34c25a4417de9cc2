"""Our objective on a batch, through the functions that the trainer calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from conformance.batches import LIMIT, Batch
from conformance.outcome import Outcome
from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, tokens_of
from paribus_runners.native.experience import Before, weigh
from paribus_runners.native.objective import value as value_loss
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.native.objective.filter import good_groups, present
from paribus_runners.native.objective.loss import loss
from paribus_runners.native.objective.whole_batch import prepared
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.rollouts import Rollouts, charges

Extra = Callable[[Tensor, Tensor], Tensor]
"""From log-probabilities [T] and places [T, 2] of the tokens in the batch to a further loss of each token [T]."""


def recipe_of(preset: str, patch: Mapping[str, Any], eps: float, batch: Batch) -> Recipe:
    """Return a preset with ``eps`` in its advantage scale, then patched, for the shape of a batch."""
    raw = load_preset(preset).recipe.model_dump(mode="json")
    shape = {"group_size": batch.size, "prompts_per_step": batch.groups, "max_new_tokens": LIMIT, "minibatches": 1}
    if "eps" in raw["scale"]:
        raw["scale"]["eps"] = eps
    patched = apply(raw, {**{f"schedule.{k}": v for k, v in shape.items()}, **patch})
    assert not patched.faults, patched.faults
    return Recipe.model_validate(patched.values)


def outcome(recipe: Recipe, batch: Batch, *, advantage: Tensor | None = None, extra: Extra | None = None) -> Outcome:
    """Return what the native runner makes of a batch.

    Args:
        recipe: the objective.
        batch: the batch.
        advantage: [N, W] takes the place of our advantages.
        extra: loss of each token that is added under the aggregation of the recipe.
    """
    value = batch.value[batch.mask] if recipe.baseline.kind == "critic_gae" else None
    before = Before(logp=batch.old[batch.mask], value=value)
    experience = weigh(recipe, rollouts_of(recipe, batch), before)
    (optimizer_batch,) = minibatches(recipe, experience, Random(0))
    tokens = tokens_of(recipe, experience, optimizer_batch)
    rows = optimizer_batch.rows
    place = batch.mask[rows].nonzero()
    place[:, 0] = rows[place[:, 0]]
    at = place[:, 0], place[:, 1]
    shown = _wide(batch, experience.advantage)
    if advantage is not None:
        tokens, shown = replace(tokens, advantage=advantage[at]), advantage
    new = batch.new.clone().requires_grad_()
    recipe, tokens, _ = prepared(recipe, tokens, batch.new[at], Random(0))
    found = loss(recipe, new[at], tokens, batch.entropy[at]).value
    if extra is not None:
        found = found + (tokens.weight * extra(new[at], place)).sum()
    (gradient,) = torch.autograd.grad(found, new)
    return Outcome(shown, float(found.detach()), gradient)


def critic(recipe: Recipe, batch: Batch) -> Outcome:
    """Return the critic's targets in the place of advantages, its loss, and the gradient with respect to its values."""
    level, mask = recipe.auxiliary.value, batch.mask
    assert level is not None
    experience = weigh(recipe, rollouts_of(recipe, batch), Before(value=batch.value[mask]))
    new = batch.value_now.clone().requires_grad_()
    found = value_loss.loss(level, new[mask], experience.value, experience.returns).mean()
    (gradient,) = torch.autograd.grad(found, new)
    return Outcome(_wide(batch, experience.returns), float(found.detach()), gradient)


def _wide(batch: Batch, flat: Tensor) -> Tensor:
    """Return [N, W] of the values [T] of all tokens."""
    return flat.new_zeros(batch.mask.shape).masked_scatter(batch.mask, flat)


def rollouts_of(recipe: Recipe, batch: Batch) -> Rollouts:
    """Return the batch as the rollouts of a step; sampled by the old policy unless the recipe corrects for another."""
    logp = batch.old if recipe.correction.kind == "off" else batch.sampler
    mask = batch.mask
    ids = torch.ones(int(mask.sum()), dtype=torch.long)
    responses = Responses(ids, logp[mask], batch.entropy[mask], batch.length, batch.truncated)
    reference = None if recipe.kl.kind == "off" else batch.reference[mask]
    scored = Scored(
        group=batch.group, groups=batch.groups, score=batch.score, correct=batch.correct, formatted=batch.second > 0,
        length=batch.length, truncated=batch.truncated, kl=torch.zeros_like(batch.score),
    )  # fmt: skip
    if reference is not None:
        scored = replace(scored, kl=_wide(batch, charges(recipe.kl, responses, reference)).sum(1))
    kept = present(recipe, scored) & good_groups(recipe, scored)[batch.group]
    return Rollouts(
        prompts=[[1]] * batch.groups, problems=[str(i) for i in range(batch.groups)],
        born=torch.zeros(batch.groups), carried=torch.zeros(batch.groups, dtype=torch.bool), responses=responses,
        scored=scored, reference=reference, kept=kept, rounds=1, seconds_sampling=0.0, seconds_reward=0.0,
    )  # fmt: skip
