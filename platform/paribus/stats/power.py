"""How many seeds a difference takes, and which difference a number of seeds can show.

Both by the noncentral t distribution, two-sided; the usual normal approximation is far off below ten seeds. Source:
Cohen 1988, Statistical Power Analysis for the Behavioral Sciences, chapter 2.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from paribus.stats.compare import ALPHA
from paribus.stats.intervals import LEVEL

if TYPE_CHECKING:
    import numpy as np

POWER = 0.8
"""Chance to detect the stated difference."""

CAP = 100
"""Largest number of seeds that :func:`seeds_needed` looks at; beyond it, it returns ``None``."""


def power(effect: float, n: int, *, paired: bool, alpha: float = ALPHA) -> float:
    """Return the chance that a two-sided t test with ``n`` seeds an arm detects the effect.

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
    """Return nodes and weights of the mean over the estimated spread of the normal tail beyond the critical t.

    scipy's own noncentral t returns nan for many large shifts.
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
    """Return the seeds an arm at which a true difference of this size is detected with 80% power.

    Both arguments are estimates from few seeds as a rule, so the answer is rough: say "about".

    Args:
        difference: the difference of means.
        sd: standard deviation of the paired differences, or of one arm's scores.
        paired: whether seeds are paired.
        alpha: two-sided error rate.

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


def seeds_for_width(half: float, sd: float, *, paired: bool, level: float = LEVEL) -> int | None:
    """Return the seeds an arm at which the t interval of a difference reaches so far to each side, at this spread.

    Args:
        half: half the length of the interval.
        sd: standard deviation of the paired differences, or of one arm's scores.
        paired: whether seeds are paired.
        level: confidence level.

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
        if float(special.stdtrit(df, (1 + level) / 2)) * se <= half:
            return n
    return None


def spread_bound(sd: float, df: float, share: float = 0.8) -> float:
    """Return what the true standard deviation is below with probability ``share``, by the chi-square distribution.

    Of few seeds the spread is known badly, and half of the time too small: power that is computed from it alone is
    claimed too high (Browne 1995, Statistics in Medicine 14, 1933-1940).

    Args:
        sd: the standard deviation that was seen.
        df: its degrees of freedom.
        share: one-sided confidence.

    Raises:
        ValueError: ``df`` is not positive.
    """
    from scipy import special

    if not df > 0:
        raise ValueError(f"degrees of freedom are needed, got {df}")
    return float(sd * math.sqrt(df / special.chdtri(df, share)))


def detectable_effect(n: int, sd: float, *, paired: bool, alpha: float = ALPHA) -> float:
    """Return the smallest true difference that ``n`` seeds an arm detect with 80% power.

    Args:
        n: pairs, or seeds in each of the two arms; 2 or more.
        sd: standard deviation of the paired differences, or of one arm's scores.
        paired: whether seeds are paired.
        alpha: two-sided error rate.

    Raises:
        ValueError: ``n`` is below 2, or ``sd`` is negative.
    """
    if n < 2 or sd < 0:
        raise ValueError(f"two seeds or more and a standard deviation are needed, got n = {n}, sd = {sd}")
    return _detectable(n, paired, alpha) * sd


@cache
def _detectable(n: int, paired: bool, alpha: float) -> float:
    """Return it in standard deviations."""
    from scipy import optimize

    return float(optimize.brentq(lambda d: power(d, n, paired=paired, alpha=alpha) - POWER, 1e-6, 1e4, xtol=1e-9))
