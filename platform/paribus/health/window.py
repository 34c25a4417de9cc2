"""What a rule sees of a run: the newest and the first points of each metric, with their noise and trends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import MetricLine

Series = dict[str, Any]
"""Steps and values of the newest finite points, the first values, the first step, and the count; plain JSON."""


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
    if len(series["first"]) < head:
        series["first"].append(value)
    series["steps"].append(line.step)
    series["values"].append(value)
    del series["steps"][:-keep], series["values"][:-keep]


class Window:
    """What a rule can see of a run when a point arrives. Only finite values are kept, except in ``line``.

    Attributes:
        line: the newest metric line.
        p: thresholds by name.
        recipe: the recipe; ``None`` if unknown.
        w: points of a rolling median; W is five of them.
        memory: what the rule wants to keep, plain JSON; the rule may change it.
    """

    def __init__(
        self,
        line: MetricLine,
        series: Mapping[str, Series],
        thresholds: Mapping[str, float],
        recipe: Recipe | None,
        w: int,
        memory: dict[str, Any],
    ) -> None:
        self.line = line
        self.p = thresholds
        self.recipe = recipe
        self.w = w
        self.memory = memory
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

    def count(self, metric: str) -> int:
        """Return how many points of a metric have arrived."""
        return int(self._series.get(metric, {}).get("n", 0))

    def trend(self, metric: str, count: int) -> Trend | None:
        """Return the trend over ``count`` points, in blocks of a quarter window; ``None`` if there are fewer."""
        values = self.last(metric, count)
        return None if values is None else trend(values, max(1, self.w // 4))


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


def noise(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise: 1.4826 MAD of the differences over sqrt 2, which ignores a trend.

    The result is not finite if the differences overflow.

    Source: Rousseeuw and Croux 1993 (the constant); von Neumann et al. 1941 (differences).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.diff(np.asarray(values, dtype=float))
        return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / math.sqrt(2))


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
