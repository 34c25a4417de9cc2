"""Figures in words, for screen readers. The numbers are those that are drawn, to three digits."""

from __future__ import annotations

from dataclasses import replace

from paribus.report.model import Figure, Forest, Interval, Line, Panel


def described(figure: Figure) -> Figure:
    """Return the figure with a text for each panel and forest plot; matrices are already tables."""
    panels = tuple(replace(p, alt=panel_text(p)) for p in figure.panels)
    return replace(figure, panels=panels, forests=tuple(replace(f, alt=forest_text(f)) for f in figure.forests))


def panel_text(panel: Panel) -> str:
    """Return the first and the last point of each line."""
    lines = "; ".join(_line(line) for line in panel.lines)
    return f"{panel.title}: {panel.y_label} against {panel.x_label}. {lines}."


def forest_text(forest: Forest) -> str:
    """Return each row with its interval."""
    return f"{forest.title}: {forest.x_label}. {'; '.join(_interval(i) for i in forest.intervals)}."


def _line(line: Line) -> str:
    if line.mean:
        ends = f"{_short(line.mean[0])} at {_short(line.x[0])} to {_short(line.mean[-1])} at {_short(line.x[-1])}"
        return f"{line.arm} from {ends} (n={line.n})"
    ends = ", ".join(f"{_short(y[0])} to {_short(y[-1])}" for _, _, y in line.seeds)
    return f"{line.arm}, single seeds: {ends}"


def _interval(row: Interval) -> str:
    if row.low is None or row.high is None:
        return f"{row.label} {_short(row.value)} (n={row.n})"
    apart = "" if row.separated else ", not separated from 0"
    return f"{row.label} {_short(row.value)} [{_short(row.low)}, {_short(row.high)}] (n={row.n}{apart})"


def _short(value: float) -> str:
    text = f"{value:.3g}"
    return f"{float(text):g}".replace("-", "−")
