"""F4 and F5, ``pass_at_k``: the gradient of the expected maximum of k rewards, from a group of n >= k responses.

All numbers are means over sets of k responses of a group, which are linear in its sorted rewards: that of the response
with the j-th smallest reward is the maximum of C(j - 1, k - 1) of the C(n, k) sets. With rewards of 0 and 1 the mean
over all sets is the unbiased estimate of pass@k (arXiv 2107.03374, Eq. 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import comb

import torch
from torch import Tensor

from paribus.errors import RunnerError
from paribus.recipe.factors import PassAtK
from paribus_runners.native.objective import segment


def centre(level: PassAtK, reward: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return A [N] before the scale; 0 for all of a group without spread unless ``control`` is ``none``.

    With M_i the mean of max R over the sets of k responses that hold response i: ``none``: k M_i, which is n s_i of
    PKPO (arXiv 2505.15201, Eq. 19; the mean over the group takes n out). ``loo_minus_one``: k (M_i - b_i), b_i the mean
    over the same sets without i in them (Eq. 33): unbiased, because b_i does not depend on response i. ``mean``: M_i
    minus the mean over all sets (arXiv 2508.10751, Eq. 14 and 15 without their sigma), which is (n - k) / (n k) times
    the gradient of the first two in expectation.

    Args:
        level: gives k and what is subtracted.
        reward: [N] R, in float64.
        group: [N] index of the group of each response.
        groups: number of groups.

    Raises:
        RunnerError: a group has fewer than k responses.
    """
    A = torch.zeros_like(reward)
    for order, size in _sorted(reward, group, level.k):
        weights = _weights(level, size).to(reward)
        A[order] = _sums(reward[order][:, None, :], weights)
    if level.control == "none":
        return A
    return torch.where(segment.spread(reward, group, groups)[group] > 0, A, torch.zeros_like(A))


def deviation(level: PassAtK, reward: Tensor, group: Tensor) -> Tensor:
    """Return [N] the std of max R over all sets of k responses of the group: sigma of arXiv 2508.10751, Eq. 14 and 15.

    It is that of the population of these sets; with rewards of 0 and 1 the root of p (1 - p), p the mean of max R.

    Args:
        level: gives k.
        reward: [N] R, in float64.
        group: [N] index of the group of each response.

    Raises:
        RunnerError: a group has fewer than k responses.
    """
    std = torch.zeros_like(reward)
    for order, size in _sorted(reward, group, level.k):
        share, R = _of_all(size, level.k).to(reward), reward[order]
        mean = _sums(R, share)[:, None]
        std[order] = _sums((R - mean) ** 2, share).sqrt()[:, None].expand_as(R)
    return std


def _sorted(reward: Tensor, group: Tensor, k: int) -> Iterator[tuple[Tensor, int]]:
    """Yield the places [g, n] of the responses of all groups of one size, each group by ascending reward, and n."""
    order = reward.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    sizes = group.bincount()
    of_row = sizes[group[order]]
    for size in sorted(set(sizes[sizes > 0].tolist())):
        if size < k:
            raise RunnerError(f"`baseline: pass_at_k` takes sets of {k} responses, and a group has {size}: lower k")
        yield order[of_row == size].view(-1, size), size


def _sums(x: Tensor, weights: Tensor) -> Tensor:
    """Return sums over the last dimension; unlike a product of matrices they round alike beside any other groups."""
    return (x * weights).sum(-1)


@lru_cache(maxsize=64)
def _weights(level: PassAtK, n: int) -> Tensor:
    """Return [n, n]: what A of the response with the i-th smallest reward takes of the j-th smallest reward."""
    k, sets = level.k, comb(n - 1, level.k - 1)
    weights = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        weights[i, i] = comb(i, k - 1) / sets
        for j in range(i + 1, n):
            weights[i, j] = comb(j - 1, k - 2) / sets if k > 1 else 0.0
    if level.control == "mean":
        return weights - _of_all(n, k)
    if level.control == "loo_minus_one":
        for i in range(n):
            for j in range(n):
                if j != i:  # of the others, the j-th smallest is the maximum of the sets that the smaller ones fill
                    weights[i, j] -= comb(j - (j > i), k - 2) / sets
    return k * weights


@lru_cache(maxsize=64)
def _of_all(n: int, k: int) -> Tensor:
    """Return [n]: the share of the sets of k of n responses in which the j-th smallest reward is the maximum."""
    return torch.tensor([comb(j, k - 1) / comb(n, k) for j in range(n)], dtype=torch.float64)
