"""The health page: what is wrong with a run, since when, and what to try; or the verdicts on all seeds of an arm."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paribus.errors import RunFolderError
from paribus.health.finding import RAISED, Lamp
from paribus.health.profile import load_profile
from paribus.health.view import window
from paribus.stats.evals import accuracy_standard_error
from paribus.store.records import RunRecord
from paribus.store.states import LIVE
from paribus.study.home import home as default_home
from paribus.study.plan import Arm, Plan
from paribus.track.folder import SHORT
from paribus.track.series import Columns, Recorded
from paribus_dashboards.cache import Kept
from paribus_dashboards.choices import chosen_span
from paribus_dashboards.figures.health import panel_figure
from paribus_dashboards.health_view import HealthView, RunView, verdict_view, view
from paribus_dashboards.home import Home, NotThere
from paribus_dashboards.panels import (
    BY_KEY,
    KINDS,
    LEAST,
    SCORE,
    Kind,
    Panel,
    curve_of,
    limits_of,
    metrics_of,
    onsets_of,
)
from paribus_dashboards.study_now import StudyNow
from paribus_dashboards.web import Page, answer, home_of, render

EXPORTED = 12
"""Arms, and runs with findings, that an export shows."""

Window: TypeAlias = tuple[int | None, int | None]
"""First and last step that are shown; ``None``: no bound."""

BRIEF = 8
"""Buckets of the curves that a page puts into words; the charts ask for their own."""


def run_view(home: Home, study: StudyNow, run: RunRecord) -> RunView:
    """Return a run with its verdict."""
    plan = study.record.plan
    now = home.now(run)
    judged = home.verdict(plan, run)
    recipe, names = plan.arm(run.arm).recipe, recorded_of(home, run).names
    drawn = {k.key for k in KINDS if metrics_of(k, names, plan.evaluate.primary_metric)}
    return RunView(
        digits=run.fingerprint[:SHORT],
        arm=run.label,
        seed=run.seed,
        state=run.state.lower().replace("_", " "),
        live=run.state in LIVE,
        step=now.step,
        steps=recipe.schedule.steps,
        reason=run.reason,
        verdict=verdict_view(judged, load_profile(plan.profile), recipe, drawn),
    )


def recorded_of(home: Home, run: RunRecord) -> Recorded:
    """Return what a run has recorded; nothing where that is damaged, which the verdict tells."""
    try:
        return home.series(run)
    except RunFolderError:
        return Columns.of([])


def panel_of(home: Home, study: StudyNow, run: RunRecord, kind: Kind, shown: Window, *, brief: bool = False) -> Panel:
    """Return a panel of one run, with limits and onsets.

    Args:
        home: the home folder.
        study: the run's study.
        run: the run.
        kind: what the panel shows.
        shown: first and last step; ``None``: no bound.
        brief: whether its ends are enough.
    """
    plan, recorded = study.record.plan, recorded_of(home, run)
    recipe, primary = plan.arm(run.arm).recipe, plan.evaluate.primary_metric
    first, last = within(shown, recorded.span)
    w = window(recipe.schedule.steps) if kind.smooth and not brief else 0
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
        limits=limits_of(kind, found, load_profile(plan.profile), recipe) if found else (),
        onsets=onsets_of(kind, found) if found else (),
        last=recorded.span[1] if recorded.span else 0,
    )


def within(shown: Window, span: tuple[int, int] | None) -> Window:
    """Return the window without what lies beyond the recorded steps, which would only make buckets wider."""
    first, last = shown
    low, high = span or (0, 0)
    return None if first is None else max(first, low), None if last is None else min(last, high)


def arm_panel(
    home: Home, study: StudyNow, runs: Sequence[RunRecord], kind: Kind, shown: Window, *, brief: bool = False
) -> Panel:
    """Return a panel of the seeds of an arm: its first line, one a seed, and all their onsets."""
    each = [(r, panel_of(home, study, r, kind, shown, brief=brief)) for r in runs]
    lines = [(r, c) for r, p in each for c in [x for x in p.curves if x.draw == "line"][:1]]
    limits = {(x.detector, x.label): x for _, p in each for x in p.limits if x.lamp in RAISED}
    return Panel(
        kind=kind,
        curves=tuple(replace(c, label=f"seed {r.seed}", raw=None, error=np.empty(0)) for r, c in lines),
        limits=tuple(limits.values()),
        onsets=tuple(
            replace(x, detector=f"{x.detector}, seed {r.seed}") for r, p in each for x in p.onsets if not x.elsewhere
        ),
        last=max((p.last for _, p in each), default=0),
    )


_ERRORS: Kept[tuple[Path, str, int], Mapping[int, float]] = Kept(256)


def score_errors(home: Home, run: RunRecord, primary: str) -> Mapping[int, float]:
    """Return step to the standard error of the score over its problems, where counts were recorded."""

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
    """Show a run, the seeds of an arm, or all arms to choose from."""
    home = home_of(request)
    now = home.study(study)
    if not any(name in request.query_params for name in ("run", "arm")):
        return render(request, "health_arms.html", page, study, arms=arms_view(home, now))
    return render(request, "health.html", page, study, view=_view(request, home, now))


@router.get("/study/{study}/health/verdict")
def top(request: Request, study: str) -> Response:
    """Show the verdict in one line, for polling: it changes when the verdict does, and is then read aloud."""
    home = home_of(request)
    found = _view(request, home, home.study(study), panels=False)
    return render(request, "health_verdict.html", None, study, view=found.top)


@router.get("/study/{study}/health/now")
def verdicts(request: Request, study: str) -> Response:
    """Show what was found, for polling."""
    home = home_of(request)
    return render(request, "health_now.html", None, study, view=_view(request, home, home.study(study), panels=False))


@router.get("/data/study/{study}/health/{panel}.json")
def data(request: Request, study: str, panel: str) -> Response:
    """Answer with a panel."""
    home = home_of(request)
    if panel not in BY_KEY:
        raise NotThere(f"there is no panel `{panel[:SHORT]}`; panels: {', '.join(BY_KEY)}")
    now = home.study(study)
    chosen = _chosen(request, home, now)
    first, last = chosen_span(request.query_params)
    shown = None if first is None else math.floor(first), None if last is None else math.ceil(last)
    return answer(request, panel_figure(_panel(home, now, chosen, BY_KEY[panel], shown)))


@dataclass(frozen=True)
class Chosen:
    """What an address names: one run, or the runs of an arm by seed."""

    arm: Arm
    runs: tuple[RunRecord, ...]
    single: bool


def _chosen(request: Request, home: Home, study: StudyNow) -> Chosen:
    query, plan = request.query_params, study.record.plan
    if "run" in query:
        run = home.find_run(study, query["run"])
        return Chosen(plan.arm(run.arm), (run,), single=True)
    arm = _arm(plan, query.get("arm", ""))
    runs = sorted((r for r in study.runs if r.arm == arm.key), key=lambda r: r.seed)
    return Chosen(arm, tuple(runs), single=False)


def _panel(home: Home, study: StudyNow, chosen: Chosen, kind: Kind, shown: Window, *, brief: bool = False) -> Panel:
    if chosen.single:
        return panel_of(home, study, chosen.runs[0], kind, shown, brief=brief)
    return arm_panel(home, study, chosen.runs, kind, shown, brief=brief)


def _arm(plan: Plan, key: str) -> Arm:
    for arm in plan.all_arms:
        if arm.key == key:
            return arm
    raise NotThere(f"no arm of `{plan.study}` has the key `{key[:SHORT]}`")


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
        single=chosen.single,
        options=_options(home, plan),
    )


def _options(home: Home, plan: Plan) -> str:
    """Return what a command on a run of this study must say, where it is not what it takes by itself."""
    folder = "" if home.folder.resolve() == default_home().resolve() else f" --home {shlex.quote(str(home.folder))}"
    return folder + ("" if plan.profile == "default" else f" --profile {shlex.quote(plan.profile)}")


@dataclass(frozen=True, kw_only=True)
class ArmLamps:
    """An arm with the lamps of its seeds: seed, first digits of the run, lamp, worst finding."""

    key: str
    label: str
    seeds: tuple[tuple[int, str, Lamp, str], ...]


def arms_view(home: Home, study: StudyNow) -> tuple[ArmLamps, ...]:
    """Return all arms with the lamps of their seeds, as far as they were judged while they trained."""
    plan = study.record.plan
    found: dict[str, list[tuple[int, str, Lamp, str]]] = {a.key: [] for a in plan.all_arms}
    for run in sorted(study.runs, key=lambda r: r.seed):
        now = home.now(run)
        found[run.arm].append((run.seed, run.fingerprint[:SHORT], now.lamp, now.detector.replace("_", " ")))
    return tuple(ArmLamps(key=a.key, label=a.label, seeds=tuple(found[a.key])) for a in plan.all_arms)


def exported(home: Home, study: str) -> Iterable[str]:
    """Yield the addresses that an export shows: the first arms, and the first runs with a finding."""
    now = home.study(study)
    here = page.address(study)
    yield from (f"{here}?arm={a.key}" for a in now.record.plan.all_arms[:EXPORTED])
    bad = [r for r in now.runs if home.now(r).lamp in RAISED]
    yield from (f"{here}?run={r.fingerprint[:SHORT]}" for r in bad[:EXPORTED])


page = Page(key="health", title="Health", place=2, router=router, also=exported)
