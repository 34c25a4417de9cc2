"""Curves as values: raw points of every seed, means and t bands over seeds. Nothing is smoothed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS
from paribus.report.analysis.effects import singles
from paribus.report.inputs import RunData
from paribus.report.model import Figure, Line, Panel, kept
from paribus.report.tables.appendix import pass_ks, pass_means
from paribus.run_folder.metrics import find_metric
from paribus.run_folder.series import width_for
from paribus.stats.intervals import Estimate, band

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
"""Minimum number of points of a curve, unless it has fewer to begin with."""


ALL_CURVES = 24_000
"""Points of all curves together, so that a page stays below 5 MB. With many arms each curve has fewer points."""


SINGLE_RUNS = 100
"""Number of runs of a figure above which curves with a band leave out the points of single seeds."""


END = 10**12
"""Bucket of the last evaluation of a run that ends by its budget of tokens."""


CAPTION = (
    "One line per arm: the mean over seeds up to the step that all of them reach, with a 95% t band from 3 seeds on; "
    "with fewer seeds, one thin line per seed. "
)


SINGLE = "One thin line per seed: a mean with a band takes 3 seeds. "


RAW = "Values are as recorded, not smoothed."


HIDDEN = f"Above {SINGLE_RUNS} runs the bands of the score have no points of single seeds. "


BUCKETS = (
    "Each point is the mean of the values recorded in {width} steps, drawn at the last of them; evaluations are as "
    "recorded unless several fall into one interval of steps."
)


def curves(analysis: Analysis) -> list[Figure]:
    """Return the curves of each ladder, and of the arms that are compared with the base one by one."""
    rows = analysis.plan.rows
    found: list[tuple[str, str, Named]] = []
    for design in dict.fromkeys(r.design for r in rows if r.kind == "cumulative"):
        named = [(analysis.label(r.arm), r.arm) for r in rows if r.design == design]
        found.append((f"curves.{design}", f"Ladder `{design}` over training", named))
    ladders = {r.arm for r in rows if r.kind == "cumulative"}
    alone = singles(analysis)
    if not ladders or any(s.arm not in ladders for s in alone):
        base = (analysis.label(analysis.plan.base), analysis.plan.base)
        named = [base, *((s.name, s.arm) for s in alone)]
        found.append(("curves.singles", "Arms against the base over training", named))
    lines = sum(len(named) for _, _, named in found) * len(PANELS)
    last = max((r.last_step for r in analysis.data.runs), default=0)
    grid = Grid(last, min(CURVE, ALL_CURVES // max(lines, 1)))
    drawn = (_curves(analysis, *curve, grid) for curve in found)
    return [figure for figure in drawn if figure is not None]


def metric_panel(analysis: Analysis, metric: str) -> Panel | None:
    """Return a metric of all arms over training steps, as the curves of a report show it; ``None`` without a value.

    Args:
        analysis: of the study.
        metric: name of any metric that its runs have recorded.
    """
    known = find_metric(metric)
    label = known.label if known else metric
    arms = [(analysis.label(arm.key), arm.key) for arm in analysis.plan.arms]
    last = max((r.last_step for r in analysis.data.runs), default=0)
    grid = Grid(last, min(CURVE, ALL_CURVES // len(arms)))
    labels = label, "training steps", f"{label} ({known.unit})" if known and known.unit else label
    points = sum(len(analysis.runs(arm)) for _, arm in arms) <= SINGLE_RUNS
    panel = _panel(analysis, metric, labels, arms, partial(grid.points, metric=metric), points=points)
    return panel if panel.lines else None


@dataclass(frozen=True)
class Grid:
    """The buckets of steps of all curves: at least ``least`` from ``first`` to ``last``, the last step of any run."""

    last: int
    least: int
    first: int = 0

    @property
    def width(self) -> int:
        """Steps of a bucket."""
        return width_for(self.first, self.last, self.least)

    def points(self, run: RunData, metric: str) -> Points:
        """Return a metric by steps: the mean of each bucket at its last step."""
        found = run.recorded.series(metric, first=self.first, last=self.last, least=self.least).finite()
        rows = zip(found.buckets.tolist(), found.steps.tolist(), found.mean.tolist(), strict=True)
        return {bucket: (float(step), value) for bucket, step, value in rows}

    def points_by_cost(self, analysis: Analysis, run: RunData, cost: int, scale: float) -> Points:
        """Return the score by tokens (``cost`` 0) or device time (``cost`` 1)."""
        paid = analysis.paid(run)
        points = self.points(run, analysis.score.metric)
        if cost == 0 and analysis.ends_by_budget(run.arm) and points and run.outcome == "finished":
            points = {**points, END: points[max(points)]}  # seeds end at different steps, but at like costs
        found = {b: (paid[int(x)][cost] * scale, v) for b, (x, v) in points.items()}
        return {bucket: (x, value) for bucket, (x, value) in found.items() if math.isfinite(x)}


def _curves(analysis: Analysis, key: str, title: str, named: Named, grid: Grid) -> Figure | None:
    score = analysis.score
    tokens = analysis.costs["generated"]
    steps, y_label = "training steps", f"{score.label} ({score.unit})" if score.unit else score.label
    time, per_second = device_time(analysis)
    points = sum(len(analysis.runs(arm)) for _, arm in named) <= SINGLE_RUNS
    by_tokens = f"{score.label} by tokens", f"generated {tokens.unit}", y_label
    by_time = f"{score.label} by time", time, y_label
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
    banded = any(line.low for panel in shown for line in panel.lines)
    caption = (
        (CAPTION if banded else SINGLE)
        + ("" if points else HIDDEN)
        + (RAW if grid.width == 1 else BUCKETS.format(width=grid.width))
    )
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
        label: label of the arm.
        by_run: seed to its points.
        ended: seeds that enter the mean.
        points: whether a line with a band also shows the points of single seeds.
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


def settled(runs: Iterable[RunData]) -> frozenset[int]:
    """Return the seeds whose run has ended and has a score."""
    return frozenset(r.seed for r in runs if r.outcome in ("finished", "stopped_early"))


def pass_figure(analysis: Analysis) -> Figure | None:
    """Return pass@k by k, one line per arm; ``None`` if the report has no table of it."""
    ks = pass_ks(analysis)
    lines = tuple(
        _pass_line(analysis.label(arm), ks, [e for _, e in each]) for arm, each in pass_means(analysis, ks).items()
    )
    if not lines:
        return None
    panel = Panel(
        key="pass_at_k.curves",
        title="pass@k",
        x_label="k, responses per problem",
        y_label="pass@k (fraction)",
        lines=lines,
        ticks=tuple(map(float, ks)),
    )
    return Figure(
        key="pass_at_k.figure",
        title="Solved within k responses",
        caption="Unbiased pass@k, mean over seeds, with a 95% t band from 3 seeds on. Lines that meet at large k solve "
        "the same problems, only more or less often.",
        panels=(panel,),
        table="pass_at_k",
    )


def _pass_line(label: str, ks: list[int], means: list[Estimate]) -> Line:
    ends = [(e.value if e.low is None else e.low, e.value if e.high is None else e.high) for e in means]
    low, high = zip(*ends, strict=True) if means[0].n >= MIN_SEEDS else ((), ())
    x, mean = tuple(map(float, ks)), kept(e.value for e in means)
    return Line(arm=label, n=means[0].n, x=x, mean=mean, low=kept(low), high=kept(high))


def device_time(analysis: Analysis) -> tuple[str, float]:
    """Return the unit that suits the longest run, for example ``GPU-hours``, and a second in this unit."""
    runs = analysis.data.runs
    seconds = {a.key: analysis.values(a.key, analysis.costs["seconds"]) for a in analysis.plan.arms}
    longest = max((seconds[r.arm].get(r.seed, 0.0) * (r.gpus or 1.0) for r in runs), default=0.0)
    devices = set[bool]() if analysis.plan.external else {r.gpus > 0 for r in runs}  # no log says what it ran on
    device = "GPU" if devices == {True} else "CPU" if devices == {False} else "device"
    name, size = next(((n, s) for n, s in (("hours", 3600.0), ("minutes", 60.0)) if longest >= s), ("seconds", 1.0))
    return f"{device}-{name}", 1 / size
