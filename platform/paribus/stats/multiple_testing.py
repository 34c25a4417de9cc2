"""Corrections for multiple testing: Holm, and Benjamini and Hochberg."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

ALPHA = 0.05
"""Two-sided error rate of all tests of a report."""


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return p values adjusted for their number, in the same order; ``None`` (no test) stays ``None``.

    Source: Holm 1979, Scandinavian Journal of Statistics 6: the i-th smallest of m is multiplied by ``m - i + 1``,
    then the running maximum is taken, at most 1. Comparisons without a test are not counted in m.

    Raises:
        ValueError: a p value outside 0 to 1.
    """
    tested = _in_order(p_values)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
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
