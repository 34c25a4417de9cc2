"""The score over training: one line an arm, the mean over its seeds, with a band from three seeds on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from paribus.stats.intervals import band as t_band
from paribus_dashboards.figures.style import MOST_LINES, Json, Style, axes, band, line

MIN_BAND = 3
"""Seeds below which there is no band."""

DETAILED = 6
"""Arms above which bands and single seeds would hide each other; whoever compares arms chooses some."""


@dataclass(frozen=True, kw_only=True)
class ArmCurves:
    """What the seeds of an arm did.

    Attributes:
        label: the arm.
        style: how it is drawn.
        seeds: of each seed step to value.
    """

    label: str
    style: Style
    seeds: tuple[Mapping[int, float], ...]


def score_figure(arms: Sequence[ArmCurves], x_label: str, y_label: str) -> Json:
    """Return the chart; a mean ends where the first of its seeds does, and few arms have their seeds beside it.

    Args:
        arms: at most :data:`~paribus_dashboards.figures.style.MOST_LINES` are drawn, the first ones.
        x_label: what is on the x axis.
        y_label: what is on the y axis, with its unit.
    """
    shown = arms[:MOST_LINES]
    detailed = len(shown) <= DETAILED
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
