"""Power of t tests: how many seeds a difference needs, and which difference a number of seeds can detect.

All by the noncentral t distribution, two-sided; the usual normal approximation is far off below ten seeds. Source:
Cohen 1988, Statistical Power Analysis for the Behavioral Sciences, chapter 2. :func:`detectable_shift` needs no
scientific library, because a plan is printed before anything heavy is loaded; a test compares it with the others.

In all functions ``alpha`` is the two-sided error rate, ``paired`` says whether seeds are paired, and ``sd`` is the
standard deviation of the paired differences, or of one arm's scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from paribus.stats.intervals import LEVEL
from paribus.stats.multiple_testing import ALPHA

if TYPE_CHECKING:
    import numpy as np

POWER = 0.8
"""Probability to detect the stated difference."""

CAP = 100
"""Largest number of seeds that :func:`seeds_needed` considers; above it, the result is ``None``."""


def power(effect: float, n: int, *, paired: bool, alpha: float = ALPHA) -> float:
    """Return the probability that a two-sided t test with ``n`` seeds per arm detects the effect.

    Args:
        effect: difference of means in standard deviations: of the paired differences, or of one arm's scores.
        n: pairs, or seeds in each of the two arms; 2 or more.
        paired: one-sample test of the differences, or two-sample test with equal variances.
        alpha: two-sided error rate.
    """
    from scipy import special

    shift = abs(effect) * math.sqrt(n if paired else n / 2)
    bound, weights = _critical_bounds(n - 1 if paired else 2 * (n - 1), alpha)
    return float(weights @ (special.ndtr(shift - bound) + special.ndtr(-shift - bound)))


@cache
def _critical_bounds(df: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights for averaging the normal tail beyond the critical t over the estimated spread.

    scipy's noncentral t is not used because it returns nan for many large shifts.
    """
    import numpy as np
    from scipy import special

    nodes, weights = _nodes()
    spread = np.sqrt(2 * special.gammaincinv(df / 2, (nodes + 1) / 2) / df)
    return float(special.stdtrit(df, 1 - alpha / 2)) * spread, weights / 2


@cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def seeds_needed(difference: float, sd: float, *, paired: bool, alpha: float = ALPHA) -> int | None:
    """Return the seeds per arm at which a true difference of this size is detected with 80% power.

    Both arguments usually are estimates from few seeds, so the result is rough: say "about".

    Returns:
        2 to 100; ``None`` for more than 100, and for a difference of 0.

    Raises:
        ValueError: ``sd`` is not positive.
    """
    if not sd > 0:
        raise ValueError(f"a positive standard deviation is needed, got {sd}")
    if power(difference / sd, CAP, paired=paired, alpha=alpha) < POWER:
        return None
    low, high = 1, CAP
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(difference / sd, middle, paired=paired, alpha=alpha) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def seeds_for_width(half: float, sd: float, *, paired: bool) -> int | None:
    """Return the seeds per arm at which the t interval of a difference has this half-width, at this spread.

    Returns:
        2 to 100; ``None`` for more than 100.

    Raises:
        ValueError: one of the numbers is not positive.
    """
    from scipy import special

    if not (half > 0 and sd > 0):
        raise ValueError(f"positive numbers are needed, got half = {half}, sd = {sd}")
    for n in range(2, CAP + 1):
        df, se = (n - 1, sd / math.sqrt(n)) if paired else (2 * (n - 1), sd * math.sqrt(2 / n))
        if float(special.stdtrit(df, (1 + LEVEL) / 2)) * se <= half:
            return n
    return None


def spread_bound(sd: float, df: float) -> float:
    """Return the upper 80% confidence bound of the true standard deviation, by the chi-square distribution.

    Few seeds give an imprecise spread, which is too small half of the time; power computed from it alone is overstated
    (Browne 1995, Statistics in Medicine 14, 1933-1940).

    Raises:
        ValueError: ``df`` is not positive.
    """
    from scipy import special

    if not df > 0:
        raise ValueError(f"degrees of freedom are needed, got {df}")
    return float(sd * math.sqrt(df / special.chdtri(df, 0.8)))


def detectable_effect(n: int, sd: float, *, paired: bool, alpha: float = ALPHA) -> float:
    """Return the smallest true difference that ``n`` seeds per arm detect with 80% power.

    Raises:
        ValueError: ``n`` is below 2, or ``sd`` is negative.
    """
    if n < 2 or sd < 0:
        raise ValueError(f"two seeds or more and a standard deviation are needed, got n = {n}, sd = {sd}")
    return _detectable(n, paired, alpha) * sd


@cache
def _detectable(n: int, paired: bool, alpha: float) -> float:
    """Return :func:`detectable_effect` in standard deviations."""
    from scipy import optimize

    return float(optimize.brentq(lambda d: power(d, n, paired=paired, alpha=alpha) - POWER, 1e-6, 1e4, xtol=1e-9))


_SPREAD_NODES = 2000


@cache
def detectable_shift(df: float, alpha: float = ALPHA) -> float:
    """Return the true effect, in standard errors, that a two-sided t test detects with 80% power.

    Raises:
        ValueError: ``df``, the degrees of freedom of the standard error, is below 1.
    """
    if not df >= 1:
        raise ValueError(f"a t test has one degree of freedom or more, got {df}")
    spread = _spread(df)

    def tail(shift: float, bound: float) -> float:
        return math.fsum(w * (_upper(bound * s - shift) + _upper(bound * s + shift)) for s, w in spread)

    bound = _solve(lambda b: -tail(0.0, b), -alpha)
    return _solve(lambda d: tail(d, bound), POWER)


@cache
def _spread(df: float) -> tuple[tuple[float, float], ...]:
    """Return nodes and weights of the distribution of estimated over true sd, ``sqrt(chi2 / df)``."""
    top = 1 + 12 / math.sqrt(df)
    nodes = [top * (k + 0.5) / _SPREAD_NODES for k in range(_SPREAD_NODES)]
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
