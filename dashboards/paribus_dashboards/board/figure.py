"""The chart of the score over training: one line per arm, the mean over its seeds, with a band from three seeds on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from paribus.stats.intervals import band as t_band
from paribus_dashboards.arm_chart import mean_line, pointed
from paribus_dashboards.chart_style import MAX_LINES, Json, Style, axes, band, line

MIN_BAND = 3
"""Fewest seeds for a band."""

BEST = 5
"""Arms that are shown beside the base without a choice; more bands would hide each other."""


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


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """An arm with a curve: its seeds, the steps that all of them have reached, and the values there by seed."""

    arm: ArmCurves
    seeds: tuple[Mapping[int, float], ...]
    steps: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]

    @property
    def newest(self) -> float:
        """The mean at the newest common step; NaN without one."""
        return fmean(row[-1] for row in self.rows) if self.steps else math.nan


def score_figure(
    arms: Sequence[ArmCurves], x_label: str, y_label: str, *, base: str = "", lower: bool = False, among: str = ""
) -> Json:
    """Return the chart. A mean ends where its shortest seed ends; seeds of the arms shown first are thin lines.

    The base and the :data:`BEST` best other arms are shown first. The labels of the others stand in ``rest``: the
    page draws them when they are pointed at or chosen. ``note`` says in words which arms these are.

    Args:
        arms: the best :data:`~paribus_dashboards.chart_style.MAX_LINES` of them are drawn.
        x_label: label of the x axis.
        y_label: label of the y axis, with the unit.
        base: label of the base.
        lower: whether lower values are better.
        among: what the arms are part of, for the note, e.g. `` on this page``; empty: all arms of the study.
    """
    known = [d for a in arms if (d := _drawn(a)) is not None]
    ranked = sorted(known, key=lambda d: _rank(d, base, lower=lower))[:MAX_LINES]
    first = {d.arm.label for d in ranked[: BEST + any(d.arm.label == base for d in ranked)]}
    shown = [d for d in known if d in ranked]
    bands, lines, thin = [], [], []
    for drawn in shown:
        arm, detailed = drawn.arm, drawn.arm.label in first
        mean = [fmean(values) for values in zip(*drawn.rows, strict=True)]
        if detailed and len(drawn.seeds) >= MIN_BAND and drawn.steps:
            mean, low, high = t_band(drawn.rows)
            bands.append(band(arm.label, drawn.steps, low, high, arm.style))
        made = mean_line(arm.label, drawn.steps, mean, arm.style, note=f"n={len(drawn.seeds)}")
        lines.append(made | {"mode": "lines+markers", "marker": {"size": 4}})
        if detailed and len(drawn.seeds) > 1:
            thin += [_thin(arm, seed) for seed in drawn.seeds]
    return {
        "data": [*bands, *thin, *lines],
        "layout": pointed(axes(x_label, y_label, height=300)),
        "tip": x_label,
        "rest": [d.arm.label for d in shown if d.arm.label not in first],
        "note": _note(len(known), len(ranked), first, base, among),
    }


def _thin(arm: ArmCurves, seed: Mapping[int, float]) -> Json:
    made = line(arm.label, [*seed], [*seed.values()], arm.style, width=1, opacity=0.35)
    del made["hovertemplate"]  # plotly would show it in spite of the next line
    return made | {"hoverinfo": "skip"}


def _drawn(arm: ArmCurves) -> _Drawn | None:
    seeds = tuple(s for s in arm.seeds if s)
    if not seeds:
        return None
    steps = tuple(sorted(set.intersection(*(set(s) for s in seeds))))
    return _Drawn(arm=arm, seeds=seeds, steps=steps, rows=tuple(tuple(s[step] for step in steps) for s in seeds))


def _rank(drawn: _Drawn, base: str, *, lower: bool) -> tuple[bool, bool, float]:
    """Return a key that sorts the base first, then the best newest mean."""
    newest = drawn.newest
    return drawn.arm.label != base, math.isnan(newest), newest if lower else -newest


def _note(known: int, drawn: int, first: Collection[str], base: str, among: str) -> str:
    if drawn <= len(first):
        return ""
    shown = f"the base and the {BEST} best others" if base in first else f"the {BEST} best"
    note = f"Shown: {shown} of {known} arms with a score{among}, by their newest mean. "
    note += "Point at another arm, or choose it in the list."
    return note + (f" The list has the best {drawn}." if drawn < known else "")
