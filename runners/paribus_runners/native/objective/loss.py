"""Steps 7 to 13 of the order of operations: from log-probabilities to the loss of a part of an optimizer batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import clip, correction, kl, mirror, pair, ratio
from paribus_runners.native.objective.router import Routing
from paribus_runners.native.support import Support


@dataclass(frozen=True)
class Tokens:
    """T tokens of n whole responses, end to end: what the loss needs beside the new log-probabilities.

    Attributes:
        row: [T] index of the response of each token, 0 to n - 1.
        rows: n.
        old: [T] log-probability under the policy at the start of the updates, nats.
        advantage: [T] A times the token weight; for a loss of pairs 1 in the better response and -1 in the worse one.
        weight: [T] weight in the loss of the optimizer batch (:mod:`.aggregation`).
        correction: [T] importance weight between sampler and learner (:mod:`.correction`); ``None`` until a pass finds
            it out, and ``old`` is the sampler's until then.
        entropy_weight: [T] weight of the entropy in the entropy bonus: 1 / tokens in the optimizer batch.
        nll_weight: [T] weight in the NLL of correct responses: 1 / their tokens in the optimizer batch, or 0.
        reference: [T] log-probability under the reference; ``None`` without KL.
        sampler: [T] log-probability as the sampler computed it; ``None`` without a mask by the sign of the advantage.
        penalty: [T] weight of |log r| of the token, which KL-Cov charges; ``None`` without it.
        routing: how the tokens were routed at the start of the updates; ``None`` without router shift.
        support: what the tokens were chosen from; ``None``: the whole vocabulary.
    """

    row: Tensor
    rows: int
    old: Tensor
    advantage: Tensor
    weight: Tensor
    correction: Tensor | None
    entropy_weight: Tensor
    nll_weight: Tensor
    reference: Tensor | None = None
    sampler: Tensor | None = None
    penalty: Tensor | None = None
    routing: Routing | None = None
    support: Support | None = None


class Loss(NamedTuple):
    """The loss of some tokens.

    Attributes:
        value: share in the loss of the optimizer batch; the shares of all parts add up.
        ratio: [T] the ratio that the clip rule looks at, without gradient.
    """

    value: Tensor
    ratio: Tensor


def loss(
    recipe: Recipe, new: Tensor, tokens: Tokens, entropy: Tensor | None = None, shift: Tensor | None = None
) -> Loss:
    """Return the loss of these tokens.

    Args:
        recipe: ratio, clip, KL and auxiliary levels.
        new: [T] log-probability under the policy that is updated, nats.
        tokens: the tokens.
        entropy: [T] entropy of the policy that is updated; needed for the entropy bonus only.
        shift: [T] weight of tokens whose routing moved (:mod:`.router`); needed for router shift only.
    """
    if isinstance(recipe.loss, f.PairDpo):
        return _pairs(recipe.loss, new, tokens)
    d, A = new - tokens.old, tokens.advantage
    if isinstance(recipe.token_weight, f.RouterShift):
        assert shift is not None
        if recipe.token_weight.target == "ratio":
            d = d + shift.log()
        else:
            A = A * shift
    clipped = clip.clip_log_ratio(recipe.clip, d, A)
    r = ratio.ratio(recipe.ratio, clipped, tokens.row, tokens.rows)
    assert tokens.correction is not None
    x = clip.surrogate(recipe.clip, r, A, new, tokens.old)
    if tokens.penalty is not None:
        x = x - tokens.penalty * (new - tokens.old).abs()
    x = tokens.correction * x
    if (out := left_out(recipe, new, tokens)) is not None:
        x = x * ~out
    if tokens.reference is not None:
        x = x - kl.in_loss(recipe.kl, new, tokens.old, tokens.reference)
    value = -(tokens.weight * x).sum()
    if isinstance(recipe.loss, f.MirrorDescent):
        value = value + mirror.distance(recipe.loss, new - tokens.old, tokens.weight, tokens.row, tokens.rows)
    if recipe.auxiliary.entropy:
        assert entropy is not None
        value = value - recipe.auxiliary.entropy * (tokens.entropy_weight * entropy).sum()
    if recipe.auxiliary.positive_nll:
        value = value - recipe.auxiliary.positive_nll * (tokens.nll_weight * new).sum()
    looked_at = d.exp() if isinstance(recipe.clip, f.LogClip) else r
    return Loss(value, looked_at.detach())


def left_out(recipe: Recipe, new: Tensor, tokens: Tokens) -> Tensor | None:
    """Return [T] where the mask by the sign of the advantage takes a token out; ``None`` without that mask."""
    level = correction.off_policy_mask(recipe.correction)
    if level is None:
        return None
    assert tokens.sampler is not None
    return correction.off_policy(level, tokens.advantage, new, tokens.sampler, tokens.row, tokens.rows)


def _pairs(level: f.PairDpo, new: Tensor, tokens: Tokens) -> Loss:
    """Return the loss of whole pairs, each with the weight of its first token."""
    assert tokens.reference is not None
    each = pair.loss(level, new, tokens.reference, tokens.advantage, tokens.row, tokens.rows)
    weight = tokens.weight.new_zeros(len(each)).scatter(0, tokens.row // 2, tokens.weight)
    return Loss((weight * each).sum(), (new - tokens.old).exp().detach())
