"""The board: arms by seeds with one tile per run, the score over training, and the report's main tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paribus.health.finding import Status
from paribus.run_folder.folder import SHORT
from paribus.run_folder.metrics import find_metric
from paribus.store.models import RunRecord
from paribus.store.states import LIVE, RunState
from paribus.study.plan import Arm
from paribus_dashboards.board.figure import ArmCurves, score_figure
from paribus_dashboards.board.seeds_needed import precision
from paribus_dashboards.chart_style import Style, arm_styles
from paribus_dashboards.data.home import Home, Points
from paribus_dashboards.data.reports import Report
from paribus_dashboards.data.run_now import RunNow
from paribus_dashboards.data.study_now import StudyNow
from paribus_dashboards.format import STATUSES, hours, spaced
from paribus_dashboards.web import Page, answer, home_of, render

SPARK_S = 0.4
"""Seconds that one request spends on reading sparklines; the next requests add the rest."""

SPARK_POINTS, SPARK_WIDTH, SPARK_HEIGHT = 32, 96.0, 22.0
"""Points of a sparkline, and its size in the units of its view box."""

FILTERS = {
    "state": tuple((s.lower(), spaced(s)) for s in RunState if s is not RunState.PLANNED),
    "status": tuple((name, word) for name, (_, word) in STATUSES.items() if name != "not_applicable"),
}
"""Filters of the tiles: name in the address to values and their titles."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One run.

    Attributes:
        run: first digits of its fingerprint.
        seed: its seed.
        state: its state.
        status: its health so far.
        detector: detector of the worst finding.
        step: newest step.
        steps: planned steps.
        spark: points of the sparkline as SVG takes them; empty for fewer than two points.
        last: newest score; ``None`` without a score.
        cost: device time so far, e.g. ``3.4 GPU-h``; empty for none.
        reason: why it failed or stopped.
    """

    run: str
    seed: int
    state: RunState
    status: Status
    detector: str
    step: int
    steps: int
    spark: str
    last: float | None
    cost: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """One arm, with a tile per seed; ``None`` if it has no run with the seed of the column."""

    key: str
    label: str
    style: Style
    tiles: tuple[Tile | None, ...]


@dataclass(frozen=True, kw_only=True)
class BoardView:
    """The board.

    Attributes:
        question: the question of the study.
        column: what a column stands for: ``seed`` or ``run``.
        columns: titles of the columns: seeds, or numbers if arms don't share their seeds.
        rows: one per arm, the base first.
        states: number of runs by state.
        statuses: number of runs by health status.
        score: label of the score, which the sparklines show.
        low: lowest score of any run, the lower edge of all sparklines; ``None`` without a score.
        high: highest score.
        ended: number of runs that have ended.
        runs: number of all runs.
        cost: device time of the study so far.
        paused: why the study is paused; empty if it isn't.
    """

    question: str
    column: str
    columns: tuple[str, ...]
    rows: tuple[ArmRow, ...]
    states: Mapping[RunState, int]
    statuses: Mapping[Status, int]
    score: str
    low: float | None
    high: float | None
    ended: int
    runs: int
    cost: str
    paused: str


def view(study: StudyNow, now: Mapping[str, RunNow], scores: Mapping[str, Points]) -> BoardView:
    """Lay out a study.

    Args:
        study: the study.
        now: fingerprint to the state of a run.
        scores: fingerprint to steps and scores; runs that were not read yet are missing.
    """
    plan = study.record.plan
    values = [v for points in scores.values() for _, v in points]
    edges = (min(values), max(values)) if values else None
    styles = arm_styles(plan)
    by_arm: dict[str, list[RunRecord]] = {arm.key: [] for arm in plan.all_arms}
    for run in study.runs:
        by_arm[run.arm].append(run)
    seeds = sorted({r.seed for r in study.runs}) if plan.paired else []
    shared = plan.paired and len(seeds) <= 2 * max(map(len, by_arm.values()), default=0)
    columns = tuple(map(str, seeds)) if shared else tuple(str(i + 1) for i in range(max(map(len, by_arm.values()))))
    rows = []
    for arm in plan.all_arms:
        runs = sorted(by_arm[arm.key], key=lambda r: r.seed)
        tiles = [_tile(study, arm, r, now[r.fingerprint], scores.get(r.fingerprint, ()), edges) for r in runs]
        placed = {t.seed: t for t in tiles}
        cells = tuple(placed.get(s) for s in seeds) if shared else (*tiles, *[None] * (len(columns) - len(tiles)))
        rows.append(ArmRow(key=arm.key, label=arm.label, style=styles[arm.key], tiles=cells))
    metric = find_metric(plan.evaluate.primary_metric)
    return BoardView(
        question=plan.question,
        column="seed" if shared else "run",
        columns=columns,
        rows=tuple(rows),
        states=study.counts,
        statuses=Counter(now[r.fingerprint].status for r in study.runs),
        score=metric.label if metric else plan.evaluate.primary_metric,
        low=edges[0] if edges else None,
        high=edges[1] if edges else None,
        ended=sum(r.terminal for r in study.runs),
        runs=len(study.runs),
        cost=_cost(study, study.runs),
        paused=study.record.paused,
    )


def _tile(
    study: StudyNow, arm: Arm, run: RunRecord, now: RunNow, points: Points, edges: tuple[float, float] | None
) -> Tile:
    steps = arm.recipe.schedule.steps
    return Tile(
        run=run.fingerprint[:SHORT],
        seed=run.seed,
        state=run.state,
        status=now.status,
        detector=now.detector,
        step=now.step,
        steps=steps,
        spark=spark(points, steps, *edges) if edges else "",
        last=points[-1][1] if points else None,
        cost=_cost(study, [run]),
        reason=run.reason,
    )


def spark(points: Points, steps: int, low: float, high: float) -> str:
    """Return a line over all planned steps, between the lowest and the highest score of the study, as SVG points."""
    if len(points) < 2:
        return ""
    scale = (SPARK_HEIGHT - 2) / (high - low) if high > low else 0.0
    across = SPARK_WIDTH / max(steps, points[-1][0], 1)
    return " ".join(f"{x * across:.1f},{SPARK_HEIGHT - 1 - (y - low) * scale:.1f}" for x, y in points)


def _cost(study: StudyNow, runs: Sequence[RunRecord]) -> str:
    gpus = any(a.gpus > 0 for r in runs for a in study.attempts.get(r.fingerprint, ()))
    return hours(sum(map(study.seconds, runs)), "GPU" if gpus else "CPU")


# ---- input -------------------------------------------------------------------------------------------


def read_scores(home: Home, study: StudyNow, limit_s: float | None = SPARK_S) -> tuple[dict[str, Points], bool]:
    """Return fingerprint to steps and scores, and whether some are missing because ``limit_s`` seconds were over."""
    metric = study.record.plan.evaluate.primary_metric
    until = None if limit_s is None else time.monotonic() + limit_s
    found: dict[str, Points] = {}
    more = False
    order = sorted((r for r in study.runs if r.token), key=lambda r: r.state not in LIVE)
    for run in order:
        late = until is not None and time.monotonic() > until
        known = (home.cached_points if late else home.points)(run, metric, least=SPARK_POINTS)
        if known is not None:
            found[run.fingerprint] = known
        more |= known is None
    return found, more


# ---- routes ------------------------------------------------------------------------------------------

router = APIRouter()


@router.get("/study/{study}")
def show(request: Request, study: str) -> Response:
    """Show the board."""
    return _render(request, study, "board/page.html", page)


@router.get("/study/{study}/tiles")
def tiles(request: Request, study: str) -> Response:
    """Show only the tiles, for polling."""
    return _render(request, study, "board/tiles.html", None)


@router.get("/study/{study}/tables")
def tables(request: Request, study: str) -> Response:
    """Show the main tables of the newest report, for polling."""
    home = home_of(request)
    return render(request, "board/tables.html", None, study, **_tables(home.report(home.study(study))))


def _tables(report: Report) -> dict[str, Any]:
    return {"report": report, "needed": precision(report.built.spreads) if report.built else None}


@router.get("/data/study/{study}/score.json")
def score(request: Request, study: str) -> Response:
    """Return the chart of the score."""
    home = home_of(request)
    now = home.study(study)
    scores, _ = read_scores(home, now, None)
    styles = arm_styles(now.record.plan)
    arms = [
        ArmCurves(
            label=arm.label,
            style=styles[arm.key],
            seeds=tuple(dict(scores.get(r.fingerprint, ())) for r in now.runs if r.arm == arm.key),
        )
        for arm in now.record.plan.arms
    ]
    metric = find_metric(now.record.plan.evaluate.primary_metric)
    name = f"{metric.label} ({metric.unit})" if metric else now.record.plan.evaluate.primary_metric
    return answer(request, score_figure(arms, "training steps", name))


def _render(request: Request, study: str, template: str, shown: Page | None) -> Response:
    home = home_of(request)
    now = home.study(study)
    scores, more = read_scores(home, now)
    found = view(now, {r.fingerprint: home.now(r) for r in now.runs}, scores)
    return render(
        request,
        template,
        shown,
        study,
        view=found,
        more=more,
        scheduler=home.scheduler(),
        filters=FILTERS,
        **_tables(home.report(now, wait_s=0)),
    )


page = Page(key="", title="Board", place=0, router=router)
