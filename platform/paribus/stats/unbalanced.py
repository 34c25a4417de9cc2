"""Effects in factorials of which runs are missing: least squares with main effects and interactions of two."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np

from paribus.stats.intervals import LEVEL, Estimate, with_interval
from paribus.stats.problems import Array

LEAST_DF = 2
"""Residual degrees of freedom below which nothing is fitted."""

EXACT = 1e-9
"""Relative size below which a number is rounding."""

Cells: TypeAlias = Mapping[str, Sequence[Collection[str]]]
"""Arm to the sets of tricks that are on in it: one, or several where a trick changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """``score = main effects + interactions of two + e`` of each run, ``+ seed`` where seeds are paired.

    Attributes:
        cells: the terms of each arm, those without a run included.
        design: ``(runs, terms)``, with a column a seed where they are paired.
        scores: ``(runs,)``.
        arms: arm of each run.
        paired: whether seeds are paired.
        sd: standard deviation of ``e``.
        df: its degrees of freedom, :data:`LEAST_DF` or more.
        noise: what the evaluation alone adds to ``e``, with its degrees of freedom; ``None`` if that is not known.
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

    def contrast(self, weights: Mapping[str, float], level: float = LEVEL) -> Estimate | None:
        """Return the weighted sum of what the fit predicts of arms, with interval and p.

        Source: Searle 1971, Linear Models, section 5.4: a sum ``l'b`` of terms is estimable where ``X'c = l`` has a
        solution; for the shortest ``c`` it is ``c'y``, with variance ``sd^2 c'c``.

        Args:
            weights: arm to weight; they sum to 0, so that no seed enters.
            level: confidence level.

        Returns:
            ``n`` is the number of runs that weigh in, for each arm that has any, rounded; ``None`` where the runs do
            not determine the sum.
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
        return with_interval(float(by_run @ self.scores), n, share, (length * self.sd, self.df), noise, level)


def fit_pairs(
    cells: Cells,
    scores: Mapping[str, Mapping[int, float]],
    *,
    paired: bool,
    answers: Mapping[str, Mapping[int, Array]] | None = None,
) -> Fit | None:
    """Return the least-squares fit to the runs that there are; ``None`` below two residual degrees of freedom.

    With all runs of a full factorial its effects are the contrasts of the arms' means. One spread is taken for all
    runs, and interactions of three tricks or more count as noise. Source: Yates 1934, JASA 29, for cells of unequal
    numbers; Montgomery, Design and Analysis of Experiments, section 15.2.

    Args:
        cells: tricks of each arm, for all arms of the design.
        scores: arm to seed to score, of the runs that have one.
        paired: whether runs of one seed share something, for which each seed gets a term.
        answers: arm to seed to the share of right responses of each problem. If all runs have it, intervals are held
            to the evaluation's noise: the same fit to each problem, and what it leaves beside a run's mean.
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
    """Return what single answers add to the score of a run, as :func:`paribus.stats.problems.rest_alone` does."""
    if len(tables) < len(design) or tables[0].size < 2:
        return None
    left = _left(design, np.array(tables))
    left = left - left.mean(1, keepdims=True)
    problems = left.shape[1]
    free = float(df * (problems - 1))
    found = math.sqrt(float((left**2).sum()) / (free * problems))
    return (found, free) if found > 0 else None
