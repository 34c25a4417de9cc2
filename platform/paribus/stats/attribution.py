"""What each trick contributes to the whole, whatever the order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

Weights = Mapping[frozenset[str], float]
"""Weight of each cell, a set of tricks that are on, in a contrast of cell means."""


def shapley_weights(tricks: Sequence[str]) -> dict[str, Weights]:
    """Return the contrast of cell means that is each trick's Shapley value.

    Source: Shapley 1953, A Value for n-Person Games: the mean gain from adding the trick over all orders,
    ``phi_i = sum over T without i of |T|! (k - |T| - 1)! / k! (v(T + i) - v(T))``. The values add up to
    ``v(all) - v(none)``. All ``2^k`` cells are needed.
    """
    k = len(tricks)
    found: dict[str, Weights] = {}
    for trick in tricks:
        others = [t for t in tricks if t != trick]
        weights: dict[frozenset[str], float] = {}
        for size in range(k):
            share = math.factorial(size) * math.factorial(k - size - 1) / math.factorial(k)
            for chosen in combinations(others, size):
                weights[frozenset((*chosen, trick))] = share
                weights[frozenset(chosen)] = -share
        found[trick] = weights
    return found


def both_ends_weights(tricks: Sequence[str]) -> dict[str, Weights]:
    """Return the contrast that is the mean of each trick's effect alone and in the full recipe.

    With interactions of two tricks at most it equals the Shapley value, from ``2 k + 2`` cells: a pair's interaction
    counts for nothing at one end, whole at the other, and half in the Shapley value. Terms of three tricks or more make
    the sum miss ``v(all) - v(none)``, which checks the assumption.
    """
    full = frozenset(tricks)
    found: dict[str, Weights] = {}
    for trick in tricks:
        weights: dict[frozenset[str], float] = {}
        ends: tuple[tuple[frozenset[str], float], ...] = (
            (frozenset([trick]), 0.5),
            (frozenset(), -0.5),
            (full, 0.5),
            (full - {trick}, -0.5),
        )
        for cell, weight in ends:  # with one or two tricks the ends share cells
            weights[cell] = weights.get(cell, 0.0) + weight
        found[trick] = weights
    return found
