"""How far from 0, in standard errors, a true effect must be for a t test to find it; needs no scientific library.

A plan is printed before anything heavy is loaded; reports use :mod:`paribus.stats.power`, and a test compares both.
Source: Cohen 1988, Statistical Power Analysis for the Behavioral Sciences, chapter 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

_NODES = 2000


@cache
def detectable_shift(df: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Return the true effect, in standard errors, that a two-sided t test detects with this power.

    Args:
        df: degrees of freedom of the standard error, 1 or more.
        alpha: two-sided error rate.
        power: chance to detect the effect.

    Raises:
        ValueError: ``df`` is below 1.
    """
    if not df >= 1:
        raise ValueError(f"a t test has one degree of freedom or more, got {df}")
    spread = _spread(df)

    def tail(shift: float, bound: float) -> float:
        return math.fsum(w * (_upper(bound * s - shift) + _upper(bound * s + shift)) for s, w in spread)

    bound = _solve(lambda b: -tail(0.0, b), -alpha)
    return _solve(lambda d: tail(d, bound), power)


@cache
def _spread(df: float) -> tuple[tuple[float, float], ...]:
    """Return nodes and weights of the law of estimated over true standard deviation, ``sqrt(chi2 / df)``."""
    top = 1 + 12 / math.sqrt(df)
    nodes = [top * (k + 0.5) / _NODES for k in range(_NODES)]
    logs = [(df - 1) * math.log(s) - df * s * s / 2 for s in nodes]
    highest = max(logs)
    weights = [math.exp(x - highest) for x in logs]
    total = math.fsum(weights)
    return tuple((s, w / total) for s, w in zip(nodes, weights, strict=True) if w > 1e-16 * total)


def _upper(z: float) -> float:
    """Return the tail of the normal distribution above ``z``."""
    return math.erfc(z / math.sqrt(2)) / 2


def _solve(rising: Callable[[float], float], value: float) -> float:
    low, high = 0.0, 64.0
    for _ in range(48):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2
