"""The health page: findings of a run, their onsets and remedies; or the verdicts on all seeds of an arm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlencode

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paribus.errors import RunFolderError
from paribus.health.context import compared, context_of
from paribus.health.finding import RAISED
from paribus.health.own_rules import setting_of
from paribus.health.window import window_size
from paribus.run_folder.folder import SHORT
from paribus.run_folder.series import Columns, Recorded
from paribus.stats.evals import accuracy_standard_error
from paribus.store.models import RunRecord
from paribus.store.remarks import NOTHING
from paribus.store.states import LIVE
from paribus.study.plan import Arm, Plan
from paribus_dashboards.chart_style import Style, arm_styles
from paribus_dashboards.choices import chosen_span
from paribus_dashboards.data.arm_runs import analysis_of
from paribus_dashboards.data.cache import Cache
from paribus_dashboards.data.home import Home, NotFound
from paribus_dashboards.data.pace import pace_of
from paribus_dashboards.data.run_now import RunNow
from paribus_dashboards.data.study_now import StudyNow
from paribus_dashboards.data.verdicts import RunDiagnosis
from paribus_dashboards.format import quoted, spaced
from paribus_dashboards.health.arm_curves import (
    CHARTS,
    MAX_ARMS,
    arm_figure,
    charts,
    metric_of,
    study_panel,
    ticks,
    title_of,
)
from paribus_dashboards.health.figure import panel_figure
from paribus_dashboards.health.matrix import MAX_LISTED, Matrix, Seeds, matrix, sickest
from paribus_dashboards.health.panels import (
    BY_KEY,
    KINDS,
    LEAST,
    SCORE,
    Limit,
    Panel,
    PanelKind,
    curve_of,
    limits_of,
    metrics_of,
    onsets_of,
)
from paribus_dashboards.health.view import HealthView, RunView, verdict_view, view
from paribus_dashboards.paging import Pager, every_page, paged
from paribus_dashboards.web import Page, answer, home_of, render

MAX_SEEDS = 20
"""Most seeds of an arm side by side."""

MAX_EXPORTED = 12
"""Most arms, and most runs with findings, in an export."""

Window: TypeAlias = tuple[int | None, int | None]
"""First and last shown step; ``None``: no bound."""

BRIEF = 8
"""Buckets of the curves that the page describes in words; charts request their own."""


def run_view(home: Home, study: StudyNow, run: RunRecord) -> RunView:
    """Return a run with its verdict."""
    plan = study.record.plan
    now = home.now(run)
    recipe, names = plan.arm(run.arm).recipe, recorded_of(home, run).names
    found = home.verdict(plan, run)
    drawn = {k.key for k in KINDS if metrics_of(k, names, plan.evaluate.primary_metric)}
    return RunView(
        digits=run.fingerprint[:SHORT],
        arm=run.label,
        seed=run.seed,
        state=spaced(run.state),
        live=run.state in LIVE,
        step=now.step,
        steps=recipe.schedule.steps,
        reason=run.reason,
        verdict=verdict_view(found, setting_of(plan.profile, ())[0], drawn, _context(home, study, run, found)),
        pace=pace_of(run, now, recipe.schedule.steps, study.at),
        waits=not run.terminal,
    )


def _context(home: Home, study: StudyNow, run: RunRecord, found: RunDiagnosis) -> str:
    """Return what the other runs of the arm, and of the one it is compared with, add to the first finding."""
    if found.diagnosis is None or found.diagnosis.first is None:
        return ""
    plan = study.record.plan
    arms = compared(plan, run.arm)
    judged = ((r.fingerprint, home.verdict(plan, r).diagnosis) for r in study.runs if r.arm in arms)
    raised = {fingerprint: [f.detector for f in d.raised] for fingerprint, d in judged if d is not None}
    return context_of(plan, run.arm, found.diagnosis.first.detector, raised)


def recorded_of(home: Home, run: RunRecord) -> Recorded:
    """Return the series of a run; empty if they are damaged, which the verdict reports."""
    try:
        return home.series(run)
    except RunFolderError:
        return Columns.of([])


def panel_of(
    home: Home, study: StudyNow, run: RunRecord, kind: PanelKind, shown: Window, *, brief: bool = False
) -> Panel:
    """Return a panel of one run, with limits and onsets.

    Args:
        home: the home folder.
        study: the run's study.
        run: the run.
        kind: what the panel shows.
        shown: first and last step.
        brief: whether few points without errors are enough.
    """
    plan, recorded = study.record.plan, recorded_of(home, run)
    recipe, primary = plan.arm(run.arm).recipe, plan.evaluate.primary_metric
    first, last = within(shown, recorded.span)
    w = window_size(recipe.schedule.steps) if kind.smooth and not brief else 0
    errors = score_errors(home, run, primary) if kind.key == SCORE and not brief else None
    least = BRIEF if brief else LEAST
    curves = tuple(
        curve_of(recorded, m, w=w, first=first, last=last, errors=errors, least=least)
        for m in metrics_of(kind, recorded.names, primary)
    )
    found = home.verdict(plan, run).diagnosis
    return Panel(
        kind=kind,
        curves=curves,
        limits=limits_of(kind, found, setting_of(plan.profile, ())[0], plan.known_recipe(run.arm)) if found else (),
        onsets=onsets_of(kind, found) if found else (),
        last=recorded.span[1] if recorded.span else 0,
    )


def within(shown: Window, span: tuple[int, int] | None) -> Window:
    """Return the window clipped to the recorded steps; more would only make buckets wider."""
    first, last = shown
    low, high = span or (0, 0)
    return None if first is None else max(first, low), None if last is None else min(last, high)


def arm_panel(
    home: Home, study: StudyNow, runs: Sequence[RunRecord], kind: PanelKind, shown: Window, *, brief: bool = False
) -> Panel:
    """Return a panel of the seeds of an arm: the first curve of each seed, and all their onsets."""
    each = [(r, panel_of(home, study, r, kind, shown, brief=brief)) for r in runs]
    lines = [(r, c) for r, p in each for c in [x for x in p.curves if x.draw == "line"][:1]]
    limits = {(x.detector, x.label): x for _, p in each for x in p.limits if x.status in RAISED}
    return Panel(
        kind=kind,
        curves=tuple(replace(c, label=f"seed {r.seed}", raw=None, error=np.empty(0)) for r, c in lines),
        limits=tuple(limits.values()),
        onsets=tuple(
            replace(x, detector=f"{x.detector}, seed {r.seed}") for r, p in each for x in p.onsets if not x.elsewhere
        ),
        last=max((p.last for _, p in each), default=0),
    )


_ERRORS: Cache[tuple[Path, str, int], Mapping[int, float]] = Cache(256)


def score_errors(home: Home, run: RunRecord, primary: str) -> Mapping[int, float]:
    """Return step to the standard error of the score over problems, for steps with recorded counts."""

    def read() -> Mapping[int, float]:
        try:
            found = home.evaluations(run)
        except RunFolderError:
            return {}
        same = (e for e in found if primary == f"eval/{e.set}/avg_at_{e.samples}" and len(e.correct) > 1)
        return {e.step: accuracy_standard_error(e.correct, e.samples) for e in same}

    return _ERRORS.get((home.folder, run.fingerprint, run.token), (primary, home.now(run).step), read)


# ---- routes ------------------------------------------------------------------------------------------

router = APIRouter()


@router.get("/study/{study}/health")
def show(request: Request, study: str) -> Response:
    """Show a run, the seeds of an arm, or a list of all arms."""
    home = home_of(request)
    now = home.study(study)
    query = request.query_params
    if not any(name in query for name in ("run", "arm")):
        shown, pager = paged(now.record.plan.all_arms, arms_per_page(now), page.address(study), query, what="arms")
        return render(request, "health/arms.html", page, study, view=study_health(home, now, shown), pager=pager)
    chosen = _chosen(request, home, now)
    about = home.about_runs(now).get(chosen.runs[0].fingerprint, NOTHING) if chosen.single else NOTHING
    values = {"view": _view(request, home, now), "pager": chosen.pager, "about": about}
    return render(request, "health/page.html", page, study, **values)


@router.get("/study/{study}/health/verdict")
def verdict(request: Request, study: str) -> Response:
    """Show the verdict in one line, for polling; screen readers announce its changes."""
    home = home_of(request)
    found = _view(request, home, home.study(study), panels=False)
    return render(request, "health/verdict.html", None, study, headline=found.headline)


@router.get("/study/{study}/health/now")
def findings(request: Request, study: str) -> Response:
    """Show the findings, for polling."""
    home = home_of(request)
    return render(request, "health/now.html", None, study, view=_view(request, home, home.study(study), panels=False))


@router.get("/data/study/{study}/health/arms/{chart}.json")
def arm_data(request: Request, study: str, chart: str) -> Response:
    """Return a small chart of the page of all arms."""
    home = home_of(request)
    if chart not in CHARTS:
        raise NotFound(f"there is no chart `{chart[:SHORT]}`; charts: {', '.join(CHARTS)}")
    now = home.study(study)
    plan, kind = now.record.plan, BY_KEY[chart]
    keys = tuple(_arm(plan, key).key for key in request.query_params.getlist("arm")[:MAX_ARMS])
    runs = runs_of(home, now, keys)
    metric = metric_of(kind, _recorded(home, runs, keys), plan.evaluate.primary_metric)
    if metric is None:
        raise NotFound(f"no run of these arms has a metric of the chart `{chart}`")
    raw = request.query_params.get("raw") == "yes"
    panel = study_panel(analysis_of(home, now, keys), kind, metric, keys, raw=raw)
    figure = arm_figure(plan, panel, limits_between(home, now, kind, runs), ticks(plan, kind, keys, runs))
    return answer(request, figure)


@router.get("/data/study/{study}/health/{panel}.json")
def data(request: Request, study: str, panel: str) -> Response:
    """Return a panel."""
    home = home_of(request)
    if panel not in BY_KEY:
        raise NotFound(f"there is no panel `{panel[:SHORT]}`; panels: {', '.join(BY_KEY)}")
    now = home.study(study)
    chosen = _chosen(request, home, now)
    first, last = chosen_span(request.query_params)
    shown = None if first is None else math.floor(first), None if last is None else math.ceil(last)
    return answer(request, panel_figure(_panel(home, now, chosen, BY_KEY[panel], shown)))


@dataclass(frozen=True)
class Chosen:
    """The choice in an address: one run, or a page of the runs of an arm by seed."""

    arm: Arm
    runs: tuple[RunRecord, ...]
    single: bool
    pager: Pager | None = None


def _chosen(request: Request, home: Home, study: StudyNow) -> Chosen:
    query, plan = request.query_params, study.record.plan
    if "run" in query:
        run = home.find_run(study, query["run"])
        return Chosen(plan.arm(run.arm), (run,), single=True)
    arm = _arm(plan, query.get("arm", ""))
    runs = sorted((r for r in study.runs if r.arm == arm.key), key=lambda r: r.seed)
    shown, pager = paged(runs, MAX_SEEDS, page.address(plan.study), query, what="seeds")
    return Chosen(arm, tuple(shown), single=False, pager=pager)


def _panel(
    home: Home, study: StudyNow, chosen: Chosen, kind: PanelKind, shown: Window, *, brief: bool = False
) -> Panel:
    if chosen.single:
        return panel_of(home, study, chosen.runs[0], kind, shown, brief=brief)
    return arm_panel(home, study, chosen.runs, kind, shown, brief=brief)


def _arm(plan: Plan, key: str) -> Arm:
    for arm in plan.all_arms:
        if arm.key == key:
            return arm
    raise NotFound(f"`{plan.study}` has no arm with the key `{key[:SHORT]}`")


def _view(request: Request, home: Home, study: StudyNow, *, panels: bool = True) -> HealthView:
    chosen, plan = _chosen(request, home, study), study.record.plan
    made = [_panel(home, study, chosen, k, (None, None), brief=True) for k in KINDS] if panels else []
    return view(
        plan.study,
        chosen.arm,
        [run_view(home, study, r) for r in chosen.runs],
        made,
        names=frozenset().union(*(recorded_of(home, r).names for r in chosen.runs)),
        primary=plan.evaluate.primary_metric,
        base=plan.base,
        single=chosen.single,
        number=request.query_params.get("page", "") if chosen.pager and chosen.pager.before else "",
    )


def arms_per_page(study: StudyNow) -> int:
    """Return how many arms a page lists, so that it has about :data:`MAX_LISTED` runs."""
    arms = len(study.record.plan.all_arms)
    return max(1, MAX_LISTED * arms // max(arms, len(study.runs)))


def runs_of(home: Home, study: StudyNow, arms: Iterable[str]) -> Mapping[str, Seeds]:
    """Return key of an arm to its runs by seed, with their health as judged during training."""
    found: dict[str, list[tuple[RunRecord, RunNow]]] = {key: [] for key in arms}
    for run in sorted(study.runs, key=lambda r: r.seed):
        if run.arm in found:
            found[run.arm].append((run, home.now(run)))
    return found


@dataclass(frozen=True, kw_only=True)
class ArmChart:
    """A small chart of the page of all arms: title, unit, address of its data, and that of values as recorded."""

    key: str
    title: str
    unit: str
    src: str
    raw: str


@dataclass(frozen=True, kw_only=True)
class StudyHealth:
    """The page of all arms: the table, the charts below it, and label and style of the arms that these show.

    Attributes:
        table: the table.
        charts: the charts.
        drawn: label and style of the arms in the charts.
        live: whether more may come: some run has not ended.
    """

    table: Matrix
    live: bool
    charts: tuple[ArmChart, ...]
    drawn: tuple[tuple[str, Style], ...]


def study_health(home: Home, study: StudyNow, arms: Sequence[Arm] | None = None) -> StudyHealth:
    """Return the health of some arms, or of all of them."""
    plan = study.record.plan
    shown = plan.all_arms if arms is None else arms
    runs = runs_of(home, study, (a.key for a in shown))
    drawn = sickest(shown, runs, plan.base, MAX_ARMS)
    names = _recorded(home, runs, drawn)
    query = urlencode([("arm", key) for key in drawn])
    styles = arm_styles(plan)
    here = f"/data/study/{quoted(plan.study)}/health/arms"
    return StudyHealth(
        table=matrix(shown, runs, of=len(study.runs)),
        live=not all(r.terminal for r in study.runs),
        charts=tuple(
            ArmChart(
                key=kind.key,
                title=title_of(kind, metric),
                unit=kind.unit,
                src=f"{here}/{kind.key}.json?{query}",
                raw=f"{here}/{kind.key}.json?{query}&raw=yes" if kind.smooth else "",
            )
            for kind, metric in charts(names, plan.evaluate.primary_metric)
        ),
        drawn=tuple((plan.arm(key).label, styles[key]) for key in drawn),
    )


def _recorded(home: Home, runs: Mapping[str, Seeds], arms: Iterable[str]) -> frozenset[str]:
    """Return the metrics of the first run of each arm that has recorded a step."""
    started = [next((r for r, now in runs[key] if now.step > 0), None) for key in arms]
    return frozenset().union(*(recorded_of(home, r).names for r in started if r is not None))


def limits_between(home: Home, study: StudyNow, kind: PanelKind, runs: Mapping[str, Seeds]) -> tuple[Limit, ...]:
    """Return the limits of those detectors that found something, each from the first run in which it did."""
    plan = study.record.plan
    found: dict[tuple[str, str], Limit] = {}
    for detector in kind.detectors:
        sick = [r for each in runs.values() for r, now in each if any(f.detector == detector for f in now.raised)]
        diagnosis = home.verdict(plan, sick[0]).diagnosis if sick else None
        if diagnosis is not None:
            limits = limits_of(kind, diagnosis, setting_of(plan.profile, ())[0], plan.known_recipe(sick[0].arm))
            found |= {(x.detector, x.label): x for x in limits if x.detector == detector and x.status in RAISED}
    return tuple(found.values())


def exported(home: Home, study: str) -> Iterable[str]:
    """Yield the addresses in an export: the first arms, and the first runs with a finding."""
    now = home.study(study)
    here = page.address(study)
    yield from every_page(here, len(now.record.plan.all_arms), arms_per_page(now))
    yield from (f"{here}?arm={a.key}" for a in now.record.plan.all_arms[:MAX_EXPORTED])
    states, _ = home.states(now)
    bad = [r for r in now.runs if states[r.fingerprint].status in RAISED]
    yield from (f"{here}?run={r.fingerprint[:SHORT]}" for r in bad[:MAX_EXPORTED])


page = Page(key="health", title="Health", place=2, router=router, also=exported)
