"""What a rule sees of a run: the newest and the first points of each metric, with their noise and trends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import MetricLine

Series = dict[str, Any]
"""Steps and values of the newest finite points, the first values, the first step, and the count; plain JSON."""


_UNPLANNED = 600
"""Points of a run of unknown length."""


def window_size(points: int | None) -> int:
    """Return w, the points of a rolling median: a thirtieth of the planned points, from 5 to 20; 20 if unknown."""
    return 20 if points is None else min(20, max(5, round(points / 30)))


def add_point(series: Series, line: MetricLine, metric: str, keep: int, head: int) -> None:
    """Add a point to a series, in place, rounded to seven digits; skip a value that is not finite."""
    value = line.values.get(metric)
    if value is None or not math.isfinite(value):
        return
    value = float(f"{value:.7g}")
    series.setdefault("n", 0)
    series.setdefault("since", line.step)
    for name in ("steps", "values", "first"):
        series.setdefault(name, [])
    series["n"] += 1
    series["low"], series["high"] = min(value, series.get("low", value)), max(value, series.get("high", value))
    if len(series["first"]) < head:
        series["first"].append(value)
    series["steps"].append(line.step)
    series["values"].append(value)
    del series["steps"][:-keep], series["values"][:-keep]


_BONUS = 1.5
"""Highest mean reward of one that counts right answers as 1."""


class Window:
    """What a rule can see of a run when a point arrives. Only finite values are kept, except in ``line``.

    Attributes:
        line: the newest metric line.
        p: thresholds by name.
        recipe: the recipe; ``None`` if unknown.
        w: points of a rolling median; W is five of them.
        memory: what the rule wants to keep, plain JSON; the rule may change it.
        looks: how many times a run of this length is looked at, counted in windows that share no point.
    """

    def __init__(
        self,
        line: MetricLine,
        series: Mapping[str, Series],
        thresholds: Mapping[str, float],
        recipe: Recipe | None,
        w: int,
        memory: dict[str, Any],
        planned: int | None = None,
    ) -> None:
        self.line = line
        self.p = thresholds
        self.recipe = recipe
        self.w = w
        self.memory = memory
        self.looks = max(1.0, (planned or _UNPLANNED) / w)
        self._series = series

    @property
    def W(self) -> int:  # noqa: N802 - the long window, five short ones
        """Points over which trends are judged."""
        return 5 * self.w

    def newest(self, metric: str) -> float | None:
        """Return the value in the newest line; ``None`` if the line lacks the metric."""
        return self.line.values.get(metric)

    def last(self, metric: str, count: int, ago: int = 0) -> list[float] | None:
        """Return ``count`` values up to ``ago`` points before the newest; ``None`` if there are fewer."""
        values: list[float] = self._series.get(metric, {}).get("values", [])
        end = len(values) - ago
        return values[end - count : end] if end >= count else None

    def values(self, metric: str) -> list[float]:
        """Return all values that are kept, oldest first."""
        values: list[float] = self._series.get(metric, {}).get("values", [])
        return values

    def steps(self, metric: str) -> list[int]:
        """Return the steps of all values that are kept, oldest first."""
        found: list[int] = self._series.get(metric, {}).get("steps", [])
        return found

    def median(self, metric: str, ago: int = 0) -> float | None:
        """Return the median of w values up to ``ago`` points before the newest; ``None`` if there are fewer."""
        values = self.last(metric, self.w, ago)
        return None if values is None else statistics.median(values)

    def first(self, metric: str, count: int | None = None) -> list[float] | None:
        """Return the first ``count`` values, by default w; ``None`` if there are fewer."""
        values: list[float] = self._series.get(metric, {}).get("first", [])
        count = count or self.w
        return values[:count] if len(values) >= count else None

    def first_median(self, metric: str) -> float | None:
        """Return the median of the first w values; ``None`` if there are fewer."""
        values = self.first(metric)
        return None if values is None else statistics.median(values)

    def first_step(self, metric: str) -> int:
        """Return the step of the first point.

        Raises:
            KeyError: the metric has no point.
        """
        step: int = self._series[metric]["since"]
        return step

    def step_ago(self, metric: str, ago: int) -> int:
        """Return the step of the point ``ago`` points before the newest, or of the oldest that is kept."""
        steps: list[int] = self._series[metric]["steps"]
        return steps[max(0, len(steps) - 1 - ago)]

    def gain(self, metric: str, over: int) -> float | None:
        """Return how much the rolling median has risen over so many points."""
        now, before = self.median(metric), self.median(metric, over)
        return None if now is None or before is None else now - before

    def mean(self, metric: str, count: int | None = None, ago: int = 0) -> Mean | None:
        """Return the mean of ``count`` values, by default w, and its error; ``None`` if too few or too large."""
        count = count or self.w
        values = self.last(metric, count, ago)
        if values is None:
            return None
        mean = sum(values) / count
        return Mean(mean, self.values(metric)[-5 * self.w :], count) if math.isfinite(mean) else None

    def sure(self, level: float, tests: float = 1.0) -> float:
        """Return how many standard errors a difference must have.

        Args:
            level: share of the healthy runs of this length in which chance may exceed them at any look; the looks share
                it (Bonferroni).
            tests: how many things are compared at each look.
        """
        return NormalDist().inv_cdf(1 - level / (self.looks * tests))

    def is_share(self, metric: str) -> bool:
        """Return whether all values so far lie between 0 and 1."""
        known = self._series.get(metric, {})
        return bool(known.get("low", 0.0) >= 0 and known.get("high", 1.0) <= 1)

    def scale(self, metric: str) -> float:
        """Return 1 for a metric from 0 to 1, else the range of its values so far: units differ between trainers."""
        known = self._series.get(metric, {})
        return 1.0 if self.is_share(metric) else float(known["high"] - known["low"]) or 1.0

    def exchange(self, metric: str, into: str) -> float:
        """Return how much of one metric a unit of another is worth, if both count from 0 to about 1; else 0.

        A reward of 1.2 for a right answer in the right format is in such units, one of 10 is not.
        """
        known = [self._series.get(name, {}) for name in (metric, into)]
        highs = [float(k.get("high", math.inf)) for k in known]
        fits = all(k.get("low", -1.0) >= 0 for k in known) and highs[0] <= _BONUS and highs[1] <= 1
        return 1 / max(highs[0], 1.0) if fits else 0.0

    def lowest(self, metric: str) -> float:
        """Return the least value so far."""
        return float(self._series.get(metric, {}).get("low", math.nan))

    def count(self, metric: str) -> int:
        """Return how many points of a metric have arrived."""
        return int(self._series.get(metric, {}).get("n", 0))

    def trend(self, metric: str, count: int) -> Trend | None:
        """Return the trend over ``count`` points, in blocks of a quarter window; ``None`` if there are fewer."""
        values = self.last(metric, count)
        return None if values is None else trend(values, max(1, self.w // 4))


@dataclass(frozen=True)
class Mean:
    """A mean of points.

    Attributes:
        value: the mean.
        around: the points and those before them, which give its error.
        count: how many points the mean has.
    """

    value: float
    around: Sequence[float]
    count: int

    @property
    def error(self) -> float:
        """The standard error; infinite if the noise overflows."""
        return standard_error(self.around, self.count)


@dataclass(frozen=True)
class Trend:
    """A monotone trend.

    Attributes:
        slope: change per point, the median of the slopes between all pairs of blocks (Theil-Sen).
        p: two-sided p-value of the Mann-Kendall test for no trend.
    """

    slope: float
    p: float

    def up(self, level: float = 0.01) -> bool:
        """Return whether the trend rises, at this significance level."""
        return self.slope > 0 and self.p < level


@cache
def _pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of all pairs of ``count`` blocks, the earlier block first."""
    first, second = np.triu_indices(count, 1)
    return first, second


def roughness(values: Sequence[float] | np.ndarray) -> float:
    """Return the standard deviation of the noise: the mean size of the differences from their median, over 2 / sqrt pi.

    The largest is left out, which a single break makes. The result is not finite if the differences overflow. An
    oscillation counts, whatever its period; the median of the sizes would not see one that turns in fewer than half of
    the steps.

    Source: Levene 1960 (sizes in place of squares); von Neumann et al. 1941 (differences).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.diff(np.asarray(values, dtype=float))
        sizes = np.sort(np.abs(steps - np.median(steps)))
        return float(sizes[:-1].mean()) * math.sqrt(math.pi) / 2


def standard_error(values: Sequence[float], count: int) -> float:
    """Return the standard error of a mean of ``count`` neighbouring points, for noise that is autocorrelated.

    Differences of one and of two points give the variance of the noise and its autocorrelation whatever the trend: if
    noise is autoregressive, their variances are 2 s^2 (1 - r) and 2 s^2 (1 - r^2), and the mean of n points has the
    variance s^2 / n (1 + r) / (1 - r). The largest difference, which a single break makes, is left out.
    Source: von Neumann et al. 1941 (differences); Bartlett 1946 (variance of the mean).

    Args:
        values: neighbouring points, oldest first; three at least, else the error is infinite.
        count: points of the mean.
    """
    if len(values) < 3:
        return math.inf
    x = np.asarray(values, dtype=float)
    with np.errstate(over="ignore", invalid="ignore"):
        one, two = (_usual_square(x[lag:] - x[:-lag], lag) for lag in (1, 2))
        if not (math.isfinite(one) and math.isfinite(two)):
            return math.inf
        again = min(max(two / one - 1, 0.0), 0.9) if one else 0.0
        return math.sqrt(one / (2 * (1 - again)) / count * (1 + again) / (1 - again))


def _usual_square(differences: np.ndarray, lag: int) -> float:
    """Return the mean square without the ``lag`` largest, scaled up for what normal noise loses by it."""
    squares, count = np.sort(np.square(differences)), len(differences)
    if count < 3 * lag:
        return float(squares.mean())
    return float(squares[:-lag].sum()) / (count - 1.85 * lag * math.log(count / lag))


def change_point(values: Sequence[float]) -> tuple[int, float]:
    """Return where a series changes, and the share of its variance that one change there explains.

    The change is a step or the beginning of a straight rise or fall, whichever leaves the smaller squares. Each value
    is replaced by the median of three, so that lone spikes do not count.

    Source: least squares over all places, as for one change point (Hinkley 1970) and for broken lines (Hudson 1966).

    Args:
        values: oldest first; eight at least, else nothing is explained.
    """
    if len(values) < 8:
        return 0, 0.0
    raw = np.asarray(values, dtype=float)
    x = np.concatenate([raw[:1], np.median(np.stack([raw[:-2], raw[1:-1], raw[2:]]), axis=0), raw[-1:]])
    x = x - x.mean()
    total = float(x @ x)
    if not math.isfinite(total) or total <= 0:
        return 0, 0.0
    at = np.arange(len(x))
    best, place = 0.0, 0
    for k in range(1, len(x) - 2):
        for shape in ((at >= k).astype(float), np.maximum(at - k + 1, 0.0)):
            shape = shape - shape.mean()
            gain = float(shape @ x) ** 2 / float(shape @ shape)
            if gain > best:
                best, place = gain, k
    return place, best / total


def trend(values: Sequence[float], block: int) -> Trend:
    """Return the trend of block means, which removes most of the autocorrelation between steps.

    Source: Mann 1945, Kendall 1975 (variance n (n - 1) (2 n + 5) / 18, continuity 1); Sen 1968.

    Args:
        values: oldest first; the oldest are dropped if they do not fill a block.
        block: points per block.
    """
    count = len(values) // block
    first, second = _pairs(count)
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.asarray(values[len(values) - count * block :], dtype=float).reshape(count, block).mean(1)
        rises = means[second] - means[first]
        score = float(np.sign(rises).sum())
        slope = float(np.median(rises / (second - first))) / block if count > 1 else 0.0
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    z = max(abs(score) - 1, 0) / spread if spread else 0.0
    return Trend(slope, math.erfc(z / math.sqrt(2)))
