"""F7 where the rule needs the whole optimizer batch: which tokens it chooses, or which bounds it has in this update.

What is found is fixed before the batch is split for memory, so that the gradient does not depend on the split. It
leaves an ordinary rule for the tokens, which :mod:`.loss` knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import clip
from paribus_runners.native.objective.loss import Tokens
from paribus_runners.native.objective.ratio import ratio

EPS = 1e-8
"""Keeps the share of positive contributions finite (BAPO's code)."""


@dataclass(frozen=True)
class Found:
    """What a rule has found out about an optimizer batch.

    Attributes:
        chosen: tokens that the covariance chooses.
        low: lower bound of r in this update; nan where the rule does not look for bounds.
        high: upper bound of r.
        positive: share of positive contributions under these bounds.
    """

    chosen: int = 0
    low: float = float("nan")
    high: float = float("nan")
    positive: float = float("nan")


class Prepared(NamedTuple):
    """An update that is ready to be split: the recipe with an ordinary clip rule, its tokens, what was found."""

    recipe: Recipe
    tokens: Tokens
    found: Found | None


def prepared(recipe: Recipe, tokens: Tokens, new: Tensor, random: Random) -> Prepared:
    """Return what is left to do of an update, token by token.

    ``clip_cov``: tokens that :func:`high_covariance` draws get the advantage 0, all others are clipped as under ppo_min
    (Clip-Cov, arXiv 2505.22617, as the authors' code and verl). ``kl_cov``: nothing is clipped, and the tokens with the
    largest covariance pay beta |log r| (KL-Cov, the same). ``bapo``: ppo_min within the bounds that :func:`balanced`
    finds (BAPO, arXiv 2510.18927, as the authors' code).

    Args:
        recipe: the recipe; rules that need no more than a token come back as they are.
        tokens: all tokens of the update; those with the weight 0 take no part.
        new: [T] log-probability under the policy that is updated, without gradient.
        random: what Clip-Cov draws with.
    """
    level, A, there = recipe.clip, tokens.advantage, tokens.weight > 0
    if isinstance(level, f.ClipCov):
        r = ratio(recipe.ratio, new - tokens.old, tokens.row, tokens.rows)
        chosen = high_covariance(level, r, A, new, tokens.old, there, random)
        plain: f.Clip = f.PpoMin(low=level.low, high=level.high)
        found, tokens = Found(chosen=int(chosen.sum())), replace(tokens, advantage=A * ~chosen)
    elif isinstance(level, f.KlCov):
        most = covariance(A, new, there).masked_fill(~there, -torch.inf).topk(_count(level.fraction, there)).indices
        penalty = torch.zeros_like(A).index_fill(0, most, level.beta)
        plain, found, tokens = f.NoClip(), Found(chosen=len(most)), replace(tokens, penalty=penalty)
    elif isinstance(level, f.AdaptiveBand):
        r = ratio(recipe.ratio, new - tokens.old, tokens.row, tokens.rows)
        found = balanced(level, r[there], A[there])
        plain = f.PpoMin(low=1 - found.low, high=found.high - 1)
    else:
        return Prepared(recipe, tokens, None)
    return Prepared(recipe.model_copy(update={"clip": plain}), tokens, found)


def covariance(A: Tensor, new: Tensor, there: Tensor) -> Tensor:
    """Return [T] (A - mean A) (log pi - mean log pi), means over the tokens that are ``there`` (arXiv 2505.22617).

    Args:
        A: [T] advantage.
        new: [T] log-probability under the policy that is updated.
        there: [T] whether a token takes part.
    """
    return (A - A[there].mean()) * (new - new[there].mean())


def high_covariance(
    level: f.ClipCov, r: Tensor, A: Tensor, new: Tensor, old: Tensor, there: Tensor, random: Random
) -> Tensor:
    """Return [T] the tokens that Clip-Cov takes out: a random ``fraction`` of all, at least one, from a range.

    They are drawn among the tokens that ppo_min does not clip and whose covariance lies between ``cov_low`` and
    ``cov_high``; all of them if there are fewer.
    """
    cut = clip.cut(f.PpoMin(low=level.low, high=level.high), r, A, new, old)
    cov = covariance(A, new, there)
    inside = (cov > level.cov_low) & (cov < level.cov_high) & there & ~(cut.low | cut.high)
    places: list[int] = inside.nonzero().squeeze(1).tolist()
    drawn = random.sample(places, min(_count(level.fraction, there), len(places)))
    return torch.zeros_like(there).index_fill(0, torch.tensor(drawn, dtype=torch.long, device=there.device), True)


def balanced(level: f.AdaptiveBand, r: Tensor, A: Tensor) -> Found:
    """Return the first bounds under which positive contributions have the share ``target``, or the last ones.

    The contribution of a token is min(r, high) A where A >= 0 and max(r, low) A where A < 0. The lower bound rises by
    its step first, which takes unlikely tokens with A < 0 out; then the upper bound, which lets likelier ones with
    A > 0 in. That is the order of the authors' code.
    """

    def share(low: float, high: float) -> float:
        each = torch.where(A >= 0, r.clamp_max(high), r.clamp_min(low)).double() * A
        positive, negative = float(each.clamp_min(0).sum()), float(-each.clamp_max(0).sum())
        return positive / (positive + negative + EPS) if negative > 0 else 1.0

    low, high = level.low_start, level.high_start
    while (positive := share(low, high)) < level.target and low < level.low_end:
        low = min(low + level.low_step, level.low_end)
    while (positive := share(low, high)) < level.target and high < level.high_end:
        high = min(high + level.high_step, level.high_end)
    return Found(low=low, high=high, positive=positive)


def _count(fraction: float, there: Tensor) -> int:
    return max(1, int(fraction * int(there.sum())))
