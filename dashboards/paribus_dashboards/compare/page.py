"""The compare page: arms over steps, tokens or device time, their effects, and the settings in which they differ."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paribus.errors import RunFolderError
from paribus.report.analysis.measures import score_measure
from paribus.report.figures.curves import PANELS
from paribus.report.model import Panel, panel_text
from paribus.report.render.plotly import forest_figure
from paribus.run_folder.folder import SHORT
from paribus.run_folder.metrics import STEP_METRICS, find_metric
from paribus_dashboards.chart_style import arm_styles
from paribus_dashboards.choices import chosen_span
from paribus_dashboards.compare.curves import (
    LEAST,
    ChartSpec,
    alone,
    compare_figure,
    compared,
    effect_forest,
    ranked,
    scored,
    untold,
)
from paribus_dashboards.compare.view import (
    FIRST_ARMS,
    Choice,
    EffectsView,
    Seed,
    choose,
    effects_view,
    score_label,
    view,
)
from paribus_dashboards.data.arm_runs import analysis_of
from paribus_dashboards.data.cache import Cache
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import Report
from paribus_dashboards.data.study_now import StudyNow
from paribus_dashboards.format import quoted, spaced
from paribus_dashboards.paging import paged
from paribus_dashboards.web import Page, answer, home_of, render

if TYPE_CHECKING:
    pass

MAX_DESCRIBED = 100
"""Most runs that a page reads to describe its charts in words; with more, the description comes with the chart."""

MAX_LISTED, MAX_SEEDS = 60, 20
"""Arms that a page offers, and seeds of an arm whose health it lists."""

BRIEF = 8
"""Points of the curves that the page describes in words; charts request their own."""


# ---- from the home folder -----------------------------------------------------------------------------


_PANELS: Cache[Hashable, Mapping[str, Panel]] = Cache(64)


def panel_of(home: Home, study: StudyNow, spec: ChartSpec, least: int = LEAST) -> Panel:
    """Return the panel of a chart, cached until one of its runs records more.

    The panels of the metrics that the page shows without a choice are made together.
    """
    usual = (study.record.plan.evaluate.primary_metric, *PANELS)
    single = spec.metric not in usual or (
        spec.show == "difference" and spec.metric == usual[0]
    )  # a chart of every page
    return panels_of(home, study, spec, (spec.metric,) if single else usual, least)[spec.metric]


def panels_of(
    home: Home, study: StudyNow, spec: ChartSpec, metrics: Sequence[str], least: int = LEAST
) -> Mapping[str, Panel]:
    """Return the panels of several metrics; each run is opened once for all of them."""
    arms = {*spec.arms, study.record.plan.base}
    stamp = tuple((r.fingerprint, r.token, r.state, home.now(r).step) for r in study.runs if r.arm in arms)

    def make() -> Mapping[str, Panel]:
        analysis = analysis_of(home, study, arms)
        return {m: compared(analysis, replace(spec, metric=m), least) for m in metrics}

    return _PANELS.get((home.folder, study.record.id, replace(spec, metric=""), tuple(metrics), least), stamp, make)


def recorded_names(home: Home, study: StudyNow, arms: Iterable[str]) -> tuple[str, ...]:
    """Return the recorded metrics of the arms: the report's first, then all others in the order of the schema."""
    found: set[str] = set()
    for arm in arms:
        started = next((r for r in study.runs if r.arm == arm and home.now(r).step > 0), None)
        with suppress(RunFolderError):
            found |= home.series(started).names if started else frozenset()
    usual = [study.record.plan.evaluate.primary_metric, *PANELS]
    known = [m.name for m in STEP_METRICS] + sorted(n for n in found if n.startswith("eval/") and find_metric(n))
    return tuple(n for n in dict.fromkeys([*usual, *known]) if n in found)


# ---- routes -------------------------------------------------------------------------------------------

router = APIRouter()


@router.get("/study/{study}/compare")
def show(request: Request, study: str) -> Response:
    """Show the chosen arms."""
    home = home_of(request)
    now = home.study(study)
    plan, query = now.record.plan, _query(request)
    listed, pager = paged(plan.arms, MAX_LISTED, page.address(study), request.query_params, what="arms")
    if "arm" not in query and pager.before:
        query["arm"] = list(dict.fromkeys([plan.base, *(a.key for a in listed)]))[:FIRST_ARMS]
    arms = choose(plan, query, ()).arms
    names = recorded_names(home, now, arms)
    choice = choose(plan, query, names)
    score = plan.evaluate.primary_metric
    runs = sum(r.arm in choice.arms for r in now.runs)
    described = runs <= MAX_DESCRIBED
    gain = None
    if described:
        panels = dict(panels_of(home, now, _spec(choice, ""), choice.metrics, BRIEF)) if choice.metrics else {}
        if score in names:
            gain = panel_of(home, now, replace(_spec(choice, score), show="difference"), BRIEF)
    else:
        panels = {m: untold(plan, _spec(choice, m)) for m in choice.metrics}
        gain = untold(plan, replace(_spec(choice, score), show="difference")) if score in names else None
    live = not all(r.terminal for r in now.runs if r.arm in choice.arms)
    shown = view(_address(now), plan, choice, names, panels, gain, listed=listed, described=described, live=live)
    found, report = _effects(home, now, choice)
    return render(request, "compare/page.html", page, study, view=shown, effects=found, report=report, pager=pager)


@router.get("/study/{study}/compare/effects")
def effects(request: Request, study: str) -> Response:
    """Show the effects of the chosen arms, for polling."""
    home = home_of(request)
    now = home.study(study)
    found, report = _effects(home, now, choose(now.record.plan, _query(request), ()))
    return render(request, "compare/effects.html", None, study, effects=found, report=report)


def _effects(home: Home, study: StudyNow, choice: Choice) -> tuple[EffectsView | None, Report]:
    """Return the effects from the newest report, without waiting for one."""
    report = home.report(study, wait_s=0.0)
    if not report.built:
        return None, report
    statuses: dict[str, list[Seed]] = {}
    for run in sorted((r for r in study.runs if r.arm in choice.arms), key=lambda r: r.seed):
        if len(statuses.get(run.arm, ())) >= MAX_SEEDS:
            continue
        now = home.now(run)
        statuses.setdefault(run.arm, []).append((run.seed, run.fingerprint[:SHORT], now.status, spaced(now.detector)))
    plan = study.record.plan
    return effects_view(_address(study), plan, report.built.model, choice, statuses), report


def _address(study: StudyNow) -> str:
    return f"/study/{quoted(study.record.name)}"


@router.get("/data/study/{study}/compare/curve.json")
def curve(request: Request, study: str, metric: str) -> Response:
    """Return the chart of a metric, or one arm of it."""
    home = home_of(request)
    now = home.study(study)
    plan, query = now.record.plan, _query(request)
    choice = choose(plan, query, [metric])
    spec = replace(_spec(choice, metric), raw=request.query_params.get("raw") == "yes")
    panel = panel_of(home, now, part(spec, *chosen_span(request.query_params)))
    by_key = arm_styles(plan)
    styles = {a.label: by_key[a.key] for a in plan.arms}
    differs = choice.show == "difference"
    figure = compare_figure(panel, styles, zero=differs)
    if only := query.get("only"):
        one = [a.label for a in plan.arms if a.key == only[0]]
        base = plan.arm(plan.base).label
        figure["data"] = compare_figure(alone(panel, one[0] if one else "", base), styles, zero=differs)["data"]
    if sum(r.arm in choice.arms for r in now.runs) > MAX_DESCRIBED:
        figure["text"] = panel_text(panel)  # the page does not have it: it would have to read all these runs
    return answer(request, figure)


@router.get("/data/study/{study}/compare/effects.json")
def forest(request: Request, study: str) -> Response:
    """Return the chart of the differences to the base."""
    home = home_of(request)
    now = home.study(study)
    plan, report = now.record.plan, home.report(now, wait_s=0.0)
    if not report.built:
        return answer(request, {"data": [], "layout": {}})
    measure = score_measure(plan.evaluate)
    chosen = choose(plan, _query(request), ()).arms
    found = ranked(scored(plan, report.built.model, chosen), lower=measure.better == "lower")
    return answer(request, forest_figure(effect_forest(plan, found, score_label(plan))))


def part(spec: ChartSpec, first: float | None, last: float | None) -> ChartSpec:
    """Return the chart of a part of the x axis. On other axes than steps, the whole chart has all points already."""
    if spec.x != "step" or first is None or last is None:
        return spec
    return replace(spec, first=math.floor(first), last=math.ceil(last))


def _query(request: Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        found.setdefault(name, []).append(value)
    return found


def _spec(choice: Choice, metric: str) -> ChartSpec:
    return ChartSpec(metric=metric, arms=choice.arms, x=choice.x, show=choice.show)


page = Page(key="compare", title="Compare", place=3, router=router)
