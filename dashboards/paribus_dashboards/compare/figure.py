"""The charts of the compare page: the report's panels, with all arms or one arm, on the same y axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paribus.report.model import Panel
from paribus.report.render.plotly import BASE_COLOUR, panel_figure
from paribus_dashboards.chart_style import MAX_LINES, Json, Style, x_ends, y_range


def compare_figure(panel: Panel, styles: Mapping[str, Style], *, height: int = 250, zero: bool = False) -> Json:
    """Return data and layout of a panel; the y axis covers all its lines.

    Args:
        panel: the panel; more than a hundred single seeds become one grey line.
        styles: label of an arm to its style.
        height: height in pixels.
        zero: whether the axis includes and marks 0.
    """
    low, high = y_range(panel, zero=zero)
    seeds = sum(len(line.seeds) for line in panel.lines)
    drawn = panel
    if seeds + 2 * len(panel.lines) > MAX_LINES:
        drawn = replace(panel, lines=tuple(replace(line, seeds=()) for line in panel.lines))
    figure = panel_figure(drawn, {n: {"color": s.colour, "dash": s.dash} for n, s in styles.items()})
    if drawn is not panel:
        figure["data"].insert(0, _together(panel))
    figure["layout"] |= {"height": height, "margin": {"l": 52, "r": 10, "t": 8, "b": 40}}
    figure["layout"]["yaxis"] |= {"range": [low, high], "zeroline": zero}
    figure["layout"]["xaxis"]["autorangeoptions"] = {"include": x_ends(panel)}
    return figure


def alone(panel: Panel, arm: str, base: str) -> Panel:
    """Return the panel with one arm and the base only."""
    return replace(panel, lines=tuple(line for line in panel.lines if line.arm in (arm, base)))


def _together(panel: Panel) -> Json:
    """Return all single seeds as one line with gaps."""
    each = [(x, y) for line in panel.lines for _, x, y in line.seeds]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "single seeds",
        "x": [v for x, _ in each for v in (*x, None)],
        "y": [v for _, y in each for v in (*y, None)],
        "line": {"width": 1, "color": BASE_COLOUR},
        "opacity": 0.4,
        "hoverinfo": "skip",
    }
