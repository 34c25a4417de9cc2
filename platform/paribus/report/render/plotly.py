"""Figures as plain plotly dictionaries, testable without a browser; of plotly only the script is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paribus.errors import MissingExtra
from paribus.report.model import Axis, Figure, Forest, Interval, Line, Panel, Parallel, Setting

BASE_COLOUR = "#8a8a8a"


COLOURS = ("#0077bb", "#ee7733", "#009988", "#cc3311", "#33bbee", "#ee3377", "#aa9900")
"""Paul Tol's vibrant scheme: safe for colour-blind readers, legible on white and on black."""


DASHES = ("solid", "dash", "dot", "dashdot")
"""Lines differ by dash once the colours are used up."""


MARKED = 60
"""Maximum number of points of one seed that are drawn with markers."""


Json = dict[str, Any]


Style = Mapping[str, str]


def plotly_script() -> str:
    """Return plotly's script for browsers.

    Raises:
        MissingExtra: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("figures", "a report with figures") from error
    return str(get_plotlyjs())


def legend(figure: Figure) -> dict[str, Style]:
    """Return label to colour and dash for each arm in the figure's panels; the first arm is grey."""
    labels = list(dict.fromkeys(line.arm for panel in figure.panels for line in panel.lines))
    styles: dict[str, Style] = {label: {"color": BASE_COLOUR, "dash": "solid"} for label in labels[:1]}
    for i, label in enumerate(labels[1:]):
        styles[label] = {"color": COLOURS[i % len(COLOURS)], "dash": DASHES[i // len(COLOURS) % len(DASHES)]}
    return styles


def panel_figure(panel: Panel, styles: Mapping[str, Style]) -> Json:
    """Return data and layout of one panel: bands, then means, then the points of single seeds."""
    lines = panel.lines
    data = [_band(x, styles[x.arm]) for x in lines if x.low]
    data += [_mean(x, styles[x.arm]) for x in lines if x.mean and (x.low or not x.seeds)]
    data += [t for x in lines for t in _seeds(x, styles[x.arm])]
    layout = _layout(panel.x_label, panel.y_label)
    if panel.steps:
        for trace in data:
            trace["line"] = {**trace["line"], "shape": "hv"}
    if panel.ticks:
        layout["xaxis"] |= {"type": "log", "tickvals": list(panel.ticks), "ticktext": [f"{x:g}" for x in panel.ticks]}
    return {"data": data, "layout": layout}


def forest_figure(forest: Forest) -> Json:
    """Return data and layout of one forest plot; the caption says which marks are filled."""
    rows = forest.intervals
    known = [(i.low, i.high, i.label) for i in rows if i.low is not None and i.high is not None]
    intervals = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [x for low, high, _ in known for x in (low, high, None)],
        "y": [y for _, _, label in known for y in (label, label, None)],
        "line": {"width": 1.5, "color": BASE_COLOUR},
        "marker": {"size": 6, "opacity": 0},  # invisible: makes the axis leave room at both ends
        "hoverinfo": "skip",
    }
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [i.value for i in rows],
        "y": [i.label for i in rows],
        "customdata": [[i.n] for i in rows],
        "marker": {
            "color": [_colour(i) for i in rows],
            "size": 8,
            "symbol": ["circle" if i.filled else "circle-open" for i in rows],
        },
        "hovertemplate": "%{y}: %{x} (n=%{customdata[0]})<extra></extra>",
    }
    layout = _layout(forest.x_label, "")
    order = {"categoryorder": "array", "categoryarray": [i.label for i in rows]}
    layout["yaxis"] |= {"autorange": "reversed", "type": "category", "showgrid": False, **order}
    layout["xaxis"] |= {"zeroline": True, "zerolinewidth": 1, "rangemode": "tozero", "tickangle": 0, "nticks": 4}
    layout["xaxis"]["title"]["text"] = "<br>(".join(forest.x_label.rsplit(" (", 1))  # narrow
    layout["margin"]["b"] = 56
    layout["height"] = 108 + 24 * len(rows)
    return {"data": [*([_bars(rows)] if forest.bars else []), intervals, marks], "layout": layout}


def parallel_figure(plot: Parallel) -> Json:
    """Return data and layout of parallel coordinates; a line is the stronger, the better its score."""
    lines = [_setting(each, plot.axes) for each in plot.settings]
    layout = _layout("", "")
    at = list(range(len(plot.axes)))
    layout["xaxis"] |= {
        "tickvals": at,
        "ticktext": [_plain(axis.label).replace(".", ".<br>").replace(" ", "<br>") for axis in plot.axes],
        "range": [-0.45, len(at) - 0.55],
        "tickfont": {"size": 9},
        "ticklabeloverflow": "allow",
        "showgrid": False,
        "tickangle": 0,
    }
    layout["yaxis"] |= {"visible": False, "range": [-0.14, 1.14], "fixedrange": True}
    layout["shapes"] = [
        {"type": "line", "x0": k, "x1": k, "y0": 0, "y1": 1, "line": {"width": 1, "color": BASE_COLOUR}} for k in at
    ]
    layout["annotations"] = [
        {"x": k, "y": y, "text": _plain(text), "showarrow": False, "yshift": shift, "font": {"size": 11}}
        for k, axis in zip(at, plot.axes, strict=True)
        for y, text, shift in ((0, axis.low, -10), (1, axis.high, 10))
    ]
    layout["margin"] |= {"l": 20, "r": 20, "b": 56}
    return {"data": lines, "layout": layout}


def _setting(each: Setting, axes: Sequence[Axis]) -> Json:
    known = [(k, place, text) for k, (place, text) in enumerate(zip(each.places, each.texts, strict=True))
             if place is not None]  # fmt: skip
    score = each.places[-1]
    strength = 0.15 if score is None else 0.25 + 0.6 * score
    words = "<br>".join(f"{_plain(a.label)}: {_plain(t)}" for a, t in zip(axes, each.texts, strict=True))
    return {
        "type": "scatter",
        "name": each.label,
        "x": [k for k, _, _ in known],
        "y": [place for _, place, _ in known],
        "mode": "lines+markers",
        "marker": {"size": 4},
        "line": {
            "width": 3 if each.chosen else 1.2,
            "color": COLOURS[1] if each.chosen else _rgba(COLOURS[0] if score is not None else BASE_COLOUR, strength),
            "dash": "dot" if score is None else "solid",
        },
        "hovertemplate": f"{_plain(each.label)}<br>{words}<extra></extra>",
    }


def _colour(row: Interval) -> str:
    if row.side:
        return COLOURS[0] if row.side == "better" else COLOURS[1]
    return COLOURS[2] if row.separated else BASE_COLOUR


def _bars(rows: Sequence[Interval]) -> Json:
    return {
        "type": "bar",
        "orientation": "h",
        "x": [i.value for i in rows],
        "y": [i.label for i in rows],
        "width": 0.55,
        "marker": {"color": [_rgba(_colour(i), 0.3) for i in rows]},
        "hoverinfo": "skip",
    }


def _layout(x_label: str, y_label: str) -> Json:
    axis = {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 3}
    return {
        "xaxis": {**axis, "title": {"text": x_label, "standoff": 8, "font": {"size": 11}}},
        "yaxis": {**axis, "title": {"text": y_label, "standoff": 8, "font": {"size": 11}}},
        "margin": {"l": 52, "r": 12, "t": 8, "b": 44},
        "height": 260,
        "hovermode": "closest",
        "showlegend": False,
    }


def _band(line: Line, style: Style) -> Json:
    return {
        "type": "scatter",
        "name": line.arm,
        "x": [*line.x, *reversed(line.x)],
        "y": [*line.high, *reversed(line.low)],
        "fill": "toself",
        "fillcolor": _rgba(style["color"], 0.1),
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
    }


def _mean(line: Line, style: Style) -> Json:
    return {
        "type": "scatter",
        "name": line.arm,
        "x": list(line.x),
        "y": list(line.mean),
        "mode": "lines",
        "line": {"width": 2, "color": style["color"], "dash": style["dash"]},
        "hovertemplate": f"{_plain(line.arm)} (n={line.n}): %{{y}}<extra></extra>",
    }


def _seeds(line: Line, style: Style) -> Sequence[Json]:
    """Return the points of single seeds if there is a band, or else one thin line per seed; many points are a line."""
    few = "markers" if line.low else "lines+markers"
    return [
        {
            "type": "scatter",
            "name": line.arm,
            "x": list(x),
            "y": list(y),
            "mode": few if len(x) <= MARKED else "lines",
            "marker": {"size": 4, "color": style["color"], "opacity": 0.55},
            "line": {"width": 1, "color": style["color"], "dash": style["dash"]},
            "hovertemplate": f"{_plain(line.arm)}, seed {seed}: %{{y}}<extra></extra>",
        }
        for seed, x, y in line.seeds
    ]


def _rgba(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def _plain(text: str) -> str:
    """Return the text with plotly's markup characters escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "% {")
