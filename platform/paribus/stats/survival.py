"""Times until something happens, where for some runs it has not happened when they end."""

from __future__ import annotations

from collections.abc import Sequence

Time = tuple[float, bool]
"""Time of the event, and that it happened; or the end of a run in which it did not."""


def survivors(times: Sequence[Time]) -> list[tuple[float, float]]:
    """Return for each time of an event the share of runs in which it comes later.

    Source: Kaplan and Meier 1958, JASA 53: ``S(t) = prod_{t_i <= t} (1 - d_i / n_i)`` with ``d_i`` events among the
    ``n_i`` runs that had neither had it nor ended before ``t_i``.

    Raises:
        ValueError: no times.
    """
    if not times:
        raise ValueError("a share of runs needs one run or more")
    share, found = 1.0, []
    for at in sorted({t for t, happened in times if happened}):
        events = sum(t == at and happened for t, happened in times)
        share *= 1 - events / sum(t >= at for t, _ in times)
        found.append((at, share))
    return found


def median_time(times: Sequence[Time]) -> float | None:
    """Return the time by which half of the runs have had the event; ``None`` if that is never seen.

    Raises:
        ValueError: no times.
    """
    return next((at for at, share in survivors(times) if share <= 0.5 + 1e-12), None)
