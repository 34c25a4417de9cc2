"""The chart of a study's spending over time, with its cap and forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paribus.report.render.plotly import COLOURS
from paribus_dashboards.chart_style import Json, Style, axes, line

SPENT, LATER = Style(colour=COLOURS[0], dash="solid"), Style(colour=COLOURS[0], dash="dot")


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Spending in one unit.

    Attributes:
        unit: e.g. ``GPU-hours``.
        course: hours since the first attempt, and spending by then.
        cap: most that the study may spend; ``None``: no cap.
        forecast: expected spending at the end of the study; ``None`` if unknown.
    """

    unit: str
    course: tuple[tuple[float, float], ...]
    cap: float | None
    forecast: float | None


def spending_figure(spending: Spending) -> Json:
    """Return the chart: spending as steps, forecast and cap as horizontal lines."""
    x, y = [p[0] for p in spending.course], [p[1] for p in spending.course]
    spent = line("spent", x, y, SPENT, hovertemplate="%{y:.3g} after %{x:.3g} h<extra></extra>")
    spent["line"]["shape"] = "hv"
    ends = [0.0, x[-1] if x and x[-1] > 0 else 1.0]
    data = [spent]
    if spending.forecast is not None:
        data.append(line("forecast", ends, [spending.forecast] * 2, LATER, width=1.5))
    if spending.cap is not None:
        data.append(line("cap", ends, [spending.cap] * 2, Style(colour="var(--care)", dash="dash"), width=1.5))
    layout = axes("hours since the first attempt", spending.unit, height=240)
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


MAX_POINTS = 600
"""Most points of a course; of more, the last one of each stretch is kept, so that every shown sum is one that was."""


def course(moments: Sequence[tuple[float, float]], now: float) -> tuple[tuple[float, float], ...]:
    """Return hours since the first charge and the sum of charges by then, up to now.

    Args:
        moments: time in seconds since 1970, and device seconds charged then.
        now: seconds since 1970.
    """
    if not moments:
        return ()
    ordered = sorted(moments)
    start, total = ordered[0][0], 0.0
    points = []
    for at, charged in ordered:
        total += charged
        points.append(((at - start) / 3600, total / 3600))
    if len(points) > MAX_POINTS:
        points = [points[0], *(points[(i + 1) * len(points) // MAX_POINTS - 1] for i in range(MAX_POINTS))]
    return (*points, ((max(now, ordered[-1][0]) - start) / 3600, total / 3600))
