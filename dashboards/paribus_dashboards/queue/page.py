"""The queue and budget page: running attempts and their devices, the queue, and what the study costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paribus.run_folder.folder import SHORT
from paribus.scheduler.home_lock import LockOwner
from paribus.store.budget import UNITS
from paribus.store.models import AttemptRecord, BudgetRecord, DeviceRecord, LeaseRecord, StudySummary, Unit, unit_of
from paribus.store.states import RunState
from paribus.text import plural
from paribus_dashboards.data.home import Home, NotFound
from paribus_dashboards.data.study_now import StudyNow
from paribus_dashboards.format import spaced
from paribus_dashboards.queue.figure import Spending, course, spending_figure
from paribus_dashboards.web import Page, answer, home_of, render

MAX_WAITING, MAX_ATTEMPTS, MAX_LIVE = 30, 60, 100
"""Most listed runs of the queue, most listed attempts, and most listed live attempts."""


@dataclass(frozen=True, kw_only=True)
class LiveAttempt:
    """A live attempt.

    Attributes:
        study: study whose budget it is charged to.
        label: label of its arm; empty for other studies.
        seed: its seed; ``None`` for other studies.
        run: first digits of the run's fingerprint.
        step: newest step; ``None`` for other studies.
        where: engine and host.
        devices: devices in use, e.g. ``0.5 of GPU 3``.
        minutes: minutes since it started; ``None`` while it is starting.
        reserved: reserved budget, in hours.
        unit: unit of the budget, e.g. ``GPU-hours``.
    """

    study: str
    label: str
    seed: int | None
    run: str
    step: int | None
    where: str
    devices: str
    minutes: float | None
    reserved: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class StudyShare:
    """An open study among the others.

    Attributes:
        name: name of the study.
        state: ``running``, ``queued`` or ``paused``.
        priority: studies of a higher priority go first.
        weight: its weight among studies of its priority.
        due: its share of the slots by weight among the open studies of its priority, 0 to 1.
        held: its share of the live attempts, 0 to 1.
    """

    name: str
    state: str
    priority: int
    weight: float
    due: float
    held: float


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt in the list of attempts; budget in hours of its unit."""

    run: str
    label: str
    seed: int
    token: int
    outcome: str
    reserved: float
    charged: float | None
    unit: str


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget in one unit, in hours.

    Attributes:
        unit: ``gpu`` or ``cpu``.
        title: e.g. ``GPU-hours``.
        cap: most that the study may spend; ``None``: no cap.
        spent: charged for ended attempts.
        in_flight: used by live attempts so far.
        reserved: reserved for live attempts.
        wasted: charged for attempts without a result or a checkpoint.
        expected: estimate before the first run; ``None`` without an estimate.
        forecast: expected spending at the end of the study; ``None`` if unknown.
        enough: whether another attempt fits.
        course: hours since the first attempt, and charges by then.
    """

    unit: Unit
    title: str
    cap: float | None
    spent: float
    in_flight: float
    reserved: float
    wasted: float
    expected: float | None
    forecast: float | None
    enough: bool
    course: tuple[tuple[float, float], ...]

    def share(self, hours: float) -> float:
        """Return hours as a percentage of the bar, which is the cap, else the forecast."""
        whole = max(self.cap or self.forecast or 0.0, self.spent + max(self.in_flight, self.reserved))
        return 100 * hours / whole if whole else 0.0


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """The page.

    Attributes:
        scheduler: the process that starts runs here; empty without one.
        engine: its engine.
        live: live attempts of all studies, the first of them.
        live_count: number of all live attempts.
        devices: devices of all hosts, and how much of each is in use.
        waiting: next runs of this study: label of the arm, seed, position, why it was queued again.
        queued: number of queued runs.
        shares: all open studies.
        budgets: the budgets of this study, one per unit.
        attempts: newest attempts of this study.
        attempt_count: number of all its attempts.
    """

    scheduler: str
    engine: str
    live: tuple[LiveAttempt, ...]
    live_count: int
    devices: tuple[DeviceRecord, ...]
    waiting: tuple[tuple[str, int, int, str], ...]
    queued: int
    shares: tuple[StudyShare, ...]
    budgets: tuple[Budget, ...]
    attempts: tuple[AttemptRow, ...]
    attempt_count: int


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """The rest of the home folder besides the study; see the methods of :class:`~paribus_dashboards.data.home.Home`."""

    scheduler: LockOwner | None
    entries: tuple[StudySummary, ...]
    live: tuple[AttemptRecord, ...]
    devices: tuple[DeviceRecord, ...]
    leases: tuple[LeaseRecord, ...]
    budgets: tuple[BudgetRecord, ...]
    steps: Mapping[str, int]


def view(study: StudyNow, state: QueueState) -> QueueView:
    """Lay out the queue and the budget of a study."""
    waiting = [r for r in study.runs if r.state is RunState.QUEUED]
    return QueueView(
        scheduler=str(state.scheduler) if state.scheduler else "",
        engine=state.scheduler.engine if state.scheduler else "",
        live=tuple(_live(study, state, a) for a in state.live[:MAX_LIVE]),
        live_count=len(state.live),
        devices=state.devices,
        waiting=tuple((r.label, r.seed, i, r.reason) for i, r in enumerate(waiting[:MAX_WAITING], 1)),
        queued=len(waiting),
        shares=tuple(_shares(study, state)),
        budgets=tuple(_budget(study, b) for b in state.budgets),
        attempts=tuple(_attempts(study)),
        attempt_count=sum(map(len, study.attempts.values())),
    )


def _live(study: StudyNow, state: QueueState, attempt: AttemptRecord) -> LiveAttempt:
    names: dict[int | None, str] = {e.id: e.name for e in state.entries}
    run = next((r for r in study.runs if r.fingerprint == attempt.fingerprint), None)
    by_id = {d.id: d for d in state.devices}
    mine = [x for x in state.leases if (x.run_id, x.token) == (attempt.run_id, attempt.token)]
    parts = [f"{x.share:g} of GPU {by_id[x.device_id].name}" for x in mine if x.device_id in by_id]
    if not mine and attempt.gpus > 0:
        parts.append(f"{attempt.gpus:g} GPU")
    if attempt.cpus > 0:
        parts.append(plural(attempt.cpus, "core"))
    started = attempt.started_at
    return LiveAttempt(
        study=names.get(attempt.study_id, "an earlier plan"),
        label=run.label if run else "",
        seed=run.seed if run else None,
        run=attempt.fingerprint[:SHORT],
        step=state.steps.get(attempt.fingerprint),
        where=attempt.engine + ("" if attempt.worker.startswith("/") else f" on {attempt.worker}"),
        devices=", ".join(parts) or "one CPU slot",
        minutes=None if started is None else max(0.0, study.at - started) / 60,
        reserved=attempt.reserved / 3600,
        unit=UNITS[unit_of(attempt.gpus)],
    )


def _shares(study: StudyNow, state: QueueState) -> list[StudyShare]:
    open_ones = [e for e in state.entries if e.open]
    found = []
    for e in open_ones:
        rivals = fsum(o.weight for o in open_ones if o.priority == e.priority and not o.paused)
        mine = sum(a.study_id == e.id for a in state.live)
        found.append(
            StudyShare(
                name=e.name,
                state="paused" if e.paused else "running" if mine else "queued",
                priority=e.priority,
                weight=e.weight,
                due=0.0 if e.paused else e.weight / rivals,
                held=mine / len(state.live) if state.live else 0.0,
            )
        )
    return sorted(found, key=lambda s: (-s.priority, -s.due, s.name != study.record.name))


def _budget(study: StudyNow, b: BudgetRecord) -> Budget:
    remaining = sum(not r.terminal for r in study.runs)
    forecast, expected = b.forecast(remaining), b.expected(remaining)
    mine = [a for found in study.attempts.values() for a in found if unit_of(a.gpus) == b.unit]
    ends = [(a.ended_at, a.charged or 0.0) for a in mine if a.ended_at is not None]
    starts = [(a.started_at, 0.0) for a in mine if a.started_at is not None]
    return Budget(
        unit=b.unit,
        title=UNITS[b.unit],
        cap=None if b.cap is None else b.cap / 3600,
        spent=b.spent / 3600,
        in_flight=b.live / 3600,
        reserved=b.reserved / 3600,
        wasted=b.wasted / 3600,
        expected=None if expected is None else expected / 3600,
        forecast=None if forecast is None else forecast / 3600,
        enough=b.allows_another,
        course=course([*starts, *ends], study.at if len(ends) < len(mine) else 0.0),
    )


def _attempts(study: StudyNow) -> list[AttemptRow]:
    found: Sequence[tuple[float, AttemptRow]] = [
        (
            a.claimed_at,
            AttemptRow(
                run=r.fingerprint[:SHORT],
                label=r.label,
                seed=r.seed,
                token=a.token,
                outcome=spaced(a.outcome) or "live",
                reserved=a.reserved / 3600,
                charged=None if a.charged is None else a.charged / 3600,
                unit=UNITS[unit_of(a.gpus)],
            ),
        )
        for r in study.runs
        for a in study.attempts.get(r.fingerprint, ())
    ]
    return [entry for _, entry in sorted(found, key=lambda f: -f[0])[:MAX_ATTEMPTS]]


# ---- routes ------------------------------------------------------------------------------------------

router = APIRouter()


def read(home: Home, study: StudyNow) -> QueueState:
    """Return what the page needs besides the study."""
    live = home.live_attempts()
    known = {r.fingerprint: r for r in study.runs}
    return QueueState(
        scheduler=home.scheduler(),
        entries=home.studies(),
        live=live,
        devices=home.devices(),
        leases=home.leases(),
        budgets=home.budgets(study.record.name),
        steps={a.fingerprint: home.now(known[a.fingerprint]).step for a in live if a.fingerprint in known},
    )


@router.get("/study/{study}/queue")
def show(request: Request, study: str) -> Response:
    """Show the queue and the budget."""
    return _render(request, study, "queue/page.html", page)


@router.get("/study/{study}/queue/now")
def now(request: Request, study: str) -> Response:
    """Show all but the charts, for polling."""
    return _render(request, study, "queue/now.html", None)


@router.get("/data/study/{study}/spending.json")
def spending(request: Request, study: str, unit: str) -> Response:
    """Return the chart of spending over time."""
    home = home_of(request)
    found = home.study(study)
    record = next((b for b in home.budgets(study) if b.unit == unit), None)
    if record is None:
        raise NotFound(f"`{study}` has no budget in the unit `{unit}`")
    b = _budget(found, record)
    return answer(request, spending_figure(Spending(unit=b.title, course=b.course, cap=b.cap, forecast=b.forecast)))


def _render(request: Request, study: str, template: str, shown: Page | None) -> Response:
    home = home_of(request)
    found = home.study(study)
    return render(request, template, shown, study, view=view(found, read(home, found)), paused=found.record.paused)


page = Page(key="queue", title="Queue and budget", place=5, router=router)
