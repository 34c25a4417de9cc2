"""The board: arms by seeds with one tile per run, the score over training, and the report's main tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from paribus.health.finding import Status
from paribus.run_folder.folder import SHORT
from paribus.run_folder.metrics import find_metric
from paribus.store.models import RunRecord
from paribus.store.remarks import NOTHING
from paribus.store.states import LIVE, RunState
from paribus.study.plan import Arm
from paribus_dashboards.board.figure import ArmCurves, score_figure
from paribus_dashboards.board.seeds_needed import precision
from paribus_dashboards.chart_style import Style, arm_styles
from paribus_dashboards.data.home import Home, Points
from paribus_dashboards.data.pace import Pace, study_pace
from paribus_dashboards.data.reports import Report
from paribus_dashboards.data.run_now import RunNow
from paribus_dashboards.data.study_now import StudyNow
from paribus_dashboards.format import STATUSES, hours, spaced
from paribus_dashboards.paging import Pager, paged
from paribus_dashboards.web import Page, answer, home_of, render

SPARK_S = 0.4
"""Seconds that one request spends on reading sparklines; the next requests add the rest."""

STATES_S, CHART_S = 0.4, 0.8
"""Seconds that one request spends on the health of runs for the counts, and on the curves of the chart."""

MAX_TILES, MAX_COLUMNS = 400, 20
"""Most tiles of a page, and most columns."""

MAX_CURVES = 60
"""Most arms in the chart of a page that does not show all."""

MAX_ROWS = 60
"""Most rows of a table on the board; the report has all."""

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
        pace: how fast its live runs go together; ``None`` without one.
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
    pace: Pace | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Runs by arm and column.

    Attributes:
        column: what a column stands for: ``seed`` or ``run``.
        columns: titles of the columns.
        rows: arms with a run per column; ``None`` if the arm has none there.
    """

    column: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Arm, tuple[RunRecord | None, ...]], ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs of the grid."""
        return tuple(r for _, runs in self.rows for r in runs if r)

    def only(self, keep: Callable[[Arm, RunRecord], bool]) -> Grid:
        """Return the grid of some runs, without empty rows and columns."""
        rows = [(arm, tuple(r if r and keep(arm, r) else None for r in runs)) for arm, runs in self.rows]
        rows = [row for row in rows if any(row[1])]
        used = [i for i in range(len(self.columns)) if any(runs[i] for _, runs in rows)]
        return self.part(rows, used)

    def part(self, rows: Sequence[tuple[Arm, tuple[RunRecord | None, ...]]], columns: Sequence[int]) -> Grid:
        """Return the grid of some rows, with the columns at these places."""
        return Grid(
            column=self.column,
            columns=tuple(self.columns[i] for i in columns),
            rows=tuple((arm, tuple(runs[i] for i in columns)) for arm, runs in rows),
        )


def grid_of(study: StudyNow) -> Grid:
    """Return all runs of a study: a column is a seed, or a number if arms don't share their seeds."""
    plan = study.record.plan
    by_arm: dict[str, list[RunRecord]] = {arm.key: [] for arm in plan.all_arms}
    for run in study.runs:
        by_arm[run.arm].append(run)
    seeds = sorted({r.seed for r in study.runs}) if plan.paired else []
    most = max(map(len, by_arm.values()), default=0)
    shared = plan.paired and len(seeds) <= 2 * most
    rows = []
    for arm in plan.all_arms:
        runs = sorted(by_arm[arm.key], key=lambda r: r.seed)
        placed = {r.seed: r for r in runs}
        cells = tuple(placed.get(s) for s in seeds) if shared else (*runs, *[None] * (most - len(runs)))
        rows.append((arm, cells))
    columns = tuple(map(str, seeds)) if shared else tuple(str(i + 1) for i in range(most))
    return Grid(column="seed" if shared else "run", columns=columns, rows=tuple(rows))


def fits(grid: Grid) -> bool:
    """Return whether all runs are shown on one page, where the filters of the browser are enough."""
    return len(grid.columns) <= MAX_COLUMNS and len(grid.rows) * len(grid.columns) <= MAX_TILES


def matching(grid: Grid, query: QueryParams, now: Mapping[str, RunNow]) -> Grid:
    """Return the runs that the filters in an address ask for."""
    state, status, arm = (query.get(name, "").lower() for name in ("state", "status", "arm"))
    if not (state or status or arm):
        return grid

    def keep(of: Arm, run: RunRecord) -> bool:
        if (state and run.state.lower() != state) or (arm and arm not in of.label.lower()):
            return False
        return not status or (run.fingerprint in now and now[run.fingerprint].status == status)

    return grid.only(keep)


def page_of(grid: Grid, address: str, query: QueryParams) -> tuple[Grid, tuple[Pager, ...]]:
    """Return the part of a grid that a page shows: at most :data:`MAX_TILES` tiles in :data:`MAX_COLUMNS` columns."""
    width = min(MAX_COLUMNS, max(1, len(grid.columns)))
    rows, by_arm = paged(grid.rows, MAX_TILES // width, address, query, what="arms")
    places = range(len(grid.columns))
    columns, by_column = paged(places, width, address, query, what=f"{grid.column}s", name="columns")
    return grid.part(rows, columns), tuple(p for p in (by_arm, by_column) if p.pages > 1)


def view(
    study: StudyNow, now: Mapping[str, RunNow], scores: Mapping[str, Points], grid: Grid | None = None
) -> BoardView:
    """Lay out a study.

    Args:
        study: the study.
        now: fingerprint to the state of a run; all runs of the grid are there, others may be missing.
        scores: fingerprint to steps and scores; runs that were not read yet are missing.
        grid: the shown runs; all without it.
    """
    plan, grid = study.record.plan, grid or grid_of(study)
    values = [v for r in grid.runs for _, v in scores.get(r.fingerprint, ())]
    edges = (min(values), max(values)) if values else None
    styles = arm_styles(plan)
    rows = tuple(
        ArmRow(
            key=arm.key,
            label=arm.label,
            style=styles[arm.key],
            tiles=tuple(
                _tile(study, arm, r, now[r.fingerprint], scores.get(r.fingerprint, ()), edges) if r else None
                for r in runs
            ),
        )
        for arm, runs in grid.rows
    )
    metric = find_metric(plan.evaluate.primary_metric)
    return BoardView(
        question=plan.question,
        column=grid.column,
        columns=grid.columns,
        rows=rows,
        states=study.counts,
        statuses=Counter(n.status for n in now.values()),
        score=metric.label if metric else plan.evaluate.primary_metric,
        low=edges[0] if edges else None,
        high=edges[1] if edges else None,
        ended=sum(r.terminal for r in study.runs),
        runs=len(study.runs),
        cost=_cost(study, study.runs),
        paused=study.record.paused,
        pace=study_pace(study, now),
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


def read_scores(
    home: Home, study: StudyNow, limit_s: float | None = SPARK_S, runs: Sequence[RunRecord] | None = None
) -> tuple[dict[str, Points], bool]:
    """Return fingerprint to steps and scores, and whether some are missing because ``limit_s`` seconds were over.

    Args:
        home: the home folder.
        study: the study.
        limit_s: seconds; ``None``: as many as it takes.
        runs: the runs to read; all without it.
    """
    metric = study.record.plan.evaluate.primary_metric
    until = None if limit_s is None else time.monotonic() + limit_s
    found: dict[str, Points] = {}
    more = False
    wanted = study.runs if runs is None else runs
    order = sorted((r for r in wanted if r.token), key=lambda r: r.state not in LIVE)
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
    """Return the main tables of a report; long ones are cut, because the report has all of them."""
    if report.built is None:
        return {"report": report, "needed": None, "main": (), "cut": 0}
    needed = precision(report.built.spreads)
    main = report.built.model.main_tables()
    most = max([len(t.rows) for t in main] + [len(needed.rows) if needed else 0])
    return {
        "report": report,
        "needed": replace(needed, rows=needed.rows[:MAX_ROWS]) if needed else None,
        "main": [replace(t, rows=t.rows[:MAX_ROWS]) for t in main],
        "cut": most if most > MAX_ROWS else 0,
    }


@router.get("/data/study/{study}/score.json")
def score(request: Request, study: str) -> Response:
    """Return the chart of the score."""
    home = home_of(request)
    now = home.study(study)
    grid = grid_of(now)
    shown = grid if fits(grid) else _part(home, now, grid, request.query_params)[0]
    keys = dict.fromkeys([now.record.plan.base, *(arm.key for arm, _ in shown.rows)])
    if shown is not grid:
        keys = dict.fromkeys([*keys][:MAX_CURVES])
    runs = [r for r in now.runs if r.arm in keys]
    scores, more = read_scores(home, now, None if home.patient else CHART_S, runs)
    styles = arm_styles(now.record.plan)
    by_arm: dict[str, list[RunRecord]] = {key: [] for key in keys}
    for run in runs:
        by_arm[run.arm].append(run)
    arms = [
        ArmCurves(
            label=arm.label,
            style=styles[arm.key],
            seeds=tuple(dict(scores.get(r.fingerprint, ())) for r in by_arm[arm.key]),
        )
        for arm in now.record.plan.arms
        if arm.key in keys and not (more and any(r.token and r.fingerprint not in scores for r in by_arm[arm.key]))
    ]
    metric = find_metric(now.record.plan.evaluate.primary_metric)
    name = f"{metric.label} ({metric.unit})" if metric else now.record.plan.evaluate.primary_metric
    among = "" if len(keys) >= len(grid.rows) else " on this page"
    if len(keys) <= len(shown.rows) and any(arm.key not in keys for arm, _ in shown.rows):
        among = f" among the first {len(keys)} on this page"
    figure = score_figure(
        arms,
        "training steps",
        name,
        base=now.record.plan.arm(now.record.plan.base).label,
        lower=metric is not None and metric.better == "lower",
        among=among,
    )
    return answer(request, figure | {"again": 2} if more else figure)


def _part(home: Home, study: StudyNow, grid: Grid, query: QueryParams) -> tuple[Grid, tuple[Pager, ...]]:
    """Return the runs of a page of a study that has more."""
    now = home.states(study, None if home.patient else STATES_S)[0] if query.get("status") else {}
    return page_of(matching(grid, query, now), page.address(study.record.name), query)


def _render(request: Request, study: str, template: str, shown: Page | None) -> Response:
    home, query = home_of(request), request.query_params
    now = home.study(study)
    states, unread = home.states(now, None if home.patient else STATES_S)
    whole = grid = grid_of(now)
    pagers: tuple[Pager, ...] = ()
    hits = None
    if not fits(whole):
        found = matching(whole, query, states)
        hits = len(found.runs) if found is not whole else None
        grid, pagers = page_of(found, page.address(study), query)
    runs = grid.runs
    scores, more = read_scores(home, now, None if home.patient else SPARK_S, runs)
    return render(
        request,
        template,
        shown,
        study,
        view=view(now, {**states, **{r.fingerprint: home.now(r) for r in runs}}, scores, grid),
        more=more or unread,
        judged=len(states),
        pagers=pagers,
        hits=hits,
        paged=not fits(whole),
        scheduler=home.scheduler(),
        filters=FILTERS,
        about=home.about_studies().get(study, NOTHING),
        **_tables(home.report(now, wait_s=0)),
    )


def exported(home: Home, study: str) -> Iterable[str]:
    """Yield the addresses of all pages of the board but the first."""
    grid = grid_of(home.study(study))
    if fits(grid):
        return
    width = min(MAX_COLUMNS, len(grid.columns))
    arms = range(1, -(-len(grid.rows) // (MAX_TILES // width)) + 1)
    for n in arms:
        for c in range(1, -(-len(grid.columns) // width) + 1):
            parts = [f"columns={c}"] * (c > 1) + [f"page={n}"] * (n > 1)
            if parts:
                yield f"{page.address(study)}?{'&'.join(parts)}"


page = Page(key="", title="Board", place=0, router=router, also=exported)
