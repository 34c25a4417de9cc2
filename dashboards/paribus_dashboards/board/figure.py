"""The chart of the score over training: one line per arm, the mean over its seeds, with a band from three seeds on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from paribus.stats.intervals import band as t_band
from paribus_dashboards.chart_style import MAX_LINES, Json, Style, axes, band, line

MIN_BAND = 3
"""Fewest seeds for a band."""

MAX_DETAILED = 6
"""Most arms with bands and single seeds; with more, they would hide each other. The compare page shows chosen arms."""


@dataclass(frozen=True, kw_only=True)
class ArmCurves:
    """The scores of an arm.

    Attributes:
        label: label of the arm.
        style: style of its line.
        seeds: for each seed, step to score.
    """

    label: str
    style: Style
    seeds: tuple[Mapping[int, float], ...]


def score_figure(arms: Sequence[ArmCurves], x_label: str, y_label: str) -> Json:
    """Return the chart. A mean ends where its shortest seed ends; with few arms, single seeds are thin lines.

    Args:
        arms: the first :data:`~paribus_dashboards.chart_style.MAX_LINES` of them are drawn.
        x_label: label of the x axis.
        y_label: label of the y axis, with the unit.
    """
    shown = arms[:MAX_LINES]
    detailed = len(shown) <= MAX_DETAILED
    bands, lines, thin = [], [], []
    for arm in shown:
        seeds = [s for s in arm.seeds if s]
        if not seeds:
            continue
        steps = sorted(set.intersection(*(set(s) for s in seeds)))
        rows = [[s[step] for step in steps] for s in seeds]
        mean = [fmean(values) for values in zip(*rows, strict=True)]
        if detailed and len(seeds) >= MIN_BAND and steps:
            mean, low, high = t_band(rows)
            bands.append(band(arm.label, steps, low, high, arm.style))
        note = f"mean, n={len(seeds)}"
        lines.append(line(arm.label, steps, mean, arm.style, note=note, mode="lines+markers", marker={"size": 4}))
        if detailed and len(seeds) > 1:
            thin += [
                line(arm.label, [*s], [*s.values()], arm.style, width=1, opacity=0.35, hoverinfo="skip") for s in seeds
            ]
    return {"data": [*bands, *thin, *lines], "layout": axes(x_label, y_label, height=300)}
