"""Running medians, as the detectors use them: of the newest points at each step, never of later ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paribus.run_folder.series import Floats


def running_median(values: Floats, w: int) -> Floats:
    """Return the median of each value and the w - 1 values before it; w - 1 shorter than ``values``."""
    if len(values) < w:
        return np.empty(0)
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(values, w), axis=-1))


def trailing_median(values: Floats, w: int) -> Floats:
    """Return the median of each value and of up to w - 1 values before it; as long as ``values``."""
    head = min(w - 1, len(values))
    if head <= 0:
        return values
    n = np.arange(1, head + 1)
    until = np.sort(np.where(np.arange(head) < n[:, None], values[:head], np.inf), axis=1)
    first = (until[n - 1, (n - 1) // 2] + until[n - 1, n // 2]) / 2
    return np.concatenate([first, running_median(values, w)])


def smoothed(points: Mapping[int, tuple[float, float]], w: int) -> Mapping[int, tuple[float, float]]:
    """Return points by bucket of steps, x and value, with the trailing median of their values.

    Args:
        points: bucket to x and value; values are finite.
        w: most points of a median; 1 changes nothing.
    """
    if w <= 1 or len(points) < 2:
        return points
    order = sorted(points)
    medians = trailing_median(np.array([points[b][1] for b in order]), w).tolist()
    return {b: (points[b][0], y) for b, y in zip(order, medians, strict=True)}
