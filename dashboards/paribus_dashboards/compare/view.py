"""The view of the compare page: charts for the choices in an address, and a table from the report. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import urlencode

from paribus.health.finding import Status
from paribus.health.window import window_size
from paribus.report.analysis.measures import score_measure
from paribus.report.figures.curves import CAPTION, PANELS
from paribus.report.model import Cell, Figure, Matrix, Panel, ReportModel, described, panel_text
from paribus.run_folder.folder import SHORT
from paribus.run_folder.metrics import find_metric
from paribus.study.plan import Arm, Plan
from paribus_dashboards.chart_style import Style, arm_styles
from paribus_dashboards.compare.curves import AXES, Axis, Setting, Show, alone, effect_forest, ranked, scored, settings
from paribus_dashboards.data.home import NotFound

UNENDED = "Next to a band, thin lines are seeds that have not ended. "

FIRST_ARMS, MAX_ARMS = 6, 30
"""Arms that the page shows without a choice, and the most that it shows."""

Seed = tuple[int, str, Status, str]
"""Seed, first digits of the run, health status, detector of the worst finding."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choices in an address.

    Attributes:
        arms: keys, in the order of the plan.
        metrics: canonical names.
        x: the x axis.
        show: values, or differences to the base.
        split: whether each arm has its own chart.
    """

    arms: tuple[str, ...]
    metrics: tuple[str, ...]
    x: Axis
    show: Show
    split: bool

    def query(self, **more: str) -> str:
        """Return the choice of arms and axis as a query string."""
        pairs = [("arm", a) for a in self.arms] + [("x", self.x), ("show", self.show), *more.items()]
        return urlencode(pairs)


def choose(plan: Plan, query: Mapping[str, Sequence[str]], recorded: Sequence[str]) -> Choice:
    """Return the choices in an address, with defaults for the rest.

    Args:
        plan: the study's plan.
        query: name of a parameter to its values.
        recorded: metrics that the chosen arms recorded; others are not shown.

    Raises:
        NotFound: there is no such arm, axis or kind of chart.
    """
    keys = [a.key for a in plan.arms]
    asked = query.get("arm", ())
    if unknown := [a for a in asked if a not in keys]:
        raise NotFound(f"`{plan.study}` has no arm with the key `{unknown[0][:SHORT]}`")
    arms = tuple(k for k in keys if k in asked) or tuple(keys[:FIRST_ARMS])
    x, show = (query.get("x", ()) or ("step",))[0], (query.get("show", ()) or ("value",))[0]
    if x not in AXES or show not in ("value", "difference"):
        raise NotFound(f"`x` must be one of {', '.join(AXES)}, and `show` must be `value` or `difference`")
    usual = [plan.evaluate.primary_metric, *PANELS]
    wanted = query.get("metric", ()) or usual
    metrics = tuple(m for m in dict.fromkeys(wanted) if m in recorded)
    return Choice(
        arms=arms[:MAX_ARMS], metrics=metrics, x=cast("Axis", x), show=cast("Show", show), split="split" in query
    )


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        arm: its arm if each arm has its own chart.
        src: address of its data.
        text: a description.
        raw: address of its data as recorded; empty if these are not smoothed.
    """

    arm: str
    src: str
    text: str
    raw: str = ""


@dataclass(frozen=True, kw_only=True)
class MetricView:
    """One metric: its title, definition and charts."""

    title: str
    definition: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, kw_only=True)
class ArmChoice:
    """An arm in the list of choices."""

    key: str
    label: str
    style: Style
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class CompareView:
    """The compare page.

    Attributes:
        arms: all arms.
        metrics: canonical name, label, and whether it is chosen, of all recorded metrics.
        axes: name, label, and whether it is chosen.
        show: ``value`` or ``difference``.
        split: whether each arm has its own chart.
        charts: charts by metric.
        gain: chart of the score minus the base's score over training; ``None`` if no arm has both.
        settings: paths in which the chosen arms differ.
        chosen: labels of the chosen arms.
        base: label of the base.
        caption: how to read the curves.
        query: the choices as a query string, for polled parts.
        drawn: label and style of the arms in the charts.
        live: whether more may be recorded: some run has not ended.
    """

    arms: tuple[ArmChoice, ...]
    metrics: tuple[tuple[str, str, bool], ...]
    axes: tuple[tuple[str, str, bool], ...]
    show: Show
    split: bool
    charts: tuple[MetricView, ...]
    gain: Chart | None
    settings: tuple[Setting, ...]
    chosen: tuple[str, ...]
    base: str
    caption: str
    query: str
    drawn: tuple[tuple[str, Style], ...]
    live: bool


def view(
    study: str,
    plan: Plan,
    choice: Choice,
    recorded: Sequence[str],
    panels: Mapping[str, Panel],
    gain: Panel | None = None,
    *,
    listed: Sequence[Arm] | None = None,
    described: bool = True,
    live: bool = False,
) -> CompareView:
    """Return the page.

    Args:
        study: address of the study.
        plan: its plan.
        choice: the choices in the address.
        recorded: metrics that can be chosen.
        panels: metric to its panel, for the descriptions.
        gain: panel of the score minus the base's score.
        listed: arms that can be chosen, besides the chosen ones; all without it.
        described: whether the panels have their lines; without them, the description comes with the chart.
        live: whether more may be recorded.
    """
    offered = {a.key for a in (plan.arms if listed is None else listed)} | {*choice.arms}
    styles = arm_styles(plan)
    chosen = [plan.arm(k) for k in choice.arms]
    labels = {a.key: a.label for a in plan.arms}
    paired = "paired by seed" if plan.paired else "seeds not paired, Welch's interval"
    difference = f"Difference to `{labels[plan.base]}`, {paired}. " if choice.show == "difference" else ""
    more = f" The page shows at most {MAX_ARMS} arms." if len(chosen) == MAX_ARMS else ""
    return CompareView(
        arms=tuple(
            ArmChoice(key=a.key, label=a.label, style=styles[a.key], chosen=a.key in choice.arms)
            for a in plan.arms
            if a.key in offered
        ),
        metrics=tuple((m, _label(m), m in choice.metrics) for m in recorded),
        axes=tuple((k, "GPU-hours" if k == "gpu_hours" else v, k == choice.x) for k, v in AXES.items()),
        show=choice.show,
        split=choice.split,
        charts=tuple(
            _metric(study, choice, chosen, m, panels[m], plan.base)
            for m in choice.metrics
            if panels[m].lines or not described
        ),
        gain=_gain(study, plan, choice, gain) if gain is not None and (gain.lines or not described) else None,
        settings=settings(chosen),
        chosen=tuple(a.label for a in chosen),
        base=labels[plan.base],
        caption=f"{difference}{CAPTION}{UNENDED}{_smoothing(chosen)}{more}",
        query=choice.query(),
        drawn=tuple((a.label, styles[a.key]) for a in chosen if a.key != plan.base or choice.show == "value"),
        live=live,
    )


def _smoothing(arms: Sequence[Arm]) -> str:
    steps = sorted({window_size(a.recipe.schedule.steps) for a in arms})
    over = " to ".join(dict.fromkeys(map(str, (steps[0], steps[-1]))))
    return f"Each seed is a running median over {over} steps, as the detectors use it; scores are as recorded."


def _gain(study: str, plan: Plan, choice: Choice, panel: Panel) -> Chart:
    query = replace(choice, show="difference").query(metric=plan.evaluate.primary_metric)
    name = f"{panel.title} to {plan.arm(plan.base).label}"
    return Chart(arm=name, src=f"/data{study}/compare/curve.json?{query}", text=_text(panel))


def _metric(study: str, choice: Choice, arms: Sequence[Arm], name: str, panel: Panel, base: str) -> MetricView:
    metric = find_metric(name)
    own = [a for a in arms if a.key != base or choice.show == "value"] if choice.split else []
    each: list[tuple[str, Panel, dict[str, str]]] = [
        (a.label, alone(panel, a.label, ""), {"only": a.key}) for a in own
    ] or [("", panel, {})]
    curve = f"/data{study}/compare/curve.json"
    smooth = not name.startswith("eval/")
    charts = tuple(
        Chart(
            arm=label,
            src=f"{curve}?{choice.query(metric=name, **more)}",
            text=_text(p),
            raw=f"{curve}?{choice.query(metric=name, **more, raw='yes')}" if smooth else "",
        )
        for label, p, more in each
    )
    return MetricView(title=panel.title, definition=metric.definition if metric else "", charts=charts)


def _text(panel: Panel) -> str:
    return panel_text(panel) if panel.lines else f"{panel.title} over {panel.x_label}, one line per arm."


def _label(name: str) -> str:
    metric = find_metric(name)
    return metric.label if metric else name


@dataclass(frozen=True, kw_only=True)
class RowView:
    """An arm in the table of effects: its score, its difference to the base, and the health of its seeds.

    Attributes:
        key: key of the arm.
        label: label of the arm.
        style: style of its line.
        cells: cells of the report.
        statuses: seed, first digits of the run, health status, detector of the worst finding.
    """

    key: str
    label: str
    style: Style
    cells: Mapping[str, Cell]
    statuses: tuple[Seed, ...]


@dataclass(frozen=True, kw_only=True)
class EffectsView:
    """The report's effects of the chosen arms.

    Attributes:
        score: label of the score, with its unit.
        note: definition of the score.
        rows: arms, the best first.
        forest: description of the chart of the differences; empty without a difference.
        src: address of its data.
        matrices: caption and matrix of tricks against tricks.
        status: progress of the study, as the report states it.
    """

    score: str
    note: str
    rows: tuple[RowView, ...]
    forest: str
    src: str
    matrices: tuple[tuple[str, Matrix], ...]
    status: str


def effects_view(
    study: str, plan: Plan, model: ReportModel, choice: Choice, statuses: Mapping[str, Sequence[Seed]]
) -> EffectsView:
    """Return the report's effects of the chosen arms; nothing is computed here.

    Args:
        study: address of the study.
        plan: its plan.
        model: its report.
        choice: the choices in the address.
        statuses: key of an arm to the health of its seeds.
    """
    styles, measure = arm_styles(plan), score_measure(plan.evaluate)
    found = ranked(scored(plan, model, choice.arms), lower=measure.better == "lower")
    rows = tuple(
        RowView(
            key=entry.arm,
            label=plan.arm(entry.arm).label,
            style=styles[entry.arm],
            cells=entry.cells,
            statuses=tuple(statuses.get(entry.arm, ())),
        )
        for entry in found
    )
    forest = described(Figure(key="", title="", caption="", forests=(effect_forest(plan, found, score_label(plan)),)))
    drawn = forest.forests[0]
    return EffectsView(
        score=f"{measure.label} ({measure.unit})" if measure.unit else measure.label,
        note=measure.note,
        rows=rows,
        forest=drawn.alt if drawn.intervals else "",
        src=f"/data{study}/compare/effects.json?{choice.query()}",
        matrices=tuple((f.caption, m) for f in model.figures for m in f.matrices),
        status=model.status,
    )


def score_label(plan: Plan) -> str:
    """Return the label of the axis of score differences."""
    measure = score_measure(plan.evaluate)
    return f"Δ {measure.label} ({measure.unit})" if measure.unit else f"Δ {measure.label}"
