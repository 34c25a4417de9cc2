"""Contrasts of factorials: Shapley weights, and a least-squares fit if runs are missing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np

from paribus.stats.intervals import Estimate, with_interval
from paribus.stats.problems import Array

LEAST_DF = 2
"""Least residual degrees of freedom for a fit."""

EXACT = 1e-9
"""Relative size below which a number is rounding error."""

Cells: TypeAlias = Mapping[str, Sequence[Collection[str]]]
"""Arm to the sets of tricks that are on in it: one set, or several if a trick changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fit of ``score = main effects + pairwise interactions + e`` to runs, ``+ seed`` if seeds are paired.

    Attributes:
        cells: the terms of each arm, including arms without a run.
        design: ``(runs, terms)``, with one column per seed if they are paired.
        scores: ``(runs,)``.
        arms: arm of each run.
        paired: whether seeds are paired.
        sd: standard deviation of ``e``.
        df: its degrees of freedom, :data:`LEAST_DF` or more.
        noise: the part of ``e`` that is evaluation noise, with its degrees of freedom; ``None`` if unknown.
    """

    cells: Mapping[str, Array]
    design: Array
    scores: Array
    arms: tuple[str, ...]
    paired: bool
    sd: float
    df: int
    noise: tuple[float, float] | None

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.arms)

    def contrast(self, weights: Mapping[str, float]) -> Estimate | None:
        """Return the weighted sum of the fit's predictions of arms, with interval and p.

        Source: Searle 1971, Linear Models, section 5.4: a sum ``l'b`` of terms is estimable where ``X'c = l`` has a
        solution; for the shortest ``c`` it is ``c'y``, with variance ``sd^2 c'c``.

        Args:
            weights: arm to weight; they sum to 0, so that seed terms cancel.

        Returns:
            ``n`` is the number of runs with a weight per arm that has any, rounded; ``None`` if the runs do not
            determine the sum.
        """
        terms = np.sum([weight * self.cells[arm] for arm, weight in weights.items()], axis=0)
        goal = np.concatenate([terms, np.zeros(self.design.shape[1] - len(terms))])
        by_run = np.linalg.lstsq(self.design.T, goal, rcond=None)[0]
        if not np.allclose(self.design.T @ by_run, goal, rtol=0, atol=EXACT * max(1.0, float(np.abs(goal).max()))):
            return None
        length = math.sqrt(float(by_run @ by_run))
        used = [arm for arm, weight in zip(self.arms, by_run, strict=True) if abs(weight) > EXACT * length]
        n = round(len(used) / max(1, len(set(used))))
        noise = (length * self.noise[0], self.noise[1]) if self.noise else None
        share = (1 if self.paired else 2) / max(n, 1)
        return with_interval(float(by_run @ self.scores), n, share, (length * self.sd, self.df), noise)


def fit_pairs(
    cells: Cells,
    scores: Mapping[str, Mapping[int, float]],
    *,
    paired: bool,
    answers: Mapping[str, Mapping[int, Array]] | None = None,
) -> Fit | None:
    """Return the least-squares fit to the available runs; ``None`` below two residual degrees of freedom.

    With all runs of a full factorial its effects equal the contrasts of the arms' means. The fit has one spread for all
    runs, and interactions of three or more tricks count as noise. Source: Yates 1934, JASA 29, for cells of unequal
    numbers; Montgomery, Design and Analysis of Experiments, section 15.2.

    Args:
        cells: tricks of each arm, for all arms of the design.
        scores: arm to seed to score, for the runs that have one.
        paired: whether runs of one seed share something; each seed then gets a term.
        answers: arm to seed to the share of correct responses of each problem. If all runs have it, evaluation noise
            limits the intervals: it comes from the residuals of the same fit to each problem, minus each run's mean.
    """
    terms = _terms(cells)
    runs = [(arm, seed) for arm in cells for seed in sorted(scores.get(arm, {}))]
    if not runs:
        return None
    design = np.array([terms[arm] for arm, _ in runs])
    if paired:
        blocks = sorted({seed for _, seed in runs})
        design = np.hstack([design, np.array([[float(s == seed) for s in blocks] for _, seed in runs])])
    y = np.array([scores[arm][seed] for arm, seed in runs])
    df = len(runs) - int(np.linalg.matrix_rank(design))
    if df < LEAST_DF:
        return None
    left = _left(design, y)
    exact = np.linalg.norm(left) <= EXACT * np.linalg.norm(y)
    tables = [(answers or {}).get(arm, {}).get(seed) for arm, seed in runs]
    return Fit(
        cells=terms,
        design=design,
        scores=y,
        arms=tuple(arm for arm, _ in runs),
        paired=paired,
        sd=0.0 if exact else math.sqrt(float(left @ left) / df),
        df=df,
        noise=_noise(design, [t for t in tables if t is not None], df),
    )


def _terms(cells: Cells) -> dict[str, Array]:
    """Return 1, the main effects and their products by arm, -1 for off and 1 for on."""
    tricks = sorted({trick for sets in cells.values() for on in sets for trick in on})
    terms = [(), *((trick,) for trick in tricks), *combinations(tricks, 2)]

    def row(on: Collection[str]) -> list[float]:
        return [math.prod(1.0 if trick in on else -1.0 for trick in term) for term in terms]

    return {arm: np.mean([row(on) for on in sets], axis=0) for arm, sets in cells.items()}


def _left(design: Array, y: Array) -> Array:
    return np.asarray(y - design @ np.linalg.lstsq(design, y, rcond=None)[0])


def _noise(design: Array, tables: Sequence[Array], df: int) -> tuple[float, float] | None:
    """Return the noise that single answers add to a run's score, as :func:`paribus.stats.problems.rest_alone` does."""
    if len(tables) < len(design) or tables[0].size < 2:
        return None
    left = _left(design, np.array(tables))
    left = left - left.mean(1, keepdims=True)
    problems = left.shape[1]
    free = float(df * (problems - 1))
    found = math.sqrt(float((left**2).sum()) / (free * problems))
    return (found, free) if found > 0 else None


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
