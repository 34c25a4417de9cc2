"""The small charts below the matrix: one metric each, a line with a band for each arm, limits and onsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paribus.health.finding import RAISED, Status
from paribus.health.window import window_size
from paribus.report.analysis.analysis import Analysis
from paribus.report.figures.curves import Grid, arm_line, settled
from paribus.report.model import Panel, panel_text
from paribus.study.plan import Plan
from paribus.text import plural
from paribus_dashboards.arm_chart import SHARES, arms_figure, is_share, within_shares
from paribus_dashboards.chart_style import Json, arm_styles, x_ends, y_range
from paribus_dashboards.format import STATUSES, spaced
from paribus_dashboards.health.figure import STATUS_COLOURS, limit_line
from paribus_dashboards.health.matrix import Seeds
from paribus_dashboards.health.panels import BY_KEY, Limit, Metric, PanelKind, metrics_of
from paribus_dashboards.smoothing import smoothed

CHARTS = ("score", "reward", "entropy", "length", "truncation", "clip", "kl")
"""Panels of the page of a run of which the first recorded metric is drawn."""

MAX_ARMS = 7
"""Most arms of a chart: more bands hide each other."""

LEAST = 100
"""Fewest buckets of a curve that has more points."""

_TICKS = 12
_HEIGHT = 150


@dataclass(frozen=True, kw_only=True)
class Tick:
    """The first onset of a detector in the seeds of an arm."""

    step: int
    status: Status
    text: str


def metric_of(kind: PanelKind, names: frozenset[str], primary: str) -> Metric | None:
    """Return the metric that the small chart of a panel draws: the first that was recorded; ``None`` if none was.

    The KL chart is that to the reference alone.
    """
    found = next(iter(metrics_of(kind, names, primary)), None)
    other_kl = kind.key == "kl" and found is not None and found.name != kind.metrics[0].name
    return None if other_kl else found


def title_of(kind: PanelKind, metric: Metric) -> str:
    """Return the title of a chart, with the metric if that is not the first of the panel."""
    first = kind.metrics[0].name in ("", metric.name)
    return kind.title if first else f"{kind.title}: {metric.label}"


def charts(names: frozenset[str], primary: str) -> Iterator[tuple[PanelKind, Metric]]:
    """Yield the charts whose metric was recorded."""
    for key in CHARTS:
        kind = BY_KEY[key]
        metric = metric_of(kind, names, primary)
        if metric is not None:
            yield kind, metric


def study_panel(
    analysis: Analysis, kind: PanelKind, metric: Metric, arms: Sequence[str], *, raw: bool = False
) -> Panel:
    """Return one line for each arm: the mean over the seeds that have ended with its 95% t band.

    Args:
        analysis: the runs.
        kind: the panel of the page of a run.
        metric: the metric.
        arms: keys of the arms.
        raw: whether values are as recorded; else each seed is its running median. Scores always are as recorded.
    """
    last = max((r.last_step for arm in arms for r in analysis.runs(arm)), default=0)
    grid = Grid(last, LEAST)
    lines = []
    for arm in arms:
        runs = analysis.runs(arm)
        own = analysis.plan.arm(arm)
        w = 1 if raw or not kind.smooth else max(1, round(window_size(own.recipe.schedule.steps) / grid.width))
        curves = {r.seed: smoothed(grid.points(r, metric.name), w) for r in runs}
        line = arm_line(own.label, curves, settled(runs), points=False)
        lines += [line] if line is not None else []
    shares = kind.unit in SHARES or is_share(metric.name)
    return Panel(
        key=kind.key,
        title=title_of(kind, metric),
        x_label="training steps",
        y_label=kind.unit,
        lines=tuple(within_shares(line) if shares else line for line in lines),
    )


def ticks(plan: Plan, kind: PanelKind, arms: Sequence[str], runs: Mapping[str, Seeds]) -> tuple[Tick, ...]:
    """Return the onsets that a chart marks, the worst first: one for each arm and detector."""
    found = []
    for arm in arms:
        raised = [f for _, now in runs[arm] for f in now.raised if f.detector in kind.detectors]
        for name in dict.fromkeys(f.detector for f in raised):
            own = [f for f in raised if f.detector == name]
            steps = [f.onset for f in own if f.onset is not None]
            if not steps:
                continue
            status = next(s for s in RAISED if any(f.status == s for f in own))
            sick = f"{len(own)} of {plural(len(runs[arm]), 'seed')}"
            text = f"{plan.arm(arm).label}: {spaced(name)} in {sick}, from step {min(steps)}"
            found.append(Tick(step=min(steps), status=status, text=text))
    return tuple(sorted(found, key=lambda t: (RAISED.index(t.status), t.step)))[:_TICKS]


def arm_figure(plan: Plan, panel: Panel, limits: Sequence[Limit], marks: Sequence[Tick]) -> Json:
    """Return data and layout of a chart; limits that are far from its curves are left out."""
    by_key = arm_styles(plan)
    figure = arms_figure(panel, {a.label: by_key[a.key] for a in plan.all_arms}, height=_HEIGHT)
    low, high = y_range(panel)
    near = [x for x in limits if low - (high - low) / 3 <= x.value <= high + (high - low) / 3]
    low, high = min([low, *(x.value for x in near)]), max([high, *(x.value for x in near)])
    layout = figure["layout"]
    layout |= {"margin": {"l": 44, "r": 8, "t": 14, "b": 22}}
    layout["xaxis"] |= {"title": {"text": ""}, "autorangeoptions": {"include": x_ends(panel)}}
    layout["yaxis"] |= {"title": {"text": ""}, "range": [low, high], "nticks": 4}
    layout["shapes"] = [limit_line(x) for x in near]
    layout["annotations"] = [
        {
            "x": t.step,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "text": STATUSES[t.status][0],
            "hovertext": t.text.replace("<", "&lt;"),
            "showarrow": False,
            "font": {"size": 10, "color": STATUS_COLOURS[t.status]},
        }
        for t in marks
    ]
    said = [panel_text(panel), *(t.text for t in marks)]
    return figure | {"text": ". ".join(x.rstrip(".") for x in said) + "."}
