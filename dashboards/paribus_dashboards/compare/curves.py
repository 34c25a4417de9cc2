"""Arms of a study side by side: curves with the report's bands, differences to the base, settings. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from paribus.health.window import window_size
from paribus.recipe.recipe import flatten
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, contrast
from paribus.report.analysis.measures import Measure, device_seconds, score_measure
from paribus.report.figures.curves import SINGLE_RUNS, Grid, Points, arm_line, device_time, settled
from paribus.report.inputs import RunData
from paribus.report.model import Cell, Forest, Interval, Line, Panel, ReportModel, kept
from paribus.run_folder.metrics import GENERATED, find_metric
from paribus.study.designs import value_label
from paribus.study.plan import Arm, Plan
from paribus_dashboards.arm_chart import arms_figure, is_share, within_shares
from paribus_dashboards.chart_style import Json, Style, x_ends, y_range
from paribus_dashboards.smoothing import smoothed

Axis = Literal["step", "tokens", "gpu_hours"]

AXES: Mapping[Axis, str] = {"step": "training steps", "tokens": "generated tokens", "gpu_hours": "device time"}
"""Choices of the x axis and their titles."""

Show = Literal["value", "difference"]

LEAST = 200
"""Fewest buckets of a curve that has more points."""

ByRun: TypeAlias = dict[int, Points]
"""Seed to the points of its run."""


@dataclass(frozen=True, kw_only=True)
class ChartSpec:
    """What one chart shows.

    Attributes:
        metric: canonical name of the metric.
        arms: keys of the arms, in the order of the plan.
        x: the x axis.
        show: the metric itself, or its difference to the base.
        first: first step; used only if steps are on the x axis.
        last: last step.
        raw: whether values are as recorded; else each seed is its running median. Scores always are as recorded.
    """

    metric: str
    arms: tuple[str, ...]
    x: Axis = "step"
    show: Show = "value"
    first: int | None = None
    last: int | None = None
    raw: bool = False


def compared(analysis: Analysis, spec: ChartSpec, least: int = LEAST) -> Panel:
    """Return a panel with one line per arm: the mean over seeds with its 95% t band, as in the report.

    A mean is over the seeds that have ended. Seeds that have not ended are thin lines. Bands of shares end at 0 and 1.
    """
    name, unit = _named(analysis.score, spec.metric)
    grid, scale, x_label = _grid(analysis, spec, least), 1.0, AXES[spec.x]
    if spec.x == "gpu_hours":
        x_label, scale = device_time(analysis)
    by_arm = {arm: _points(analysis, spec, grid, arm, scale) for arm in dict.fromkeys((*spec.arms, analysis.plan.base))}
    if spec.show == "difference":
        name = f"Δ {name}"
        lines = [_difference(analysis, arm, by_arm) for arm in spec.arms if arm != analysis.plan.base]
    else:
        few = sum(len(analysis.runs(arm)) for arm in spec.arms) <= SINGLE_RUNS
        points = few and spec.metric.startswith("eval/")
        lines = [_line(analysis, arm, by_arm[arm], points=points) for arm in spec.arms]
        if is_share(spec.metric):
            lines = [x and within_shares(x) for x in lines]
    return Panel(
        key=f"{spec.show}.{spec.metric}.{spec.x}",
        title=name,
        x_label=x_label,
        y_label=f"{name} ({unit})" if unit else name,
        lines=tuple(x for x in lines if x is not None),
    )


def untold(plan: Plan, spec: ChartSpec) -> Panel:
    """Return the panel of a chart with its title, but without its lines."""
    name, unit = _named(score_measure(plan.evaluate), spec.metric)
    name = f"Δ {name}" if spec.show == "difference" else name
    y_label = f"{name} ({unit})" if unit else name
    return Panel(key="", title=name, x_label=AXES[spec.x], y_label=y_label, lines=())


def _named(score: Measure, name: str) -> tuple[str, str]:
    """Return label and unit of a metric."""
    metric = find_metric(name)
    label, unit = (metric.label, metric.unit) if metric else (name, "")
    return (score.label if name == score.metric else label), unit


def _grid(analysis: Analysis, spec: ChartSpec, least: int) -> Grid:
    last = max((r.last_step for arm in spec.arms for r in analysis.runs(arm)), default=0)
    if spec.x != "step" or spec.first is None or spec.last is None:
        return Grid(last, least)
    before = 0 if spec.raw else max(_window(analysis, arm) for arm in spec.arms)  # what the first median looks back at
    return Grid(min(last, spec.last), least, max(0, min(spec.first, last) - before))


def _window(analysis: Analysis, arm: str) -> int:
    """Return the steps of a running median, as the detectors use it."""
    return window_size(analysis.plan.arm(arm).recipe.schedule.steps)


def _points(analysis: Analysis, spec: ChartSpec, grid: Grid, arm: str, scale: float) -> ByRun:
    w = 1
    if not spec.raw and not spec.metric.startswith("eval/"):
        w = max(1, round(_window(analysis, arm) / grid.width))
    found = {run.seed: smoothed(_against(run, spec, grid, scale), w) for run in analysis.runs(arm)}
    if spec.x != "step" or spec.first is None or spec.raw:
        return found
    return {seed: {b: p for b, p in points.items() if p[0] >= spec.first} for seed, points in found.items()}


def _against(run: RunData, spec: ChartSpec, grid: Grid, scale: float) -> Points:
    """Return a metric of a run against steps, or against the tokens or device time used by then."""
    found = grid.points(run, spec.metric)
    if spec.x == "step":
        return found
    if spec.x == "tokens":
        tokens = run.recorded.series(GENERATED, first=grid.first, last=grid.last, least=grid.least).finite()
        paid: Mapping[int, float] = dict(zip(tokens.buckets.tolist(), tokens.last.tolist(), strict=True))
        return {b: (0.0 if x == 0 else paid[b], y) for b, (x, y) in found.items() if x == 0 or b in paid}
    steps = [int(x) for x, _ in found.values()]
    seconds = device_seconds(run, steps)
    return {b: (seconds[int(x)] * scale, y) for b, (x, y) in found.items() if int(x) in seconds}


def _line(analysis: Analysis, arm: str, by_run: ByRun, *, points: bool) -> Line | None:
    """Return an arm's line, with the seeds that have not ended if the mean hides them."""
    ended = settled(analysis.runs(arm))
    line = arm_line(analysis.plan.arm(arm).label, by_run, ended, points=points)
    if line is None or line.seeds or not line.low:
        return line
    still = {seed: found for seed, found in by_run.items() if found and seed not in ended}
    rest = tuple((s, kept(x for x, _ in f.values()), kept(y for _, y in f.values())) for s, f in still.items())
    return replace(line, seeds=rest)


def _difference(analysis: Analysis, arm: str, by_arm: Mapping[str, ByRun]) -> Line | None:
    """Return an arm minus the base: mean and 95% t band of the differences, paired by seed if the study is."""
    base = analysis.plan.base
    mine, its = by_arm[arm], by_arm[base]
    ended = settled(analysis.runs(arm)), settled(analysis.runs(base))
    label = analysis.plan.arm(arm).label
    if not analysis.plan.paired:
        return _unpaired(label, _ended(mine, ended[0]), _ended(its, ended[1]))
    pairs = {
        seed: {b: (points[b][0], points[b][1] - its[seed][b][1]) for b in points if b in its[seed]}
        for seed, points in mine.items()
        if seed in its
    }
    return arm_line(label, pairs, ended[0] & ended[1], points=False)


def _ended(by_run: ByRun, ended: frozenset[int]) -> ByRun:
    return {seed: points for seed, points in by_run.items() if seed in ended and points}


def _unpaired(label: str, mine: ByRun, its: ByRun) -> Line | None:
    """Return the difference of two means with Welch's interval at each point; ``None`` unless both have seeds."""
    if not mine or not its:
        return None
    common = sorted(set.intersection(*(set(points) for points in (*mine.values(), *its.values()))))
    both = [[{seed: points[b][1] for seed, points in arm.items()} for arm in (mine, its)] for b in common]
    effects = [contrast([(1.0, a), (-1.0, b)], paired=False) for a, b in both]
    found = [e.estimate for e in effects if e is not None]
    if not found:
        return None
    drawn = found[0].n >= MIN_SEEDS
    return Line(
        arm=label,
        n=found[0].n,
        x=kept(math.fsum(p[b][0] for p in mine.values()) / len(mine) for b in common),
        mean=kept(e.value for e in found),
        low=kept(e.value if e.low is None else e.low for e in found) if drawn else (),
        high=kept(e.value if e.high is None else e.high for e in found) if drawn else (),
    )


# ---- numbers of the report ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ArmScore:
    """An arm with its cells of the report's score tables.

    Attributes:
        arm: key of the arm.
        cells: key of a column to the cell.
    """

    arm: str
    cells: Mapping[str, Cell]


def scored(plan: Plan, model: ReportModel, arms: Sequence[str]) -> tuple[ArmScore, ...]:
    """Return the cells of the arms from the score tables of their designs, as in the report."""
    tables = {t.key: t for t in model.tables}
    found: dict[str, Mapping[str, Cell]] = {}
    for design in dict.fromkeys(r.design for r in plan.rows):
        table = tables.get(f"{design}.score")
        rows = [r for r in plan.rows if r.design == design]
        if table is None or len(table.rows) != len(rows):
            continue
        keys = [c.key for c in table.columns]
        for row, printed in zip(rows, table.rows, strict=True):
            found.setdefault(row.arm, dict(zip(keys, printed.cells, strict=True)))
    return tuple(ArmScore(arm=arm, cells=found.get(arm, {})) for arm in arms)


def ranked(found: Sequence[ArmScore], *, lower: bool) -> tuple[ArmScore, ...]:
    """Return the arms, the best score first; arms without a score last, in their order."""

    def place(entry: ArmScore) -> tuple[bool, float]:
        value = entry.cells["score"].value if "score" in entry.cells else None
        return value is None, 0.0 if value is None else value if lower else -value

    return tuple(sorted(found, key=place))


def effect_forest(plan: Plan, found: Sequence[ArmScore], name: str) -> Forest:
    """Return the differences of the arms to the base, with the intervals of the report."""
    rows = []
    for entry in found:
        cell = entry.cells.get("to_base")
        if cell is None or cell.value is None or entry.arm == plan.base:
            continue
        rows.append(
            Interval(
                label=plan.arm(entry.arm).label,
                value=cell.value,
                low=cell.low,
                high=cell.high,
                n=cell.n or 0,
                separated=cell.verdict == "separated",
                filled=cell.verdict == "separated",
            )
        )
    return Forest(
        key="effects", title=f"difference to {plan.arm(plan.base).label}", x_label=name, intervals=tuple(rows)
    )


# ---- settings -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One path of the recipe in which arms differ: the value of each arm, and whether it differs from the first one."""

    path: str
    values: tuple[tuple[str, bool], ...]


def settings(arms: Sequence[Arm]) -> tuple[Setting, ...]:
    """Return the paths in which the recipes of the arms differ."""
    known: list[Mapping[str, Any]] = [flatten(a.recipe.model_dump(mode="json")) for a in arms]
    paths = sorted({path for values in known for path in values})
    missing = "—"
    found = []
    for path in paths:
        texts = [value_label(values[path]) if path in values else missing for values in known]
        if len(set(texts)) > 1:
            found.append(Setting(path=path, values=tuple((t, t != texts[0]) for t in texts)))
    return tuple(found)


# ---- figures


def compare_figure(panel: Panel, styles: Mapping[str, Style], *, height: int = 250, zero: bool = False) -> Json:
    """Return data and layout of a panel; the y axis covers all its lines.

    Args:
        panel: the panel.
        styles: label of an arm to its style.
        height: height in pixels.
        zero: whether the axis includes and marks 0.
    """
    low, high = y_range(panel, zero=zero)
    figure = arms_figure(panel, styles, height=height)
    figure["layout"] |= {"margin": {"l": 52, "r": 10, "t": 8, "b": 40}}
    figure["layout"]["yaxis"] |= {"range": [low, high], "zeroline": zero}
    figure["layout"]["xaxis"]["autorangeoptions"] = {"include": x_ends(panel)}
    return figure


def alone(panel: Panel, arm: str, base: str) -> Panel:
    """Return the panel with one arm and the base only."""
    return replace(panel, lines=tuple(line for line in panel.lines if line.arm in (arm, base)))
