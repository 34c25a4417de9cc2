"""What all charts share: the style of an arm, axes, lines, bands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from paribus.report.model import Line, Panel
from paribus.report.render.plotly import BASE_COLOUR, COLOURS, DASHES
from paribus.study.plan import Plan

Json: TypeAlias = dict[str, Any]

MAX_LINES = 100
"""Most lines that a chart draws one by one; a browser takes seconds for more."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """The line style of an arm, the same on all pages and in the report: the base is grey, others follow the plan."""

    colour: str
    dash: str


def arm_styles(plan: Plan) -> Mapping[str, Style]:
    """Return key of an arm to its style."""
    others = [a.key for a in plan.all_arms if a.key != plan.base]
    styles = {plan.base: Style(colour=BASE_COLOUR, dash="solid")}
    for i, key in enumerate(others):
        dash = DASHES[i // len(COLOURS) % len(DASHES)]
        styles[key] = Style(colour=COLOURS[i % len(COLOURS)], dash=dash)
    return styles


def axes(x_label: str, y_label: str, *, height: int = 260) -> Json:
    """Return the layout of a chart; the page's script adds the colours."""
    axis = {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 3}
    return {
        "xaxis": {**axis, "title": {"text": plain(x_label), "standoff": 8, "font": {"size": 11}}},
        "yaxis": {**axis, "title": {"text": plain(y_label), "standoff": 8, "font": {"size": 11}}},
        "margin": {"l": 52, "r": 12, "t": 8, "b": 44},
        "height": height,
        "hovermode": "closest",
        "showlegend": False,
    }


def line(
    name: str, x: Sequence[float], y: Sequence[float], style: Style, *, width: float = 2, note: str = "", **more: Any
) -> Json:
    """Return one line; the hover text shows ``note``, e.g. ``n=3``, after the name."""
    about = f"{name} ({note})" if note else name
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "x": list(x),
        "y": list(y),
        "line": {"width": width, "color": style.colour, "dash": style.dash},
        "hovertemplate": f"{plain(about)}: %{{y:.4g}} at %{{x}}<extra></extra>",
        **more,
    }


def band(name: str, x: Sequence[float], low: Sequence[float], high: Sequence[float], style: Style) -> Json:
    """Return the area between two lines."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": faint(style.colour),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def faint(colour: str, alpha: float = 0.12) -> str:
    """Return ``#rrggbb`` as a translucent colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def plain(text: str) -> str:
    """Return the text, escaped so that plotly reads neither markup nor a placeholder in it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "% {")


def y_range(panel: Panel, *, zero: bool = False) -> tuple[float, float]:
    """Return the range of all lines, with a margin."""
    found = [y for line in panel.lines for y in _values(line)] + ([0.0] if zero else [])
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin


def x_ends(panel: Panel) -> list[float]:
    """Return the range of the x axis over all lines."""
    found = [x for line in panel.lines for xs in (line.x, *(x for _, x, _ in line.seeds)) for x in (xs[:1] + xs[-1:])]
    return [min(found), max(found)] if found else [0.0, 1.0]


def _values(line: Line) -> Iterator[float]:
    yield from (*line.mean, *line.low, *line.high)
    for _, _, y in line.seeds:
        yield from y
