"""The panels of the health page as plotly dictionaries, and as descriptions for screen readers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from paribus.health.finding import Status
from paribus.report.render.plotly import COLOURS
from paribus.run_folder.series import Floats, Series
from paribus_dashboards.chart_style import Json, axes, faint
from paribus_dashboards.format import STATUSES, spaced
from paribus_dashboards.health.panels import Curve, Limit, Onset, Panel

STATUS_COLOURS: Mapping[Status, str] = {
    "critical": "var(--critical)",
    "warn": "var(--warn)",
    "ok": "var(--ok)",
    "note": "var(--quiet)",
    "unknown": "var(--quiet)",
    "not_applicable": "var(--quiet)",
}
"""Colour of each health status; the page's script resolves the variables of the stylesheet, light or dark."""

DASHES: Mapping[Status, str] = {"critical": "dash", "warn": "dot"}

MAX_MARKED = 60
"""Most points of a curve without smoothing for which each point has a marker."""

_NEAR = 0.35  # the axis includes limits up to this share of the curves' range away
_DIGITS = 6


def panel_figure(panel: Panel) -> Json:
    """Return data and layout of a panel: recorded values (faint), running median (bold), limits and onsets."""
    data = [trace for i, curve in enumerate(panel.curves) for trace in _traces(panel, curve, _colour(panel, i))]
    low, high = y_range(panel)
    return {"data": data, "layout": _layout(panel, low, high)}


def _colour(panel: Panel, place: int) -> str:
    return COLOURS[place % len(COLOURS)] if len(panel.curves) > 1 else COLOURS[0]


def _traces(panel: Panel, curve: Curve, colour: str) -> Iterator[Json]:
    if curve.raw is not None and len(curve.raw) and curve.draw == "line":
        yield _range(curve, curve.raw, colour) if curve.raw.width > 1 else _raw(curve, curve.raw, colour)
    bold = curve.bold
    if not len(bold):
        return
    trace = {
        "type": "scatter",
        "name": curve.label,
        "x": bold.steps.tolist(),
        "y": numbers(bold.last),
        "mode": "lines" if panel.kind.smooth or len(bold) > MAX_MARKED else "lines+markers",
        "line": {"width": 2, "color": colour},
        "marker": {"size": 5, "color": colour},
        "hovertemplate": "%{y:.4g}",
    }
    if curve.draw == "area":
        trace |= {"stackgroup": "one", "fillcolor": faint(colour, 0.35), "line": {"width": 1, "color": colour}}
    if len(curve.error):
        trace["error_y"] = {"type": "data", "array": numbers(curve.error), "width": 0, "thickness": 1.2}
    yield trace


def _raw(curve: Curve, raw: Series, colour: str) -> Json:
    return {
        "type": "scatter",
        "name": f"{curve.label}, as recorded",
        "x": raw.steps.tolist(),
        "y": numbers(raw.mean),
        "mode": "lines",
        "line": {"width": 1, "color": faint(colour, 0.3)},
        "hoverinfo": "skip",
    }


def _range(curve: Curve, raw: Series, colour: str) -> Json:
    steps = raw.steps.tolist()
    return {
        "type": "scatter",
        "name": f"{curve.label}, smallest to largest",
        "x": [*steps, *reversed(steps)],
        "y": [*numbers(raw.max), *reversed(numbers(raw.min))],
        "fill": "toself",
        "fillcolor": faint(colour, 0.22),
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
    }


def numbers(values: Floats) -> list[float | None]:
    """Return numbers rounded to six significant digits; ``None`` for those that are not finite."""
    return [float(f"{v:.{_DIGITS}g}") if math.isfinite(v) else None for v in values.tolist()]


def y_range(panel: Panel) -> tuple[float, float]:
    """Return the range of the y axis over curves and near limits; in log10 for a logarithmic axis."""
    found = [part for c in panel.curves for part in _extent(c)]
    values = np.concatenate(found) if found else np.empty(0)
    values = values[np.isfinite(values)]
    if panel.kind.log:
        values = np.log10(values[values > 0])
    if not len(values):
        return (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if any(c.draw == "area" for c in panel.curves):
        low, high = 0.0, max(high, min(1.0, _stacked(panel.curves)))
    span = (high - low) or abs(high) or 1.0
    near = [y for x in panel.limits if (y := _place(x, panel.kind.log)) is not None]
    near = [y for y in near if low - _NEAR * span <= y <= high + _NEAR * span]
    low, high = min([low, *near]), max([high, *near])
    margin = 0.06 * ((high - low) or span)
    return low - (0.0 if low == 0 else margin), high + margin


def _extent(curve: Curve) -> Iterator[Floats]:
    bold = curve.bold.last
    yield bold
    if curve.raw is not None:
        yield curve.raw.min
        yield curve.raw.max
    if len(curve.error):
        yield bold - curve.error
        yield bold + curve.error


def _stacked(curves: Sequence[Curve]) -> float:
    return sum(float(np.max(c.bold.last, initial=0.0)) for c in curves if c.draw == "area")


def _place(limit: Limit, log: bool) -> float | None:
    if not log:
        return limit.value
    return math.log10(limit.value) if limit.value > 0 else None


def _layout(panel: Panel, low: float, high: float) -> Json:
    layout = axes("training steps", panel.kind.unit, height=210)
    layout["yaxis"]["range"] = [low, high]
    if panel.kind.log:
        layout["yaxis"] |= {"type": "log", "dtick": 1} if high - low > 1.5 else {"type": "log"}
    ends = [0, max(panel.last, 1)]
    layout["xaxis"]["autorangeoptions"] = {"include": ends, "clipmin": ends[0], "clipmax": ends[1]}
    limits = [x for x in panel.limits if (at := _place(x, panel.kind.log)) is not None and low <= at <= high]
    return layout | {
        "shapes": [*(limit_line(x) for x in limits), *(_onset(x) for x in panel.onsets)],
        "annotations": [_mark(x) for x in panel.onsets if not x.elsewhere],
        "margin": {"l": 48, "r": 10, "t": 16, "b": 38},
        "hovermode": "x unified",
    }


def limit_line(limit: Limit) -> Json:
    """Return a horizontal line over the whole width."""
    line = {"color": STATUS_COLOURS[limit.status], "width": 1, "dash": DASHES.get(limit.status, "dashdot")}
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": limit.value, "y1": limit.value}
    return {"type": "line", "layer": "between", "line": line, "name": f"{limit.detector}, {limit.label}", **ends}


def _onset(onset: Onset) -> Json:
    """Return a line at the onset; faint and dotted for the first finding if another panel shows it."""
    line = {"color": STATUS_COLOURS[onset.status], "width": 1 if onset.elsewhere else 1.5}
    line |= {"dash": "dot"} if onset.elsewhere else {}
    ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": onset.step, "x1": onset.step}
    return {"type": "line", "line": line, "opacity": 0.55 if onset.elsewhere else 1, "name": onset.detector, **ends}


def _mark(onset: Onset) -> Json:
    return {
        "x": onset.step,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "text": STATUSES[onset.status][0],
        "hovertext": onset_text(onset),
        "showarrow": False,
        "font": {"size": 11, "color": STATUS_COLOURS[onset.status]},
    }


def onset_text(onset: Onset) -> str:
    """Return e.g. ``entropy_collapse, critical, since step 212, until 300``."""
    until = "" if onset.cleared is None else f", until {onset.cleared}"
    return f"{onset.detector}, {onset.status}, since step {onset.step}{until}"


def panel_text(panel: Panel) -> str:
    """Return a description of a panel: curves, limits and findings."""
    curves = "; ".join(t for c in panel.curves if (t := _curve_text(c)))
    limits = limits_text(panel.limits)
    marks = "; ".join(onset_text(x) for x in panel.onsets if not x.elsewhere)
    parts = [f"{panel.kind.title} ({panel.kind.unit}) against training steps", curves or "no point yet"]
    parts += [f"limits: {limits}"] if limits else []
    parts += [f"found: {marks}"] if marks else []
    return ". ".join(parts) + "."


def limits_text(limits: Sequence[Limit]) -> str:
    """Return e.g. ``warn 0.05, critical 0.25``, with the detectors' names if there are several."""
    by_detector: dict[str, list[str]] = {}
    for x in limits:
        by_detector.setdefault(x.detector, []).append(f"{x.label} {x.value:.3g}")
    named = len(by_detector) > 1
    return "; ".join((f"{spaced(d)}: " if named else "") + ", ".join(t) for d, t in by_detector.items())


def _curve_text(curve: Curve) -> str:
    bold = curve.bold
    if not len(bold):
        return ""
    ends = f"{bold.last[0]:.3g} at {bold.steps[0]} to {bold.last[-1]:.3g} at {bold.steps[-1]}"
    return f"{curve.label} from {ends}"
