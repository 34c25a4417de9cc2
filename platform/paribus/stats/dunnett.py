"""Dunnett's test: many arms against one, with a pooled spread, and the check that the spreads can be pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from paribus.stats.intervals import LEVEL
from paribus.stats.problems import Array

NODES = 120
"""Quadrature nodes per axis; 160 change no printed digit."""

DRAWS, FEWEST, MOST = 1_000_000, 1000, 20_000
"""Random numbers for a simulated ratio of spreads, and the fewest and most studies: errors of 1.4 to 0.3 points."""

UNEQUAL = 0.25
"""Spreads are not pooled if fewer than this share of studies with equal spreads would show so large a ratio. The level
is liberal, as Bancroft 1944 advises for a test that decides what follows."""


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One standard deviation for all arms.

    Attributes:
        sd: of one score; if seeds are paired, without the part that a seed shares between arms.
        df: degrees of freedom.
        ratio: largest over smallest standard deviation of an arm.
        ratio_p: probability of this ratio or a larger one if the spreads are equal.
    """

    sd: float
    df: int
    ratio: float
    ratio_p: float

    @property
    def equal(self) -> bool:
        """Whether the spreads are similar enough to be pooled."""
        return self.ratio_p >= UNEQUAL


def pooled(arms: Sequence[Sequence[float]], *, paired: bool) -> Pooled | None:
    """Return the pooled standard deviation of ``y = arm + seed + e``, or of ``y = arm + e`` without pairs.

    The check is Hartley's ratio of the largest to the smallest spread (Hartley 1950, Biometrika 37); for paired seeds
    it uses the residuals after arms and seeds. Median-based tests such as Brown and Forsythe's have almost no power at
    three seeds. The bound on the ratio grows with the number of arms and falls with that of seeds, as chance does.

    Args:
        arms: scores by arm, three or more arms with equally many seeds; if paired, in the same order of seeds.
        paired: whether seeds are paired.

    Returns:
        ``None`` with fewer than two seeds, or if an arm has no spread of its own.

    Raises:
        ValueError: fewer than three arms, or arms of different lengths.
    """
    if len(arms) < 3 or len({len(a) for a in arms}) != 1:
        raise ValueError("three arms or more with the same number of seeds are needed")
    table = np.asarray(arms, float)
    count, seeds = table.shape
    if seeds < 2:
        return None
    left = table - table.mean(1, keepdims=True)
    if paired:
        left = left - left.mean(0)
    by_arm = (left**2).sum(1)
    if by_arm.min() <= 0:
        return None
    df = (count - 1) * (seeds - 1) if paired else count * (seeds - 1)
    ratio = math.sqrt(by_arm.max() / by_arm.min())
    chance = paired_ratio_p if paired else ratio_p
    return Pooled(
        sd=math.sqrt((left**2).sum() / df), df=df, ratio=ratio, ratio_p=chance(ratio, arms=count, df=seeds - 1)
    )


def ratio_p(ratio: float, *, arms: int, df: int) -> float:
    """Return the probability that the largest of equal spreads is ``ratio`` times the smallest, or more.

    Source: Hartley 1950, Biometrika 37, as the distribution of the range of independent ``log chi^2``:
    ``P(range <= r) = k int f(x) (F(r^2 x) - F(x))^(k - 1) dx``.

    Args:
        ratio: of standard deviations, 1 or more.
        arms: number of spreads, 2 or more.
        df: degrees of freedom of each.
    """
    from scipy import special

    below, weights, at = _chi2_nodes(df)
    return 1 - arms * float(weights @ (special.chdtr(df, ratio**2 * at) - below) ** (arms - 1))


def paired_ratio_p(ratio: float, *, arms: int, df: int) -> float:
    """Return the probability of :func:`ratio_p` for paired seeds, for spreads of the residuals after arms and seeds.

    Removing the mean of each seed makes the spreads dependent, so they are not independent ``chi^2``: a ratio of 3,
    which three arms with three seeds show in 29% of studies, would get a probability of 39%. Simulated with a fixed
    seed, so every call gives the same result.

    Args:
        ratio: of standard deviations, 1 or more.
        arms: number of spreads, 3 or more.
        df: number of seeds minus one.
    """
    found = _paired_ratios(arms, df)
    return float(1 - np.searchsorted(found, ratio) / len(found))


@cache
def _paired_ratios(arms: int, df: int) -> Array:
    """Return the sorted ratios of simulated studies with equal spreads: normal rows minus the mean of all rows.

    Without its mean, an arm's scores are ``df`` independent numbers in other coordinates.
    """
    count = min(max(DRAWS // (arms * df), FEWEST), MOST)
    left = np.random.default_rng(1950).standard_normal((count, arms, df))
    left -= left.mean(1, keepdims=True)
    by_arm = np.einsum("nad,nad->na", left, left)
    return np.sort(np.sqrt(by_arm.max(1) / by_arm.min(1)))


def dunnett_p(t: float, *, comparisons: int, df: int) -> float:
    """Return the two-sided p of one of several arms against a common control, corrected for their number.

    Source: Dunnett 1955, JASA 50, Eq. 1, for equal numbers of seeds, for which the t values have correlation 1/2:
    ``P(max_i |T_i| <= t) = E_s E_z [Phi(z + t s sqrt(2)) - Phi(z - t s sqrt(2))]^m`` with ``s`` the estimated over the
    true spread and ``z`` standard normal; by Gauss quadrature.

    Args:
        t: difference over its standard error.
        comparisons: number of arms without the control, m.
        df: degrees of freedom of the pooled spread.
    """
    from scipy import special

    nodes, weights, spread, spread_weights = _quadrature(df)
    reach = abs(t) * math.sqrt(2) * spread[:, None]
    inside = (special.ndtr(nodes + reach) - special.ndtr(nodes - reach)) ** comparisons
    return max(0.0, 1 - float(spread_weights @ inside @ weights))


@cache
def dunnett_quantile(*, comparisons: int, df: int, level: float = LEVEL) -> float:
    """Return the factor of the standard error for simultaneous intervals of all differences (Dunnett 1955)."""
    from scipy import optimize

    return float(optimize.brentq(lambda t: dunnett_p(t, comparisons=comparisons, df=df) - (1 - level), 0.5, 200.0))


@cache
def _quadrature(df: int) -> tuple[Array, Array, Array, Array]:
    from scipy import special

    z, z_weights = np.polynomial.hermite_e.hermegauss(NODES)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    spread = np.sqrt(2 * special.gammaincinv(df / 2, (nodes + 1) / 2) / df)
    return z, z_weights / z_weights.sum(), spread, weights / 2


@cache
def _chi2_nodes(df: int) -> tuple[Array, Array, Array]:
    """Return probabilities, their weights, and the chi-square points with these upper tail probabilities."""
    from scipy import special

    nodes, weights = np.polynomial.legendre.leggauss(4 * NODES)
    return (nodes + 1) / 2, weights / 2, np.asarray(2 * special.gammaincinv(df / 2, (nodes + 1) / 2), float)
