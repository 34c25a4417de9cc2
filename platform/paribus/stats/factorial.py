"""Contrasts of factorials: Shapley weights, and the weights of contrasts where runs are missing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from paribus.stats.problems import Array

EXACT = 1e-9
"""Relative size below which a number is rounding error."""

Cells: TypeAlias = Mapping[str, Sequence[Collection[str]]]
"""Arm to the sets of tricks that are on in it: one set, or several if a trick changes nothing."""


def weights_where_runs_are_missing(
    cells: Cells, weights: Mapping[str, float], present: Collection[str]
) -> Mapping[str, float] | None:
    """Return the weights of the present arms that estimate a contrast of all arms; ``None`` if they don't determine it.

    With all arms these are the weights themselves. Otherwise they are those of the least-squares fit of
    ``score = main effects + interactions of two + e`` to the present arms; interactions of three or more tricks count
    as 0. Source: Searle 1971, Linear Models, section 5.4: a sum ``l'b`` of terms is estimable where ``X'c = l`` has a
    solution, and the shortest ``c`` gives the least-squares estimate ``c'y``.

    Args:
        cells: tricks of each arm, for all arms of the design.
        weights: arm to weight; they sum to 0.
        present: arms with a score.
    """
    if all(arm in present for arm in weights):
        return weights
    terms = _terms(cells)
    arms = [arm for arm in cells if arm in present]
    if not arms:
        return None
    goal = np.sum([weight * terms[arm] for arm, weight in weights.items()], axis=0)
    design = np.array([terms[arm] for arm in arms])
    found = np.linalg.lstsq(design.T, goal, rcond=None)[0]
    if not np.allclose(design.T @ found, goal, rtol=0, atol=EXACT * max(1.0, float(np.abs(goal).max()))):
        return None
    return {arm: float(w) for arm, w in zip(arms, found, strict=True) if abs(w) > EXACT}


def _terms(cells: Cells) -> dict[str, Array]:
    """Return 1, the main effects and their products by arm, -1 for off and 1 for on."""
    tricks = sorted({trick for sets in cells.values() for on in sets for trick in on})
    terms = [(), *((trick,) for trick in tricks), *combinations(tricks, 2)]

    def row(on: Collection[str]) -> list[float]:
        return [math.prod(1.0 if trick in on else -1.0 for trick in term) for term in terms]

    return {arm: np.mean([row(on) for on in sets], axis=0) for arm, sets in cells.items()}


Weights = Mapping[frozenset[str], float]
"""Weight of each cell (a set of tricks that are on) in a contrast of cell means."""


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

    If no more than two tricks interact, it equals the Shapley value, and needs only ``2 k + 2`` cells: a pair's
    interaction counts zero at one end, fully at the other, and half in the Shapley value. Terms of three or more tricks
    make the sum miss ``v(all) - v(none)``, which checks the assumption.
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
