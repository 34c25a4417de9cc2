"""Steps 7 to 13 of the order of operations: from log-probabilities to the loss of a part of an optimizer batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import clip, kl, ratio


@dataclass(frozen=True)
class Tokens:
    """T tokens of n whole responses, end to end: what the loss needs beside the new log-probabilities.

    Attributes:
        row: [T] index of the response of each token, 0 to n - 1.
        rows: n.
        old: [T] log-probability when sampled, nats.
        advantage: [T] A times the token weight.
        weight: [T] weight in the loss of the optimizer batch (:mod:`.aggregation`).
        entropy_weight: weight of each token's entropy in the entropy bonus: 1 / tokens in the optimizer batch.
        nll_weight: [T] weight in the NLL of correct responses: 1 / their tokens in the optimizer batch, or 0.
        reference: [T] log-probability under the reference; ``None`` without KL.
    """

    row: Tensor
    rows: int
    old: Tensor
    advantage: Tensor
    weight: Tensor
    entropy_weight: float
    nll_weight: Tensor
    reference: Tensor | None = None


def loss(recipe: Recipe, new: Tensor, tokens: Tokens, entropy: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the share of these tokens in the loss (the shares of all parts of a batch add up), and r [T].

    Args:
        recipe: ratio, clip, KL and auxiliary levels.
        new: [T] log-probability under the policy that is updated, nats.
        tokens: the tokens.
        entropy: [T] entropy of the policy that is updated; needed for the entropy bonus only.
    """
    r = ratio.ratio(recipe.ratio, new, tokens.old, tokens.row, tokens.rows)
    x = clip.surrogate(recipe.clip, r, tokens.advantage, new, tokens.old)
    if tokens.reference is not None:
        x = x - kl.in_loss(recipe.kl, new, tokens.old, tokens.reference)
    value = -(tokens.weight * x).sum()
    if recipe.auxiliary.entropy:
        assert entropy is not None
        value = value - recipe.auxiliary.entropy * tokens.entropy_weight * entropy.sum()
    if recipe.auxiliary.positive_nll:
        value = value - recipe.auxiliary.positive_nll * (tokens.nll_weight * new).sum()
    return value, r.detach()
