"""The numbers of the heatmap: mean reward of each group, with prompts in the order in which they were solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paribus_dashboards.data.sample_index import Counts, KeptGroups

COLUMNS, ROWS = 80, 160
"""Most columns and rows of a drawing; more steps share columns, more prompts share rows."""

SOLVED = 0.5
"""Smallest success for which a prompt counts as solved."""

_TINY = 1e-6  # rewards this close count as equal (`group/zero_std_frac`)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Groups of some problems at some steps.

    Attributes:
        keys: keys of the problems, one per row.
        names: key to identity of the problems that are known.
        spans: first and last step of each column; a column has the mean over its groups.
        mean: rows x columns; NaN without a group.
        flat: rows x columns; whether all responses have the same reward, never true for a single response.
        success: rows x columns; share of correct responses, or the position of the mean on the scale, 0 to 1, if
            correctness was not recorded.
        low: lowest reward of the scale.
        high: highest reward of the scale.
        scored: meaning of ``mean``: ``correct``, the share of correct responses, or ``reward``.
        judged: whether ``success`` counts correct responses.
        responses: fewest responses of any group; 0 without groups.
    """

    keys: NDArray[np.uint64]
    names: Mapping[int, str]
    spans: tuple[tuple[int, int], ...]
    mean: NDArray[np.float64]
    flat: NDArray[np.bool_]
    success: NDArray[np.float64]
    low: float
    high: float
    scored: Literal["correct", "reward"]
    judged: bool
    responses: int


def of_evaluations(evaluations: Mapping[int, Counts]) -> Measured:
    """Return the share of correct responses of each problem at each step."""
    names: dict[int, str] = {}
    for problems in dict.fromkeys(c.problems for c in evaluations.values()):
        names |= dict(zip(problems.keys.tolist(), problems.names, strict=True))
    keys = np.fromiter(names, np.uint64, len(names))
    row = {key: i for i, key in enumerate(names)}
    mean = np.full((len(keys), len(evaluations)), np.nan)
    flat = np.zeros(mean.shape, bool)
    for column, counts in enumerate(evaluations.values()):
        rows = [row[key] for key in counts.problems.keys.tolist()]
        mean[rows, column] = counts.correct / counts.k
        flat[rows, column] = (counts.k > 1) & ((counts.correct == 0) | (counts.correct == counts.k))
    return Measured(
        keys=keys,
        names=names,
        spans=tuple((step, step) for step in evaluations),
        mean=mean,
        flat=flat,
        success=mean,
        low=0.0,
        high=1.0,
        scored="correct",
        judged=True,
        responses=min((c.k for c in evaluations.values()), default=0),
    )


def of_kept(kept: KeptGroups, most: int = COLUMNS) -> Measured:
    """Return the mean reward of the groups that are kept as text.

    Columns are single steps if there are at most ``most``, else bins of equal width.
    """
    rewarded, judged = bool(np.isfinite(kept.mean).any()), bool(np.isfinite(kept.correct).any())
    values, n = (kept.mean, kept.n) if rewarded else (kept.correct, kept.judged)
    within = np.isfinite(values)
    values, n = values[within], n[within]
    keys, row = np.unique(kept.key[within], return_inverse=True)
    spans, column = _columns(kept.step[within], most)

    def means(x: NDArray[np.float64]) -> NDArray[np.float64]:
        total, count = np.zeros((len(keys), len(spans))), np.zeros((len(keys), len(spans)))
        known = np.isfinite(x)
        np.add.at(total, (row[known], column[known]), x[known])
        np.add.at(count, (row[known], column[known]), 1)
        with np.errstate(invalid="ignore"):
            return total / count

    low, high = 0.0, 1.0
    if rewarded and len(values):
        low, high = float(kept.low[within].min()), float(kept.high[within].max())
        low, high = (0.0, 1.0) if low >= 0.0 and high <= 1.0 else (low, max(high, low + _TINY))
    same = kept.high[within] - kept.low[within] <= _TINY if rewarded else values == np.rint(values)
    mean = means(values)
    return Measured(
        keys=keys,
        names={},
        spans=spans,
        mean=mean,
        flat=means((same & (n > 1)).astype(float)) == 1.0,
        success=means(kept.correct[within]) if judged else (mean - low) / (high - low),
        low=low,
        high=high,
        scored="reward" if rewarded else "correct",
        judged=judged,
        responses=int(n.min()) if len(values) else 0,
    )


def _columns(steps: NDArray[np.int64], most: int) -> tuple[tuple[tuple[int, int], ...], NDArray[np.int64]]:
    """Return the spans of the columns, and the column of each step."""
    singles, column = np.unique(steps, return_inverse=True)
    if len(singles) <= most:
        return tuple((s, s) for s in singles.tolist()), column
    start = int(singles[0])
    width = -(-(int(singles[-1]) - start + 1) // most)
    bins, column = np.unique((steps - start) // width, return_inverse=True)
    return tuple((start + b * width, start + (b + 1) * width - 1) for b in bins.tolist()), column


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One row: a prompt, or neighbours in the order that share a row.

    Attributes:
        place: position of its first prompt in the order, from 0.
        keys: keys of its problems.
        solved: column in which the first of them was solved; ``None`` if none was.
        mean: value of each column; NaN without a group.
        flat: for each column, whether no group has spread.
    """

    place: int
    keys: tuple[int, ...]
    solved: int | None
    mean: NDArray[np.float64]
    flat: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Heatmap:
    """The heatmap: prompts in the order in which they were solved, and counts over that order.

    Attributes:
        measured: all prompts.
        order: rows of ``measured``; the first solved on top, ties by the higher mean.
        solved: column in which each row of ``measured`` was first solved; the number of columns if never.
        rows: the drawn rows.
        first: position of the first drawn prompt.
    """

    measured: Measured
    order: NDArray[np.int64]
    solved: NDArray[np.int64]
    rows: tuple[Row, ...]
    first: int

    @property
    def from_the_start(self) -> int:
        """Number of prompts solved in the first column."""
        return int((self.solved == 0).sum())

    @property
    def later(self) -> int:
        """Number of prompts solved in a later column."""
        return len(self.solved) - self.from_the_start - self.never

    @property
    def never(self) -> int:
        """Number of prompts that were never solved."""
        return int((self.solved == len(self.measured.spans)).sum())

    @cached_property
    def _ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Highest and newest success of each prompt."""
        success = self.measured.success
        newest = success.shape[1] - 1 - np.isfinite(success)[:, ::-1].argmax(axis=1)
        return np.fmax.reduce(success, axis=1), success[np.arange(len(success)), newest]

    @property
    def mastered(self) -> int:
        """Number of prompts with full success at their newest step."""
        return int((self._ends[1] >= 1 - _TINY).sum())

    @property
    def hopeless(self) -> int:
        """Number of prompts without success at any step."""
        return int((self._ends[0] <= _TINY).sum())

    @property
    def lost(self) -> int:
        """Number of prompts that were solved, but not at their newest step."""
        return int(((self._ends[0] >= SOLVED) & (self._ends[1] < SOLVED)).sum())

    @property
    def total(self) -> NDArray[np.float64]:
        """Mean over all prompts for each column; NaN without a group."""
        mean = self.measured.mean
        known = np.isfinite(mean).sum(axis=0)
        return np.where(known > 0, np.nansum(mean, axis=0) / np.maximum(known, 1), np.nan)


def heatmap(measured: Measured, first: int = 0, count: int | None = None, most: int = ROWS) -> Heatmap:
    """Return the heatmap of some prompts in the order in which they were solved.

    Args:
        measured: all prompts.
        first: position of the first drawn prompt in the order.
        count: number of drawn prompts; ``None``: all that follow.
        most: most rows; more prompts share rows with their neighbours.
    """
    mean = measured.mean
    reached = np.nan_to_num(measured.success, nan=-1.0) >= SOLVED
    solved = np.where(reached.any(axis=1), reached.argmax(axis=1), mean.shape[1])
    known = np.maximum(np.isfinite(mean).sum(axis=1), 1)
    order = np.lexsort((-np.nansum(mean, axis=1) / known, solved))
    first = min(max(0, first), max(0, len(order) - 1))
    shown = order[first : None if count is None else first + max(1, count)]
    width = max(1, -(-len(shown) // most))
    rows = tuple(_row(measured, solved, shown[i : i + width], first + i) for i in range(0, len(shown), width))
    return Heatmap(measured=measured, order=order, solved=solved, rows=rows, first=first)


def _row(measured: Measured, solved: NDArray[np.int64], members: NDArray[np.int64], place: int) -> Row:
    mean, columns = measured.mean[members], len(measured.spans)
    known = np.isfinite(mean)
    counts = known.sum(axis=0)
    at = int(solved[members].min())
    return Row(
        place=place,
        keys=tuple(measured.keys[members].tolist()),
        solved=at if at < columns else None,
        mean=np.where(counts > 0, np.nansum(mean, axis=0) / np.maximum(counts, 1), np.nan),
        flat=(counts > 0) & (measured.flat[members] | ~known).all(axis=0),
    )
