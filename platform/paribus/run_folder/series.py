"""Metric series in memory: a metric over steps, every point or in buckets of steps. No files are read here.

A bucket of width w holds the steps k w to (k + 1) w - 1. Widths are powers of two, so that buckets can be merged into
wider ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paribus.run_folder.folder import MetricLine
from paribus.run_folder.metrics import Source

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

EXACT: frozenset[Source] = frozenset({"exact"})

ARRAYS = ("steps", "min", "max", "mean", "last", "count", "nans")
"""The arrays of a series."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """A metric over steps; all arrays have one entry per non-empty bucket, ordered by step.

    At width 1 a bucket is a point, and ``min``, ``max``, ``mean`` and ``last`` are its value.

    Attributes:
        width: steps a bucket.
        steps: step of the bucket's last point.
        min: smallest value that is not NaN; NaN if all are, as in ``max`` and ``mean``.
        max: largest value that is not NaN.
        mean: mean of the values that are not NaN.
        last: value of the last point, which may be NaN.
        count: number of points, NaN included.
        nans: number of points that are NaN.
    """

    width: int
    steps: Ints
    min: Floats
    max: Floats
    mean: Floats
    last: Floats
    count: Ints
    nans: Ints

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def buckets(self) -> Ints:
        """Number k of each bucket; it depends on the step alone, so it is comparable between runs."""
        return self.steps // self.width

    def at(self, step: int) -> float:
        """Return the last value of the bucket that ends at this step; NaN without such a bucket."""
        place = int(np.searchsorted(self.steps, step))
        return float(self.last[place]) if place < len(self) and self.steps[place] == step else float("nan")

    def between(self, first: int | None, last: int | None) -> Series:
        """Return all buckets with a step from ``first`` to ``last``; ``None``: no bound."""
        kept = np.ones(len(self), bool)
        if first is not None:
            kept &= self.buckets >= first // self.width
        if last is not None:
            kept &= self.buckets <= last // self.width
        return self._only(kept)

    def finite(self) -> Series:
        """Return the buckets whose mean is neither NaN nor infinite."""
        return self._only(np.isfinite(self.mean))

    def _only(self, kept: NDArray[np.bool_]) -> Series:
        return self if kept.all() else Series(width=self.width, **{k: getattr(self, k)[kept] for k in ARRAYS})

    def bucketed(self, width: int) -> Series:
        """Return the series in wider buckets.

        Args:
            width: a multiple of the width.
        """
        if width == 1:  # points, each in a bucket of its own
            return self
        ids = self.steps // width
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1))
        if len(starts) == len(self):
            return Series(**{**vars(self), "width": width})
        ends = np.append(starts[1:], len(self)) - 1
        valid = self.count - self.nans
        total = np.add.reduceat(valid, starts)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            share = valid / np.repeat(total, ends - starts + 1)  # weights first: a sum of values may overflow
            mean = np.add.reduceat(np.where(valid > 0, self.mean * share, 0.0), starts)
            low, high = np.fmin.reduceat(self.min, starts), np.fmax.reduceat(self.max, starts)
            mean = np.where(total > 0, np.clip(mean, low, high), np.nan)  # rounding would leave the range
        return Series(
            width=width,
            steps=self.steps[ends],
            min=low,
            max=high,
            mean=mean,
            last=self.last[ends],
            count=np.add.reduceat(self.count, starts),
            nans=np.add.reduceat(self.nans, starts),
        )


def points(steps: Ints, values: Floats) -> Series:
    """Return a series of width 1; if a step is repeated, the later value counts."""
    if (steps[1:] <= steps[:-1]).any():
        reverse = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
        steps, values = steps[reverse], values[reverse]
    one = np.ones(len(steps), np.int64)
    nans = np.isnan(values).astype(np.int64)
    return Series(width=1, steps=steps, min=values, max=values, mean=values, last=values, count=one, nans=nans)


def joined(parts: Sequence[Series], width: int = 1) -> Series:
    """Return consecutive parts of a series as one; at width 1, later parts replace earlier ones at repeated steps.

    Args:
        parts: all of this width; parts wider than 1 are in order and neighbours share at most one bucket.
        width: width of the parts.
    """
    if not parts:
        return points(np.empty(0, np.int64), np.empty(0)).bucketed(width)
    if len(parts) == 1:
        return parts[0]
    if width == 1:
        return points(np.concatenate([p.steps for p in parts]), np.concatenate([p.last for p in parts]))
    arrays = {k: np.concatenate([getattr(p, k) for p in parts]) for k in ARRAYS}
    return Series(width=width, **arrays).bucketed(width)


def width_for(first: int, last: int, least: int | None) -> int:
    """Return the largest power of two that cuts steps ``first`` to ``last`` into ``least`` buckets or more; else 1."""
    width = 1
    while least is not None and last // (2 * width) - first // (2 * width) + 1 >= max(least, 2):
        width *= 2
    return width


class Recorded(Protocol):
    """The metrics of a run: :class:`Columns` in memory, :class:`~paribus.run_folder.series_file.RunSeries` in files."""

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last step with a metric line; ``None`` without any."""

    @property
    def names(self) -> frozenset[str]:
        """The metrics that were recorded."""

    def sources_of(self, metric: str) -> frozenset[Source]:
        """Return the sources of a metric's values; empty if it was not recorded."""

    def series(
        self, metric: str, *, first: int | None = None, last: int | None = None, least: int | None = None
    ) -> Series:
        """Return a metric from step ``first`` to ``last``, in the widest buckets that still number ``least`` or more.

        Args:
            metric: its name; a metric that was not recorded gives an empty series.
            first: first step; ``None``: the first of the run. Its bucket is included as a whole.
            last: last step; ``None``: the last of the run. Pass both to get the same buckets in several runs.
            least: least number of buckets; ``None``: every point.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Metric lines as one series per metric, with every point.

    Attributes:
        span: first and last step with a line; ``None`` without any.
        by_name: series of width 1.
        sources: the sources of a metric's values; a metric that is missing is ``exact``.
    """

    span: tuple[int, int] | None
    by_name: Mapping[str, Series]
    sources: Mapping[str, frozenset[Source]] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[MetricLine]) -> Columns:
        """Return the columns of metric lines; if a step is repeated, the later line counts."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        marked: dict[str, list[Source]] = {}
        steps = []
        for line in lines:
            steps.append(line.step)
            for name, source in line.sources.items():
                marked.setdefault(name, []).append(source)
            for name, value in line.values.items():
                column = found.get(name) or found.setdefault(name, ([], []))
                column[0].append(line.step)
                column[1].append(value)
        by_name = {n: points(np.asarray(s, np.int64), np.asarray(v, np.float64)) for n, (s, v) in found.items()}
        sources = {n: frozenset(s) | (EXACT if len(s) < len(found[n][0]) else frozenset()) for n, s in marked.items()}
        return cls(span=(min(steps), max(steps)) if steps else None, by_name=by_name, sources=sources)

    @property
    def names(self) -> frozenset[str]:
        """The metrics that were recorded."""
        return frozenset(self.by_name)

    def sources_of(self, metric: str) -> frozenset[Source]:
        """Return the sources of a metric's values; empty if it was not recorded."""
        return self.sources.get(metric, EXACT) if metric in self.by_name else frozenset()

    def series(
        self, metric: str, *, first: int | None = None, last: int | None = None, least: int | None = None
    ) -> Series:
        """Return a metric as :meth:`Recorded.series` specifies."""
        lowest, highest = self.span or (0, 0)
        width = width_for(lowest if first is None else first, highest if last is None else last, least)
        found = self.by_name[metric] if metric in self.by_name else joined([])
        return found.bucketed(width).between(first, last)
