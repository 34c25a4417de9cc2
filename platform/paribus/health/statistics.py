"""The statistics of the detectors: noise that ignores trends, and trends that are robust to autocorrelation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np


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
