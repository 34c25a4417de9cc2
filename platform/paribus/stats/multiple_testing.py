"""Multiple testing: corrections over the tests of a table, and the error rate that each interim analysis may spend.

Each interim analysis tests at its own share of the 5%, and the shares add up to 5%. By Bonferroni's inequality this
holds for any dependence between them: for t statistics at three seeds, for Welch's, for intervals limited by evaluation
noise, and for any stopping rule. The tabulated boundaries for normal statistics are less strict from the second
analysis on, but t statistics of few seeds cross them too often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from paribus.stats.intervals import LEVEL, Estimate

ALPHA = 0.05
"""Two-sided error rate of all tests of a report."""


def holm(p_values: Sequence[float | None], *, more: int = 0) -> tuple[float | None, ...]:
    """Return p values adjusted for their number, in the same order; ``None`` (no test) stays ``None``.

    ``more`` tests whose p values are not given count as if theirs were the largest, which no p value of them can raise:
    the result is an upper bound of what it would be with them.

    Source: Holm 1979, Scandinavian Journal of Statistics 6: the i-th smallest of m is multiplied by ``m - i + 1``,
    then the running maximum is taken, at most 1. Comparisons without a test are not counted in m.

    Raises:
        ValueError: a p value outside 0 to 1.
    """
    tested = _in_order(p_values)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) + more - rank)))
        adjusted[i] = largest
    return tuple(adjusted)


def benjamini_hochberg(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return q values in the same order; ``None`` (no test) stays ``None``.

    Of the tests with q < 0.05, at most 5% are false on average over studies. This is less strict than :func:`holm`,
    which keeps the probability of any false one at 5%.

    Source: Benjamini and Hochberg 1995, Journal of the Royal Statistical Society B 57, section 3.1: the i-th smallest
    of m is multiplied by ``m / i``, then the running minimum from the largest on is taken. It holds for independent
    tests and for positively dependent ones (Benjamini and Yekutieli 2001, Annals of Statistics 29).
    Comparisons without a test are not counted in m.

    Raises:
        ValueError: a p value outside 0 to 1.
    """
    tested = _in_order(p_values)
    adjusted: list[float | None] = [None] * len(p_values)
    smallest = 1.0
    for rank, (p, i) in reversed([*enumerate(tested, 1)]):
        smallest = min(smallest, p * len(tested) / rank)
        adjusted[i] = smallest
    return tuple(adjusted)


Correction: TypeAlias = Literal["holm", "benjamini_hochberg"]
"""Correction of the p values of one table."""

CORRECTIONS: Mapping[Correction, Callable[[Sequence[float | None]], tuple[float | None, ...]]] = {
    "holm": holm,
    "benjamini_hochberg": benjamini_hochberg,
}


def _in_order(p_values: Sequence[float | None]) -> list[tuple[float, int]]:
    """Return the p values with their places, the smallest first."""
    tested = [(p, i) for i, p in enumerate(p_values) if p is not None]
    if any(not 0 <= p <= 1 for p, _ in tested):
        raise ValueError(f"p values lie in 0..1, got {list(p_values)}")
    return sorted(tested)


Spending = Literal["obrien_fleming", "pocock"]

SPENDING_WORDS = {"obrien_fleming": "O'Brien-Fleming", "pocock": "Pocock"}
"""Names of the spending functions in tables."""

LEAST_SHARE = 1e-5
"""Least share of the 5% of an analysis; with less, its intervals would be practically infinite."""


def spent(fraction: float, spending: Spending) -> float:
    """Return the cumulative two-sided error rate at a fraction of the largest number of seeds.

    Source: Lan and DeMets 1983, Biometrika 70. With ``a = alpha / 2`` a side spends ``2 - 2 Phi(z_{a / 2} / sqrt(t))``,
    close to the bounds of O'Brien and Fleming 1979, Biometrics 35, or ``a ln(1 + (e - 1) t)``, close to those of Pocock
    1977, Biometrika 64.

    Raises:
        ValueError: the fraction is not above 0 and at most 1.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction above 0 and up to 1 is needed, got {fraction}")
    if spending == "pocock":
        return ALPHA * math.log(1 + (math.e - 1) * fraction)
    from scipy import special

    return float(4 * special.ndtr(special.ndtri(ALPHA / 4) / math.sqrt(fraction)))


def shares(looks: Sequence[int], spending: Spending) -> tuple[float, ...]:
    """Return the share of the 5% that each interim analysis may spend; they add up to 1.

    Args:
        looks: seeds per arm at each analysis, increasing; the last is the largest possible number.
        spending: name of the spending function.
    """
    upto = [spent(n / looks[-1], spending) / ALPHA for n in looks]
    return tuple(after - before for before, after in zip([0.0, *upto], upto, strict=False))


def level_at(share: float) -> float:
    """Return the confidence level of the intervals of an analysis with this share."""
    return 1 - (1 - LEVEL) * share


def at_look(estimate: Estimate, share: float) -> Estimate:
    """Return an estimate as an interim analysis prints it: interval at its level, p divided by its share.

    Over all analyses together such intervals cover with 95%, whichever is the last (repeated confidence intervals:
    Jennison and Turnbull 1989, JRSS B 51), and p is below 5% in 5% of studies without a difference.
    """
    if share == 1 or estimate.low is None:
        return estimate
    from scipy import special

    level = level_at(share)
    half = max((float(special.stdtrit(df, (1 + level) / 2)) * se for se, df in estimate.errors), default=0.0)
    p = None if estimate.p is None else adjusted(estimate.p, share)
    return replace(estimate, low=estimate.value - half, high=estimate.value + half, p=p, level=level)


def adjusted(p: float, share: float) -> float:
    """Return a p value divided by the share of its analysis, at most 1."""
    return min(1.0, p / share)
