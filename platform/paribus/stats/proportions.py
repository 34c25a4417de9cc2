"""Differences of two proportions from their values and numbers of trials alone. Pure Python.

A published avg@k is a mean of ``Q k`` responses to Q problems whose success rates the source does not print. Two bounds
need no rates: with the responses as the trials, the noise of asking the same problems again; with the problems as the
trials, the noise of asking other problems like them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from paribus.stats.intervals import LEVEL

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Difference:
    """A difference with its interval and the two-sided p value of "the difference is 0"."""

    value: float
    low: float
    high: float
    p: float


def proportion_difference(a: float, b: float, trials_a: int, trials_b: int) -> Difference:
    """Return ``a - b`` with the interval of Agresti and Caffo, and the p value that agrees with it.

    Source: Agresti and Caffo 2000, The American Statistician 54: one success and one failure are added to each sample,
    then Wald. Unlike Wald's own it holds at 0 and 1 and for few trials. Rates that differ between problems make the
    variance of a mean of responses smaller than ``a (1 - a) / trials``, never larger (Hoeffding 1956, Annals of
    Mathematical Statistics 27), and so does a positive correlation of the two: the interval is too wide then.

    Args:
        a: first proportion, 0 to 1.
        b: second proportion, 0 to 1.
        trials_a: independent trials behind ``a``.
        trials_b: independent trials behind ``b``.

    Raises:
        ValueError: a proportion outside 0 to 1, or no trials.
    """
    if not (0 <= a <= 1 and 0 <= b <= 1) or min(trials_a, trials_b) < 1:
        raise ValueError(f"two proportions and their trials are needed, got {a}, {b}, {trials_a}, {trials_b}")
    given = ((a, trials_a), (b, trials_b))
    first, second = ((x * n + 1) / (n + 2) for x, n in given)
    variance = sum((x * n + 1) * ((1 - x) * n + 1) / (n + 2) ** 3 for x, n in given)  # above 0 for any trials
    return normal_difference(first - second, math.sqrt(variance), value=a - b)


def normal_difference(centre: float, se: float, *, value: float | None = None) -> Difference:
    """Return a difference with its normal interval, for a standard error that is known.

    Args:
        centre: middle of the interval.
        se: standard error, above 0.
        value: the difference, if it is not the middle.
    """
    half = _NORMAL.inv_cdf((1 + LEVEL) / 2) * se
    return Difference(centre if value is None else value, centre - half, centre + half, normal_p(centre / se))


def normal_p(z: float) -> float:
    """Return the two-sided p value of a standard normal statistic."""
    return math.erfc(abs(z) / math.sqrt(2))


def critical_z(alpha: float) -> float:
    """Return the two-sided critical value of the normal distribution."""
    return _NORMAL.inv_cdf(1 - alpha / 2)
