"""What the compare page shows: from an address to charts, and from the report to a table. Pure; nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import urlencode

from paribus.health.finding import Lamp
from paribus.report.alt import described, panel_text
from paribus.report.curves import CAPTION, PANELS
from paribus.report.measures import score_measure
from paribus.report.model import Cell, Figure, Matrix, Panel, ReportModel
from paribus.study.plan import Arm, Plan
from paribus.track.folder import SHORT
from paribus.track.metrics import find_metric
from paribus_dashboards.comparison import AXES, Axis, Setting, Show, effect_forest, ranked, scored, settings
from paribus_dashboards.figures.compare import alone
from paribus_dashboards.figures.style import Style, arm_styles
from paribus_dashboards.home import NotThere

FIRST_ARMS, MOST_ARMS = 6, 30
"""Arms that are shown unless others are chosen, and the most that are."""

Seed = tuple[int, str, Lamp, str]
"""Seed, first digits of the run, lamp, worst finding."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the address asks for.

    Attributes:
        arms: keys, in the order of the plan.
        metrics: canonical names.
        x: what is on the x axis.
        show: values, or differences to the base.
        split: whether each arm has a chart of its own.
    """

    arms: tuple[str, ...]
    metrics: tuple[str, ...]
    x: Axis
    show: Show
    split: bool

    def query(self, **more: str) -> str:
        """Return the choice of arms and axis as a query."""
        pairs = [("arm", a) for a in self.arms] + [("x", self.x), ("show", self.show), *more.items()]
        return urlencode(pairs)


def choose(plan: Plan, query: Mapping[str, Sequence[str]], recorded: Sequence[str]) -> Choice:
    """Return what an address asks for, with what it leaves open filled in.

    Args:
        plan: the study's.
        query: name to values.
        recorded: metrics that the chosen arms recorded; others are not shown.

    Raises:
        NotThere: an arm, an axis or a kind of chart is none.
    """
    keys = [a.key for a in plan.arms]
    asked = query.get("arm", ())
    if unknown := [a for a in asked if a not in keys]:
        raise NotThere(f"no arm of `{plan.study}` has the key `{unknown[0][:SHORT]}`")
    arms = tuple(k for k in keys if k in asked) or tuple(keys[:FIRST_ARMS])
    x, show = (query.get("x", ()) or ("step",))[0], (query.get("show", ()) or ("value",))[0]
    if x not in AXES or show not in ("value", "difference"):
        raise NotThere(f"the x axis is one of {', '.join(AXES)}; shown are `value` or `difference`")
    usual = [plan.evaluate.primary_metric, *PANELS]
    wanted = query.get("metric", ()) or usual
    metrics = tuple(m for m in dict.fromkeys(wanted) if m in recorded)
    return Choice(
        arms=arms[:MOST_ARMS], metrics=metrics, x=cast("Axis", x), show=cast("Show", show), split="split" in query
    )


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart: whose it is where each arm has its own, its address, and what it shows in words."""

    arm: str
    src: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MetricView:
    """One metric: its heading, definition, and its charts."""

    title: str
    definition: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, kw_only=True)
class ArmChoice:
    """An arm that can be chosen."""

    key: str
    label: str
    style: Style
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class CompareView:
    """The compare page.

    Attributes:
        arms: all arms.
        metrics: canonical name, label and whether it is chosen, of all that were recorded.
        axes: name, label and whether it is chosen.
        show: ``value`` or ``difference``.
        split: whether each arm has a chart of its own.
        charts: by metric.
        gain: the score less that of the base over training; ``None`` where no arm has one.
        settings: what the chosen arms differ in.
        chosen: labels of the chosen arms.
        base: label of the base.
        caption: how to read the curves.
        query: the chosen arms, for what is asked for beside.
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


def view(
    study: str,
    plan: Plan,
    choice: Choice,
    recorded: Sequence[str],
    panels: Mapping[str, Panel],
    gain: Panel | None = None,
) -> CompareView:
    """Return the page.

    Args:
        study: address of the study's data.
        plan: its plan.
        choice: what is asked for.
        recorded: metrics that can be chosen.
        panels: metric to what its chart shows, for the words.
        gain: what the chart of the score less that of the base shows.
    """
    styles = arm_styles(plan)
    chosen = [plan.arm(k) for k in choice.arms]
    labels = {a.key: a.label for a in plan.arms}
    paired = "paired by seed" if plan.paired else "seeds not paired: Welch's interval"
    difference = f"Difference to `{labels[plan.base]}`, {paired}. " if choice.show == "difference" else ""
    more = f" At most {MOST_ARMS} arms are shown." if len(chosen) == MOST_ARMS else ""
    return CompareView(
        arms=tuple(
            ArmChoice(key=a.key, label=a.label, style=styles[a.key], chosen=a.key in choice.arms) for a in plan.arms
        ),
        metrics=tuple((m, _label(m), m in choice.metrics) for m in recorded),
        axes=tuple((k, "GPU-hours" if k == "gpu_hours" else v, k == choice.x) for k, v in AXES.items()),
        show=choice.show,
        split=choice.split,
        charts=tuple(
            _metric(study, choice, chosen, m, panels[m], plan.base) for m in choice.metrics if panels[m].lines
        ),
        gain=_gain(study, plan, choice, gain) if gain is not None and gain.lines else None,
        settings=settings(chosen),
        chosen=tuple(a.label for a in chosen),
        base=labels[plan.base],
        caption=f"{difference}{CAPTION}Beside a band, seeds that are not done are thin lines.{more}",
        query=choice.query(),
    )


def _gain(study: str, plan: Plan, choice: Choice, panel: Panel) -> Chart:
    query = replace(choice, show="difference").query(metric=plan.evaluate.primary_metric)
    name = f"{panel.title} to {plan.arm(plan.base).label}"
    return Chart(arm=name, src=f"/data{study}/compare/curve.json?{query}", text=panel_text(panel))


def _metric(study: str, choice: Choice, arms: Sequence[Arm], name: str, panel: Panel, base: str) -> MetricView:
    metric = find_metric(name)
    own = [a for a in arms if a.key != base or choice.show == "value"] if choice.split else []
    each: list[tuple[str, Panel, dict[str, str]]] = [
        (a.label, alone(panel, a.label, ""), {"only": a.key}) for a in own
    ] or [("", panel, {})]
    charts = tuple(
        Chart(arm=label, src=f"/data{study}/compare/curve.json?{choice.query(metric=name, **more)}", text=panel_text(p))
        for label, p, more in each
    )
    return MetricView(title=panel.title, definition=metric.definition if metric else "", charts=charts)


def _label(name: str) -> str:
    metric = find_metric(name)
    return metric.label if metric else name


@dataclass(frozen=True, kw_only=True)
class RowView:
    """An arm in the table of effects: its score, its difference to the base, and the lamps of its seeds.

    Attributes:
        key: of the arm.
        label: of the arm.
        style: its colour.
        cells: those of the report.
        lamps: seed, first digits of the run, lamp, worst finding.
    """

    key: str
    label: str
    style: Style
    cells: Mapping[str, Cell]
    lamps: tuple[Seed, ...]


@dataclass(frozen=True, kw_only=True)
class EffectsView:
    """What the report has found of the chosen arms.

    Attributes:
        score: label of the score, with its unit.
        note: what the score is.
        rows: arms, the best first.
        forest: what the chart of the differences shows; empty without one.
        src: its address.
        matrices: tricks against tricks, with how to read them.
        status: how far the study is.
    """

    score: str
    note: str
    rows: tuple[RowView, ...]
    forest: str
    src: str
    matrices: tuple[tuple[str, Matrix], ...]
    status: str


def effects_view(
    study: str, plan: Plan, model: ReportModel, choice: Choice, lamps: Mapping[str, Sequence[Seed]]
) -> EffectsView:
    """Return what the report has found of the chosen arms; nothing is computed here.

    Args:
        study: address of the study's data.
        plan: its plan.
        model: its report.
        choice: what is asked for.
        lamps: key of an arm to seed, run, lamp and worst finding.
    """
    styles, measure = arm_styles(plan), score_measure(plan.evaluate)
    found = ranked(scored(plan, model, choice.arms), lower=measure.better == "lower")
    rows = tuple(
        RowView(
            key=entry.arm,
            label=plan.arm(entry.arm).label,
            style=styles[entry.arm],
            cells=entry.cells,
            lamps=tuple(lamps.get(entry.arm, ())),
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
    """Return what is on the axis of differences in the score."""
    measure = score_measure(plan.evaluate)
    return f"Δ {measure.label} ({measure.unit})" if measure.unit else f"Δ {measure.label}"
