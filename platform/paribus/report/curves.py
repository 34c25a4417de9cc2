"""Curves and forest plots as values: raw points of every seed, means and t bands over seeds. Nothing is smoothed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from paribus.report.analysis import MIN_SEEDS, Analysis
from paribus.report.clock import device_time
from paribus.report.data import RunData
from paribus.report.details import effect_measures, effects, singles
from paribus.report.model import Figure, Forest, Interval, Line, Panel, kept, rounded, stored
from paribus.stats.intervals import Estimate, band
from paribus.track.metrics import find_metric
from paribus.track.series import width_for

PANELS = (
    "reward/correct_frac",
    "response/length_mean",
    "response/length_mean_incorrect",
    "response/truncated_frac",
    "policy/entropy",
    "group/zero_std_frac",
)

Named: TypeAlias = Sequence[tuple[str, str]]
"""Label and arm of each line."""

Points: TypeAlias = Mapping[int, tuple[float, float]]
"""Number of a bucket of steps to x and value."""

CURVE = 400
"""Points that a curve has at least where it had more."""

ALL_CURVES = 24_000
"""The same for all curves together, so that a page has less than 5 MB. Many arms have fewer points each."""

SINGLE_RUNS = 100
"""Runs of a figure above which the points of single seeds are left out where there is a band."""

CAPTION = (
    "One line an arm: the mean over seeds while all its seeds are there, with a 95% t band from 3 seeds on; below "
    "that, one thin line a seed. "
)
RAW = "Values are as recorded, not smoothed."
HIDDEN = f"Points of single seeds beside the bands of the score are left out above {SINGLE_RUNS} runs. "
BUCKETS = (
    "Each point is the mean of what was recorded in {width} steps, drawn at the last of them; evaluations are as "
    "recorded unless several fall into these steps."
)


def curves(analysis: Analysis) -> list[Figure]:
    """Return the curves of each ladder and of the single changes."""
    rows = analysis.plan.rows
    found: list[tuple[str, str, Named]] = []
    for design in dict.fromkeys(r.design for r in rows if r.kind == "cumulative"):
        named = [(r.label, r.arm) for r in rows if r.design == design]
        found.append((f"curves.{design}", f"Ladder `{design}` over training", named))
    ladders = {r.arm for r in rows if r.kind == "cumulative"}
    alone = singles(analysis)
    if not ladders or any(s.arm not in ladders for s in alone):
        base = (analysis.label(analysis.plan.base), analysis.plan.base)
        named = [base, *((s.name, s.arm) for s in alone)]
        found.append(("curves.singles", "Single changes over training", named))
    lines = sum(len(named) for _, _, named in found) * len(PANELS)
    last = max((r.last_step for r in analysis.data.runs), default=0)
    grid = Grid(last, min(CURVE, ALL_CURVES // max(lines, 1)))
    drawn = (_curves(analysis, *curve, grid) for curve in found)
    return [figure for figure in drawn if figure is not None]


@dataclass(frozen=True)
class Grid:
    """The buckets of all curves: at least ``least`` of them from ``first`` to ``last``, the last step of any run."""

    last: int
    least: int
    first: int = 0

    @property
    def width(self) -> int:
        """Steps of a bucket."""
        return width_for(self.first, self.last, self.least)

    def points(self, run: RunData, metric: str) -> Points:
        """Return a metric against steps: the means of the buckets, each at its last step."""
        found = run.recorded.series(metric, first=self.first, last=self.last, least=self.least).finite()
        rows = zip(found.buckets.tolist(), found.steps.tolist(), found.mean.tolist(), strict=True)
        return {bucket: (float(step), value) for bucket, step, value in rows}

    def points_by_cost(self, analysis: Analysis, run: RunData, cost: int, scale: float) -> Points:
        """Return the score against tokens (0) or device time (1)."""
        paid = analysis.paid(run)
        found = {b: (paid[int(x)][cost] * scale, v) for b, (x, v) in self.points(run, analysis.score.metric).items()}
        return {bucket: (x, value) for bucket, (x, value) in found.items() if math.isfinite(x)}


def _curves(analysis: Analysis, key: str, title: str, named: Named, grid: Grid) -> Figure | None:
    score = analysis.score
    tokens = analysis.costs["generated"]
    steps, y_label = "training steps", f"{score.label} ({score.unit})" if score.unit else score.label
    time, per_second = device_time(analysis)
    points = sum(len(analysis.runs(arm)) for _, arm in named) <= SINGLE_RUNS
    by_tokens = f"{score.label}, by tokens paid", f"generated {tokens.unit}", y_label
    by_time = f"{score.label}, by time paid", time, y_label
    panels = [
        _panel(
            analysis,
            f"{key}.score",
            (score.label, steps, y_label),
            named,
            lambda r: grid.points(r, score.metric),
            points=points,
        ),
        _panel(
            analysis,
            f"{key}.score_by_tokens",
            by_tokens,
            named,
            lambda r: grid.points_by_cost(analysis, r, 0, tokens.scale),
            points=points,
        ),
        _panel(
            analysis,
            f"{key}.score_by_time",
            by_time,
            named,
            lambda r: grid.points_by_cost(analysis, r, 1, per_second),
            points=points,
        ),
    ]
    for name in PANELS:
        metric = find_metric(name)
        assert metric is not None
        labels = metric.label, steps, f"{metric.label} ({metric.unit})"
        panels.append(_panel(analysis, f"{key}.{name}", labels, named, partial(grid.points, metric=name)))
    shown = tuple(p for p in panels if p.lines)
    caption = CAPTION + ("" if points else HIDDEN) + (RAW if grid.width == 1 else BUCKETS.format(width=grid.width))
    return Figure(key=key, title=title, caption=caption, panels=shown, table="training") if shown else None


def _panel(
    analysis: Analysis,
    key: str,
    labels: tuple[str, str, str],
    named: Named,
    curve: Callable[[RunData], Points],
    *,
    points: bool = False,
) -> Panel:
    title, x_label, y_label = labels
    lines = []
    for label, arm in named:
        runs = analysis.runs(arm)
        lines.append(arm_line(label, {r.seed: curve(r) for r in runs}, settled(runs), points=points))
    return Panel(key=key, title=title, x_label=x_label, y_label=y_label, lines=tuple(x for x in lines if x))


def arm_line(label: str, by_run: Mapping[int, Points], ended: frozenset[int], *, points: bool) -> Line | None:
    """Return one arm's line from the points of each seed; ``None`` without a point.

    Args:
        label: of the arm.
        by_run: seed to its points.
        ended: seeds that the mean is over.
        points: whether single seeds are drawn beside a band, too.
    """
    runs = {seed: found for seed, found in by_run.items() if found}
    if not runs:
        return None
    means = {seed: found for seed, found in runs.items() if seed in ended}
    common = sorted(set.intersection(*(set(f) for f in means.values()))) if means else []
    mean, low, high = band([[f[k][1] for k in common] for f in means.values()]) if common else ((), (), ())
    x = kept(sum(f[k][0] for f in means.values()) / len(means) for k in common)
    drawn = len(means) >= MIN_SEEDS
    shown = runs if points or not drawn else {}
    each = tuple(
        (seed, kept(f[k][0] for k in sorted(f)), kept(f[k][1] for k in sorted(f))) for seed, f in shown.items()
    )
    return Line(
        arm=label,
        n=len(means),
        x=x,
        mean=kept(mean),
        low=kept(low) if drawn else (),
        high=kept(high) if drawn else (),
        seeds=each,
    )


def forest_figure(analysis: Analysis) -> Figure | None:
    """Return forest plots of the single changes; ``None`` without a difference to the base."""
    alone = singles(analysis)
    if not any(analysis.to_base.values()):
        return None
    found = effects(analysis)
    columns = [(analysis.score, {s.arm: analysis.to_base.get(s.arm) for s in alone})]
    columns += [(m, {s.arm: found[s.arm, m.key] for s in alone}) for m in effect_measures(analysis)]
    forests = []
    for measure, by_arm in columns:
        label = "tokens generated" if measure.key == "generated" else measure.label
        rows = [interval_of(s.name, e.estimate, e.separated) for s in alone if (e := by_arm[s.arm]) is not None]
        unit = f" ({measure.unit})" if measure.unit else ""
        forests.append(
            Forest(key=f"forest.{measure.key}", title=label, x_label=f"Δ {label}{unit}", intervals=tuple(rows))
        )
    base = analysis.label(analysis.plan.base)
    paired = "paired by seed" if analysis.plan.paired else "seeds not paired"
    return Figure(
        key="forest",
        title="What each change moves, as intervals",
        caption=f"Difference to `{base}`, {paired}, with 95% t interval; without interval below 3 seeds. Filled: the "
        "interval leaves out 0, before any correction.",
        forests=tuple(f for f in forests if f.intervals),
        table="effects",
    )


def interval_of(label: str, estimate: Estimate, separated: bool) -> Interval:
    """Return a row of a forest plot; without ends below three seeds, and where there is no noise."""
    known = estimate.n >= MIN_SEEDS and bool(estimate.sd)
    return Interval(
        label=label,
        value=rounded(estimate.value),
        low=stored(estimate.low) if known else None,
        high=stored(estimate.high) if known else None,
        n=estimate.n,
        separated=separated,
    )


def settled(runs: Iterable[RunData]) -> frozenset[int]:
    """Return the seeds whose run will record no more, and counts."""
    return frozenset(r.seed for r in runs if r.outcome in ("finished", "stopped_early"))
