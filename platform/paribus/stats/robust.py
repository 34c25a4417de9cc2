"""Summaries that a few outlying runs do not carry; for ten seeds or more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paribus.stats.intervals import LEVEL, Estimate


def iqm_interval(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the interquartile mean with its t interval from winsorised squares.

    Source: Agarwal et al. 2021, arXiv 2108.13264, for the mean of the middle half; the interval is that of Tukey and
    McLaughlin 1963, Sankhya A 25: ``se = sqrt(SS_w / (h (h - 1)))`` with ``h - 1`` degrees of freedom, where ``h``
    values remain after a quarter is cut at each end and ``SS_w`` is the sum of squares after moving the cut ones to the
    nearest that remain.

    Raises:
        ValueError: fewer than four values; nothing would be cut.
    """
    from scipy import special

    if len(values) < 4:
        raise ValueError(f"an interquartile mean needs 4 values or more, got {len(values)}")
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    h, value = len(kept), math.fsum(kept) / len(kept)
    moved = [kept[0]] * cut + kept + [kept[-1]] * cut
    centre = math.fsum(moved) / len(moved)
    se = math.sqrt(math.fsum((v - centre) ** 2 for v in moved) / (h * (h - 1)))
    half = float(special.stdtrit(h - 1, (1 + level) / 2)) * se
    sd = se * math.sqrt(len(values))
    return Estimate(value=value, n=len(values), sd=sd, se=se, low=value - half, high=value + half, level=level)


def better_share(after: Sequence[float], before: Sequence[float]) -> float:
    """Return the probability of improvement: the share of all pairs of runs in which the first is higher, ties half.

    Source: Mann and Whitney 1947, Annals of Mathematical Statistics 18: ``U / (n_1 n_2)``; Agarwal et al. 2021.
    """
    wins = math.fsum((a > b) + (a == b) / 2 for a in after for b in before)
    return wins / (len(after) * len(before))
