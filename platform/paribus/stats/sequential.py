"""Several looks at growing results: how much of the error rate each look may spend, and what its numbers become.

Each look tests at its own part of the 5%, and the parts add up to 5%. By Bonferroni's inequality this holds however
looks depend on each other: for t statistics at three seeds, for Welch's, for intervals that are held to the noise of
the evaluations, and for any rule that says when to stop. The boundaries that are tabulated for normal statistics are
less strict from the second look on, but t statistics of few seeds cross them too often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from paribus.stats.compare import ALPHA
from paribus.stats.intervals import LEVEL, Estimate

Spending = Literal["obrien_fleming", "pocock"]

SPENDING_WORDS = {"obrien_fleming": "O'Brien-Fleming", "pocock": "Pocock"}
"""How the functions are called in tables."""


LEAST_SHARE = 1e-5
"""A look with a smaller share of the 5% is refused: its intervals would be as good as endless."""


def spent(fraction: float, spending: Spending, alpha: float = ALPHA) -> float:
    """Return the two-sided error rate that may be spent up to a fraction of the largest number of seeds.

    Source: Lan and DeMets 1983, Biometrika 70. With ``a = alpha / 2`` a side spends ``2 - 2 Phi(z_{a / 2} / sqrt(t))``,
    close to the bounds of O'Brien and Fleming 1979, Biometrics 35, or ``a ln(1 + (e - 1) t)``, close to those of Pocock
    1977, Biometrika 64.

    Raises:
        ValueError: the fraction does not lie in 0..1, without 0.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction above 0 and up to 1 is needed, got {fraction}")
    if spending == "pocock":
        return alpha * math.log(1 + (math.e - 1) * fraction)
    from scipy import special

    return float(4 * special.ndtr(special.ndtri(alpha / 4) / math.sqrt(fraction)))


def shares(looks: Sequence[int], spending: Spending) -> tuple[float, ...]:
    """Return the share of the 5% that each look may spend; they add up to 1.

    Args:
        looks: seeds an arm at each look, increasing; the last is the most that there can be.
        spending: name of the function.
    """
    upto = [spent(n / looks[-1], spending) / ALPHA for n in looks]
    return tuple(after - before for before, after in zip([0.0, *upto], upto, strict=False))


def level_at(share: float) -> float:
    """Return the confidence level of the intervals of a look."""
    return 1 - (1 - LEVEL) * share


def at_look(estimate: Estimate, share: float) -> Estimate:
    """Return an estimate as a look prints it: its interval at the level of the look, its p over the look's share.

    Over all looks together such intervals cover with 95%, whichever look is the last (repeated confidence intervals:
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
    """Return a p value over the share of its look, at most 1."""
    return min(1.0, p / share)
