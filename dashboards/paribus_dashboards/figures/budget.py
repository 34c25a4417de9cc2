"""What a study has spent over time, what it may spend, and where it will come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paribus.report.figures import COLOURS
from paribus_dashboards.figures.style import Json, Style, axes, line

SPENT, LATER = Style(colour=COLOURS[0], dash="solid"), Style(colour=COLOURS[0], dash="dot")


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Spending in one unit.

    Attributes:
        unit: e.g. ``GPU-hours``.
        course: hours since the first attempt, and what was spent by then.
        cap: the most that may be spent; ``None``: anything.
        forecast: what it will have spent at its end; ``None`` if nothing is known.
    """

    unit: str
    course: tuple[tuple[float, float], ...]
    cap: float | None
    forecast: float | None


def spending_figure(spending: Spending) -> Json:
    """Return the chart: spent as steps, the forecast and the cap as lines across."""
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


def course(moments: Sequence[tuple[float, float]], now: float) -> tuple[tuple[float, float], ...]:
    """Return hours since the first of these moments and the sum by then, as far as now.

    Args:
        moments: seconds since 1970 and what was charged then.
        now: seconds since 1970.
    """
    if not moments:
        return ()
    ordered = sorted(moments)
    began, total = ordered[0][0], 0.0
    points = []
    for at, charged in ordered:
        total += charged
        points.append(((at - began) / 3600, total / 3600))
    return (*points, ((max(now, ordered[-1][0]) - began) / 3600, total / 3600))
