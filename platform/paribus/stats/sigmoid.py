"""Ceiling and efficiency of a curve: the sigmoid of ScaleRL, fitted by least squares, with profile intervals.

The form is ``R(c) = R0 + (A - R0) / (1 + (C_mid / c)^B)`` (Khatri et al. 2025, The Art of Scaling Reinforcement
Learning Compute for LLMs, arXiv:2510.13786, equation 1): A is the ceiling, C_mid the cost at half of the rise, B how
steep the rise is. For given C_mid and B it is linear in R0 and A, so these are solved exactly and only C_mid and B are
searched on a grid (variable projection: Golub and Pereyra 1973, SIAM Journal on Numerical Analysis 10). No start value
can mislead the search, and the profile of A is known in closed form.

A curve that nears its ceiling in another way, as ``1 - exp(-(c / tau)^k)``, bends the A of a sigmoid. So the same
search is made with this form as well, and the interval of A holds every ceiling that either form allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

MOST_POINTS = 60
"""Points of a curve that enter a fit; neighbours of longer curves are averaged."""

FEWEST_POINTS = 8
"""Points below which four parameters say nothing."""

REACHED = 0.9
"""Share of its rise that a fitted curve must have covered at its last point to have a ceiling."""

WIDEST = 0.3
"""Largest profile interval of the ceiling, as a share of the rise, for a ceiling to be identified."""

DRIFT = 0.02
"""Level below which the residuals of the last half count as a trend that the form does not follow."""

LEVEL = 0.95
"""Level of the profile intervals."""

RISES = 1e-4
"""Level at which the curve must differ from a constant."""

_MIDDLES, _SLOPES, _ZOOMS = 24, 12, 3
_LAST = 30.0
_MIDDLE_ENDS = math.log(1e-3), math.log(_LAST)  # of C_mid as a share of the last cost
_SLOPE_ENDS = math.log(0.25), math.log(12.0)  # of B


@dataclass(frozen=True, kw_only=True)
class Sigmoid:
    """A fitted curve.

    Attributes:
        start: R0, the value before training.
        ceiling: A.
        middle: C_mid, in the unit of the costs.
        slope: B.
        low: lower end of the 95% profile interval of the ceiling, over both forms; minus infinity if nothing bounds it.
        high: upper end; infinity if nothing bounds it.
        error: standard error of the ceiling that this interval implies, without the spread over seeds.
        df: degrees of freedom of ``error``.
        noise: root mean square of the residuals.
        reached: share of the rise covered at the last point.
        rises: whether it gets better, beyond its noise.
        why: why the curve does not identify a ceiling; empty if it does.
    """

    start: float
    ceiling: float
    middle: float
    slope: float
    low: float
    high: float
    error: float
    df: int
    noise: float
    reached: float
    rises: bool
    why: str

    @property
    def identified(self) -> bool:
        """Whether the curve identifies its ceiling."""
        return not self.why

    def cost_of(self, value: float) -> float:
        """Return the cost at which the curve reaches a value; infinity if it never does, 0 if it starts there."""
        rise = self.ceiling - self.start
        share = (value - self.start) / rise if rise else math.inf
        if share <= 0:
            return 0.0
        if share >= 1:
            return math.inf
        return self.middle * math.exp((math.log(share) - math.log1p(-share)) / self.slope)


def thinned(
    costs: Sequence[float], values: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float]]:
    """Return at most ``most`` points: the first one, and means of neighbours of the others."""
    import numpy as np

    if len(costs) <= most:
        return list(costs), list(values)
    parts = np.array_split(np.arange(1, len(costs)), most - 1)
    each = [[data[0], *(math.fsum(data[i] / len(part) for i in part) for part in parts)] for data in (costs, values)]
    return each[0], each[1]


def fit_sigmoid(costs: Sequence[float], values: Sequence[float], *, better: int = 1) -> Sigmoid | None:
    """Return the curve through these points; ``None`` with fewer than :data:`FEWEST_POINTS` or without any spread.

    Args:
        costs: steps, tokens or device time, from 0 on, increasing; points that are not finite are left out.
        values: the score at each; any finite size.
        better: 1 if higher values are better, -1 if lower ones are.
    """
    import numpy as np

    points = [(c, v) for c, v in zip(costs, values, strict=True) if math.isfinite(c) and math.isfinite(v) and c >= 0]
    if len(points) < FEWEST_POINTS or points[-1][0] <= 0:
        return None
    x, y = (np.asarray(each, float) for each in thinned([c for c, _ in points], [v for _, v in points]))
    scale, last = float(np.abs(y).max()), float(x[-1])
    if scale == 0 or float(np.ptp(y / scale)) < 1e-12:
        return None
    y, x = y / scale, x / last
    offset, spread = float(y.mean()), float(np.ptp(y))
    found = _fit(x, (y - offset) / spread, better)

    def back(value: float) -> float:
        return (value * spread + offset) * scale if math.isfinite(value) else value

    return Sigmoid(
        start=back(found.start),
        ceiling=back(found.ceiling),
        middle=found.middle * last,
        slope=found.slope,
        low=back(found.low),
        high=back(found.high),
        error=found.error * spread * scale,
        df=found.df,
        noise=found.noise * spread * scale,
        reached=found.reached,
        rises=found.rises,
        why=found.why,
    )


@dataclass(frozen=True)
class _Cells:
    """Linear fits at each point of a grid of C_mid and B."""

    middles: Array
    slopes: Array
    start: Array
    ceiling: Array
    variance: Array  # of the ceiling, per unit of residual variance
    rss: Array


def _fit(x: Array, y: Array, better: int) -> Sigmoid:
    import numpy as np
    from scipy import special

    df = len(x) - 4
    quantile = float(special.stdtrit(df, (1 + LEVEL) / 2)) ** 2
    searched = [_search(x, y, form, quantile, df) for form in _FORMS]
    best = _best(searched[0])
    limit = min(_limit(x, y, form, _best(cells), quantile, df) for form, cells in zip(_FORMS, searched, strict=True))
    ceiling, variance, rss, middle = (
        np.concatenate([getattr(cells, name) for found in searched for cells in found])
        for name in ("ceiling", "variance", "rss", "middles")
    )
    inside = rss <= limit
    half = np.sqrt(np.maximum(variance[inside] * (limit - rss[inside]), 0))
    start, top, c_mid, slope, least = best
    low, high = min(float((ceiling[inside] - half).min()), top), max(float((ceiling[inside] + half).max()), top)
    if float(middle[inside].max()) > math.log(_LAST) - 0.1:  # the ceiling could be as far as the grid allows
        low, high = (low, math.inf) if better * (top - start) > 0 else (-math.inf, high)
    total = float(((y - y.mean()) ** 2).sum())
    gain = max(total - least, 0) / 3 / max(least / df, 1e-18)
    sigmoid = Sigmoid(
        start=start,
        ceiling=top,
        middle=c_mid,
        slope=slope,
        low=low,
        high=high,
        error=max(high - top, top - low) / math.sqrt(quantile),
        df=df,
        noise=math.sqrt(max(least, 0) / len(x)),
        reached=float(_logistic(x[-1:], math.log(c_mid), math.log(slope))[0]),
        rises=better * (top - start) > 0 and float(special.fdtrc(3, df, gain)) < RISES,
        why="",
    )
    return _judged(sigmoid, y - _values(x, _logistic, best), better)


def _search(x: Array, y: Array, form: Form, quantile: float, df: int) -> list[_Cells]:
    """Return the fits on the whole grid, and on finer ones around those that fit as well as the best."""
    found = [_cells(x, y, form, _MIDDLE_ENDS, _SLOPE_ENDS)]
    for _ in range(_ZOOMS):
        latest = found[-1]
        near = latest.rss <= max(_limit(x, y, form, _best(found), quantile, df), float(latest.rss.min()))
        found.append(_cells(x, y, form, _around(latest.middles, near), _around(latest.slopes, near)))
    return found


def _judged(found: Sigmoid, residuals: Array, better: int) -> Sigmoid:
    """Return the fit with the first reason why it identifies no ceiling."""
    rise = found.ceiling - found.start
    if not found.rises:
        why = f"it does not {'rise' if better > 0 else 'fall'} beyond its noise"
    elif not math.isfinite(found.high - found.low):
        why = "no ceiling is in sight: higher ones fit as well" if better > 0 else "no floor is in sight"
    elif found.high - found.low > WIDEST * abs(rise):
        why = f"ceilings in a range of {_share((found.high - found.low) / abs(rise))} of the rise fit it equally well"
    elif found.reached < REACHED:
        why = f"at its end it has covered {_share(found.reached)} of the rise that fits best, less than {REACHED:.0%}"
    elif _drifts(residuals):
        why = "its last half does not follow the form"
    else:
        why = ""
    return replace(found, why=why)


def _share(value: float) -> str:
    return f"{value:.0%}" if value < 10 else "more than 1000%"


def _drifts(residuals: Array) -> bool:
    """Whether the residuals of the last half have a trend, by a t test."""
    import numpy as np
    from scipy import special

    tail = residuals[len(residuals) // 2 :]
    n = len(tail)
    t = np.arange(n) - (n - 1) / 2
    centred = tail - tail.mean()
    total = float(centred @ centred)
    if n < 4 or total < 1e-6 * n:  # a trend within a thousandth of the range does not matter
        return False
    rho = float(t @ centred) / math.sqrt(float(t @ t) * total)
    statistic = abs(rho) * math.sqrt((n - 2) / max(1 - rho * rho, 1e-12))
    return bool(2 * special.stdtr(n - 2, -statistic) < DRIFT)


def _cells(x: Array, y: Array, form: Form, middles: tuple[float, float], slopes: tuple[float, float]) -> _Cells:
    """Return the linear fits on a grid between these ends, which are logarithms."""
    import numpy as np

    grid = np.meshgrid(np.linspace(*middles, _MIDDLES), np.linspace(*slopes, _SLOPES), indexing="ij")
    m, s = (each.ravel() for each in grid)
    f = form(x, m[:, None], s[:, None])
    mean = f.mean(1)
    centred = f - mean[:, None]
    power = np.maximum((centred**2).sum(1), 1e-12)
    rise = centred @ (y - y.mean()) / power
    start = y.mean() - rise * mean
    rss = ((y - start[:, None] - rise[:, None] * f) ** 2).sum(1)
    return _Cells(m, s, start, start + rise, 1 / len(x) + (1 - mean) ** 2 / power, rss)


def _logistic(x: Array, middle: float | Array, slope: float | Array) -> Array:
    """Return the share of the rise at each cost, for logarithms of C_mid and B; 0 at cost 0."""
    import numpy as np
    from scipy import special

    with np.errstate(divide="ignore"):
        return np.asarray(special.expit(np.exp(slope) * (np.log(x) - middle)))


def _weibull(x: Array, middle: float | Array, slope: float | Array) -> Array:
    """Return the same for a stretched exponential that is at half of its rise at C_mid."""
    import numpy as np

    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(-np.expm1(-math.log(2) * np.exp(np.minimum(np.exp(slope) * (np.log(x) - middle), 50))))


Form: TypeAlias = "Callable[[Array, float | Array, float | Array], Array]"
_FORMS: tuple[Form, ...] = (_logistic, _weibull)


def _values(x: Array, form: Form, best: tuple[float, float, float, float, float]) -> Array:
    start, ceiling, middle, slope, _ = best
    return start + (ceiling - start) * form(x, math.log(middle), math.log(slope))


def _best(found: Sequence[_Cells]) -> tuple[float, float, float, float, float]:
    """Return R0, A, C_mid, B and residual sum of squares of the best cell."""
    cells = min(found, key=lambda c: float(c.rss.min()))
    i = int(cells.rss.argmin())
    return (
        float(cells.start[i]),
        float(cells.ceiling[i]),
        math.exp(float(cells.middles[i])),
        math.exp(float(cells.slopes[i])),
        float(cells.rss[i]),
    )


def _limit(
    x: Array, y: Array, form: Form, best: tuple[float, float, float, float, float], quantile: float, df: int
) -> float:
    """Return the residual sum of squares up to which a curve fits as well as the best, at 95%.

    Neighbouring residuals of a training curve are alike; the variance is raised by their correlation.
    """
    least, residuals = best[-1], y - _values(x, form, best)
    total = float(residuals @ residuals)
    rho = float(residuals[1:] @ residuals[:-1]) / total if total > 1e-18 else 0.0
    rho = min(max(rho, 0.0), 0.8)
    return least + quantile * max(least, 1e-14) / df * (1 + rho) / (1 - rho)


def _around(values: Array, near: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the ends of these grid values with a neighbour on both sides."""
    import numpy as np

    steps = np.unique(values)
    gap = float(steps[1] - steps[0])
    chosen = values[near]
    low, high = max(float(chosen.min()) - gap, float(steps[0])), min(float(chosen.max()) + gap, float(steps[-1]))
    return low, high
