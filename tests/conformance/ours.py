"""Our objective on a batch, through the functions that the trainer calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from conformance.batches import LIMIT, Batch
from conformance.outcome import Outcome, padded
from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus_runners.native import update
from paribus_runners.native.objective import length
from paribus_runners.native.objective.advantage import Scored, advantages
from paribus_runners.native.objective.loss import loss
from paribus_runners.native.rollout import collect
from paribus_runners.native.rollout.responses import Responses

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
    rollouts = rollouts_of(recipe, batch)
    A = advantages(recipe, rollouts.scored, rollouts.kept)
    (optimizer_batch,) = update.minibatches(recipe, rollouts, Random(0))
    tokens = update._tokens(recipe, rollouts, A, optimizer_batch)
    rows = optimizer_batch.rows
    place = batch.mask[rows].nonzero()
    place[:, 0] = rows[place[:, 0]]
    at = place[:, 0], place[:, 1]
    shown = padded(A, batch.mask)
    if advantage is not None:
        tokens, shown = replace(tokens, advantage=advantage[at]), advantage
    new = batch.new.clone().requires_grad_()
    value, _ = loss(recipe, new[at], tokens, batch.entropy[at])
    if extra is not None:
        value = value + (tokens.weight * extra(new[at], place)).sum()
    (gradient,) = torch.autograd.grad(value, new)
    return Outcome(shown, float(value.detach()), gradient)


def rollouts_of(recipe: Recipe, batch: Batch) -> collect.Rollouts:
    """Return the batch as the rollouts of a step."""
    W = batch.new.shape[1]
    responses = Responses(
        torch.ones(batch.rows, W, dtype=torch.long), batch.old, batch.entropy, batch.length, batch.truncated
    )
    reference = None if recipe.kl.kind == "off" else batch.reference
    scored = Scored(
        group=batch.group, groups=batch.groups, score=batch.score, correct=batch.correct, length=batch.length,
        truncated=batch.truncated, kl=collect._kl(recipe, responses, reference),
    )  # fmt: skip
    good = collect._good_groups(recipe, scored)[batch.group]
    kept = length.present(recipe.length, batch.truncated) & good
    return collect.Rollouts([[1]] * batch.groups, responses, scored, reference, kept, 1, 0.0, 0.0)
