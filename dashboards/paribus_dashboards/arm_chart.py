"""Charts with one line for each arm: mean, band, single seeds, and what the page's script lists at a step.

The script (``static/hover.js``) lists the traces that have a text in ``meta``, the largest value first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from paribus.report.model import Line, Panel
from paribus.report.render.plotly import BASE_COLOUR, MARKED
from paribus.run_folder.metrics import find_metric
from paribus_dashboards.chart_style import MAX_LINES, Json, Style, axes, band, line, plain

SHARES = ("fraction", "share")
"""Units of values from 0 to 1."""

_HIDDEN = 0.0


def within_shares(drawn: Line) -> Line:
    """Return a line whose band ends at 0 and 1, which no share exceeds."""
    return replace(
        drawn,
        low=tuple(min(1.0, max(0.0, y)) for y in drawn.low),
        high=tuple(min(1.0, max(0.0, y)) for y in drawn.high),
    )


def is_share(metric: str) -> bool:
    """Return whether the values of a metric are shares."""
    found = find_metric(metric)
    return found is not None and found.unit in SHARES


def arms_figure(panel: Panel, styles: Mapping[str, Style], *, height: int = 260) -> Json:
    """Return data and layout of a panel: bands, means, then single seeds; more than a hundred become one grey line.

    Args:
        panel: the panel.
        styles: label of an arm to its style.
        height: height in pixels.
    """
    lines = panel.lines
    crowded = sum(len(x.seeds) for x in lines) + 2 * len(lines) > MAX_LINES
    data = [_together(lines)] if crowded else []
    data += [band(x.arm, x.x, x.low, x.high, styles[x.arm]) for x in lines if x.low]
    data += [_mean(x, styles[x.arm]) for x in lines]
    data += [t for x in lines for t in _seeds(x, styles[x.arm])] if not crowded else []
    return {"data": data, "layout": pointed(axes(panel.x_label, panel.y_label, height=height)), "tip": panel.x_label}


def pointed(layout: Json) -> Json:
    """Return a layout in which pointing anywhere finds the nearest step of all lines; the script lists them."""
    return layout | {"hovermode": "x", "hoverdistance": -1}


def mean_line(
    name: str, x: Sequence[float], y: Sequence[float], style: Style, *, note: str, shown: bool = True
) -> Json:
    """Return the line of an arm that is listed when one points at the chart.

    Args:
        name: label of the arm.
        x: steps.
        y: means.
        style: the arm's style.
        note: what the list adds to the value, e.g. ``n=3``.
        shown: whether the line is drawn, too.
    """
    made = line(name, x, y, style)
    del made["hovertemplate"]
    return made | {"meta": note, "hoverinfo": "none"} | ({} if shown else {"opacity": _HIDDEN})


def _mean(drawn: Line, style: Style) -> Json:
    """Return the mean over seeds; not drawn where single seeds stand for it."""
    if drawn.mean:
        shown = bool(drawn.low) or not drawn.seeds
        return mean_line(drawn.arm, drawn.x, drawn.mean, style, note=f"n={drawn.n}", shown=shown)
    by_x = [dict(zip(x, y, strict=True)) for _, x, y in drawn.seeds]
    common = sorted(set.intersection(*map(set, by_x))) if by_x else []
    means = [fmean(seed[x] for seed in by_x) for x in common]
    return mean_line(drawn.arm, common, means, style, note=f"n={len(by_x)}, not ended", shown=False)


def _seeds(drawn: Line, style: Style) -> Sequence[Json]:
    """Return the points of single seeds if there is a band, or else one thin line per seed; many points are a line."""
    few = "markers" if drawn.low else "lines+markers"
    return [
        {
            "type": "scatter",
            "name": plain(drawn.arm),
            "x": list(x),
            "y": list(y),
            "mode": few if len(x) <= MARKED else "lines",
            "marker": {"size": 4, "color": style.colour, "opacity": 0.55},
            "line": {"width": 1, "color": style.colour, "dash": style.dash},
            "hoverinfo": "skip",
        }
        for _, x, y in drawn.seeds
    ]


def _together(lines: Sequence[Line]) -> Json:
    """Return all single seeds as one line with gaps."""
    each = [(x, y) for drawn in lines for _, x, y in drawn.seeds]
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
