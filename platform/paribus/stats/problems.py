"""Variance components: which part of the spread of a score comes from seeds, and which from problems.

All runs of a study answer the same held-out problems, so the scores of an arm, or the differences of two arms paired by
seed, form a table with one row per seed and one column per problem. Arrays may have further axes in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paribus.stats.intervals import ROUNDING

Array: TypeAlias = npt.NDArray[np.float64]

TableOfScores: TypeAlias = tuple[float, Array]
"""Weight of an arm in a contrast, and its scores ``(..., seeds, problems)``."""


@dataclass(frozen=True)
class Part:
    """An estimated variance of a mean or of a contrast of means, with its degrees of freedom."""

    variance: Array
    df: Array


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of the variance of a mean over seeds and problems; each part includes ``rest``.

    Attributes:
        seeds: variance over seeds, on these problems.
        problems: variance over problems, with these seeds.
        rest: variance of single answers: sampling of the evaluation, and seeds that differ in which problems they
            solve. An evaluation of the same runs cannot be more certain than this.
    """

    seeds: Part
    problems: Part
    rest: Part


def parts(tables: Sequence[TableOfScores]) -> Parts:
    """Return the parts of the variance of ``sum_a weight_a * mean of table a``.

    The seeds of different tables are independent, the problems are the same; arms that are paired by seed enter as one
    table of differences. Source: two-way analysis of variance with one value per cell, for example Searle, Casella and
    McCulloch 1992, Variance Components, section 4.1: ``MS_S / (S Q)`` and ``MS_E / (S Q)``, added over tables with
    squared weights, and for the problems the variance of the weighted means of each problem over Q, with
    Satterthwaite's degrees of freedom.

    Args:
        tables: weight and scores of each arm, with at least two seeds and two problems.

    Raises:
        ValueError: a table with fewer than two seeds or problems.
    """
    rest = rest_alone(tables)
    seeds = []
    for weight, table in tables:
        n = table.shape[-2]
        seeds.append(Part(weight**2 * table.mean(-1).var(-1, ddof=1) / n, np.asarray(n - 1.0)))
    by_problem = np.sum([weight * table.mean(-2) for weight, table in tables], axis=0)
    count = by_problem.shape[-1]
    problems_part = Part(by_problem.var(-1, ddof=1) / count, np.asarray(count - 1.0))
    return Parts(seeds=_added(seeds), problems=problems_part, rest=rest)


def rest_alone(tables: Sequence[TableOfScores]) -> Part:
    """Return ``rest`` of :func:`parts`, which every comparison of two arms needs.

    Args:
        tables: as in :func:`parts`.

    Raises:
        ValueError: a table with fewer than two seeds or problems.
    """
    if any(min(table.shape[-2:]) < 2 for _, table in tables):
        raise ValueError("two seeds and two problems or more are needed")
    rest = []
    for weight, table in tables:
        n, problems = table.shape[-2:]
        by_seed, by_problem = table.mean(-1), table.mean(-2)
        left = table - by_seed[..., None] - by_problem[..., None, :] + table.mean((-2, -1))[..., None, None]
        left = np.where(np.abs(left) <= ROUNDING, 0, left)  # seeds that answer alike have no noise
        free = (n - 1) * (problems - 1)
        rest.append(Part(weight**2 * (left**2).sum((-2, -1)) / (free * n * problems), np.asarray(float(free))))
    return rest[0] if len(rest) == 1 else _added(rest)


def over_problems(found: Parts) -> Part:
    """Return the variance if seeds and problems are both samples, for intervals about "problems like these".

    Source: Satterthwaite 1946, Biometrics Bulletin 2: ``V = V_S + V_Q - V_E`` with
    ``df = V^2 / (V_S^2 / df_S + V_Q^2 / df_Q + V_E^2 / df_E)``. If this estimate is below the larger of ``V_S`` and
    ``V_Q``, which a sum cannot be, the larger one is used with its own degrees of freedom.
    """
    s, q, e = found.seeds, found.problems, found.rest
    total = s.variance + q.variance - e.variance
    below = s.variance**2 / s.df + q.variance**2 / q.df + e.variance**2 / e.df
    df = np.divide(total**2, below, out=np.ones_like(total), where=below > 0)
    by_seeds = s.variance >= q.variance
    one, one_df = np.where(by_seeds, s.variance, q.variance), np.where(by_seeds, s.df, q.df)
    return Part(np.maximum(total, one), np.where(total >= one, df, one_df))


def _added(found: Sequence[Part]) -> Part:
    """Return the sum of independent variances, with Satterthwaite's degrees of freedom."""
    total = np.asarray(np.sum([p.variance for p in found], axis=0))
    below = np.asarray(np.sum([p.variance**2 / p.df for p in found], axis=0))
    return Part(total, np.divide(total**2, below, out=np.ones_like(total), where=below > 0))
