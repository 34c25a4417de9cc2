"""What libraries compute where no recipe does: our outcome, changed by exactly the declared deviation."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from conformance import ours
from conformance.batches import Batch
from conformance.outcome import Outcome
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import kl, ratio


def without(recipe: Recipe, **changes: object) -> Recipe:
    """Return a recipe with other levels."""
    return Recipe.model_validate({**recipe.model_dump(mode="json"), **changes})


def rejected_by_inverse_bounds(recipe: Recipe, batch: Batch) -> Outcome:
    """Responses are dropped by the inverse of the geometric mean of w, and those that are dropped do not count."""
    level = recipe.correction
    inverse = {"kind": "geo_mask", "low": 1 / level.high, "high": 1 / level.low}
    outcome = ours.outcome(without(recipe, correction=inverse), batch)
    d = (batch.old - batch.sampler) * batch.mask
    weight = (d.sum(1) / batch.length).exp()
    kept = ((weight >= inverse["low"]) & (weight <= inverse["high"])).sum()
    factor = batch.rows / float(kept)
    return replace(outcome, loss=outcome.loss * factor, gradient=outcome.gradient * factor)


def unbounded_ratio(recipe: Recipe, batch: Batch) -> Outcome:
    """The logarithm of the ratio is not kept within -20 and 20."""
    with patch.object(ratio, "LOG_LIMIT", math.inf):
        return ours.outcome(recipe, batch)


def clamped_k3(recipe: Recipe, batch: Batch) -> Outcome:
    """k3 in the loss is cut off at 10, where it has no gradient any more."""

    def extra(new: Tensor, place: Tensor) -> Tensor:
        return recipe.kl.beta * kl.estimate("k3", new - batch.reference[place[:, 0], place[:, 1]]).clamp_max(10)

    return ours.outcome(without(recipe, kl={"kind": "off"}), batch, extra=extra)


def distilled_apart(recipe: Recipe, batch: Batch) -> Outcome:
    """A second loss has the log ratio to the teacher under the policy that is updated as its advantage."""
    rewarded = ours.outcome(without(recipe, kl={"kind": "off"}), batch)
    clipped = without(recipe, kl={"kind": "off"}, clip={"kind": "ppo_dual", "low": 0.2, "high": 0.2, "c": 3.0})
    taught = ours.outcome(clipped, batch, advantage=batch.reference - batch.new)
    beta = recipe.kl.beta
    return replace(
        rewarded, loss=rewarded.loss + beta * taught.loss, gradient=rewarded.gradient + beta * taught.gradient
    )


def k3_with_gradient_of_k2(recipe: Recipe, batch: Batch) -> Outcome:
    """The value of k3 and the gradient of k2."""
    level = {"kind": "loss", "beta": recipe.kl.beta}
    k3, k2 = (ours.outcome(without(recipe, kl=level | {"estimator": k}), batch) for k in ("k3", "k2"))
    return replace(k3, gradient=k2.gradient)


def kl_times_sequence_ratio(recipe: Recipe, batch: Batch) -> Outcome:
    """k3 in the loss times the geometric mean of the token ratios."""

    def extra(new: Tensor, place: Tensor) -> Tensor:
        row, column = place.unbind(1)
        total = torch.zeros(batch.rows, dtype=new.dtype).index_add(0, row, new - batch.old[row, column])
        return (
            recipe.kl.beta * (total / batch.length).exp()[row] * kl.estimate("k3", new - batch.reference[row, column])
        )

    return ours.outcome(without(recipe, kl={"kind": "off"}), batch, extra=extra)


def entropy_aggregated_like_the_loss(recipe: Recipe, batch: Batch) -> Outcome:
    """The entropy bonus has the aggregation of the policy loss."""
    coefficient = recipe.auxiliary.entropy

    def extra(new: Tensor, place: Tensor) -> Tensor:
        return -coefficient * batch.entropy[place[:, 0], place[:, 1]]

    return ours.outcome(without(recipe, auxiliary={"entropy": 0.0}), batch, extra=extra)
