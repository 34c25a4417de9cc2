"""The window through which a rule sees a run: the newest points of each metric, and what it began with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from paribus.health import primitives
from paribus.recipe.recipe import Recipe
from paribus.track.folder import MetricLine

Series = dict[str, Any]
"""Steps and values of the newest finite points, the first values, the first step, and their number; plain JSON."""


def window(points: int | None) -> int:
    """Return w, the points of a rolling median: a thirtieth of the planned points, from 5 to 20; 20 if unknown."""
    return 20 if points is None else min(20, max(5, round(points / 30)))


def take(series: Series, line: MetricLine, metric: str, keep: int, head: int) -> None:
    """Add a point to a series, in place, with seven digits; a value that is not finite is left out."""
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


class View:
    """What a rule may look at when a point has come in.

    Attributes:
        line: the newest metric line.
        p: thresholds by name.
        recipe: the recipe, if it is known.
        w: points of a rolling median; W is five of them.
        memory: what the rule wants to keep, plain JSON; it may be changed.
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

    def value(self, metric: str) -> float | None:
        """Return the value of the newest line."""
        return self.line.values.get(metric)

    def tail(self, metric: str, count: int, ago: int = 0) -> list[float] | None:
        """Return ``count`` values up to ``ago`` points before the newest; ``None`` if there are not as many."""
        values: list[float] = self._series.get(metric, {}).get("values", [])
        end = len(values) - ago
        return values[end - count : end] if end >= count else None

    def kept(self, metric: str) -> list[float]:
        """Return all values that are remembered, oldest first."""
        values: list[float] = self._series.get(metric, {}).get("values", [])
        return values

    def middle(self, metric: str, ago: int = 0) -> float | None:
        """Return the median of w values up to ``ago`` points before the newest."""
        values = self.tail(metric, self.w, ago)
        return None if values is None else statistics.median(values)

    def first(self, metric: str, count: int | None = None) -> list[float] | None:
        """Return the first values, w unless told; ``None`` while there are not as many."""
        values: list[float] = self._series.get(metric, {}).get("first", [])
        count = count or self.w
        return values[:count] if len(values) >= count else None

    def since(self, metric: str) -> int:
        """Return the step of the first point, of which there must be one."""
        step: int = self._series[metric]["since"]
        return step

    def began(self, metric: str) -> float | None:
        """Return the median of the first w values."""
        values = self.first(metric)
        return None if values is None else statistics.median(values)

    def step_ago(self, metric: str, ago: int) -> int:
        """Return the step of the point so many before the newest, or the oldest that is kept."""
        steps: list[int] = self._series[metric]["steps"]
        return steps[max(0, len(steps) - 1 - ago)]

    def gain(self, metric: str, over: int) -> float | None:
        """Return how much the rolling median has risen over so many points."""
        now, before = self.middle(metric), self.middle(metric, over)
        return None if now is None or before is None else now - before

    def count(self, metric: str) -> int:
        """Return how many points of a metric have come in."""
        return int(self._series.get(metric, {}).get("n", 0))

    def trend(self, metric: str, count: int) -> primitives.Trend | None:
        """Return the trend over so many points, in blocks of a quarter window."""
        values = self.tail(metric, count)
        return None if values is None else primitives.trend(values, max(1, self.w // 4))
