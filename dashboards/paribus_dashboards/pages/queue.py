"""Queue and budget: who trains what on which device, what comes next, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paribus.schedule.holder import Holder
from paribus.store.budget import UNITS
from paribus.store.records import AttemptRecord, BudgetRecord, DeviceRecord, LeaseRecord, StudyEntry, Unit, unit_of
from paribus.store.states import RunState
from paribus.track.folder import SHORT
from paribus_dashboards.figures.budget import Spending, course, spending_figure
from paribus_dashboards.home import Home, NotThere
from paribus_dashboards.study_now import StudyNow
from paribus_dashboards.web import Page, answer, home_of, render

NEXT, LEDGER = 30, 60
"""Runs in the queue, and newest attempts in the ledger, that are listed."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A run that is trained now.

    Attributes:
        study: whose budget it is charged to.
        label: label of its arm; empty for other studies.
        seed: its seed; ``None`` for other studies.
        run: first digits of its fingerprint.
        step: newest step; ``None`` for other studies.
        where: engine and host.
        devices: what it holds, in words.
        minutes: how long it has worked; ``None`` before its first word.
        reserved: hours set aside for it.
        unit: of what.
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
class Share:
    """A study beside the others.

    Attributes:
        name: the study.
        state: ``running``, ``queued``, ``paused``, ``ended``.
        priority: studies of a higher one go first.
        weight: its share among those of its priority.
        due: share of the slots that the weights give it among the open studies of its priority, 0 to 1.
        held: share of the running attempts that are its own.
    """

    name: str
    state: str
    priority: int
    weight: float
    due: float
    held: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One attempt in the ledger; hours of its unit."""

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
    """One unit of the ledger, in hours.

    Attributes:
        unit: ``gpu`` or ``cpu``.
        words: e.g. ``GPU-hours``.
        cap: the most that may be spent; ``None``: anything.
        spent: settled.
        in_flight: used by attempts that have not ended.
        reserved: set aside for them.
        wasted: settled without a result or a checkpoint.
        expected: what the study file said at the start; ``None`` if nothing.
        forecast: what it will come to; ``None`` if unknown.
        enough: whether another attempt may begin.
        course: hours since the first attempt and what was settled by then.
    """

    unit: Unit
    words: str
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
        """Return hours as percent of the bar: of the cap, else of what it will come to."""
        whole = max(self.cap or self.forecast or 0.0, self.spent + max(self.in_flight, self.reserved))
        return 100 * hours / whole if whole else 0.0


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """The page.

    Attributes:
        served: who starts runs here, in words; empty if nobody does.
        engine: on what.
        held: runs that are trained now, of all studies.
        devices: devices of the hosts, with what is held of each.
        waiting: next runs of this study: label of the arm, seed, place, why it was put back.
        queued: how many wait.
        shares: all studies that are open, and this one.
        budgets: units that it uses.
        ledger: newest attempts of this study.
        attempts: how many there were.
    """

    served: str
    engine: str
    held: tuple[Held, ...]
    devices: tuple[DeviceRecord, ...]
    waiting: tuple[tuple[str, int, int, str], ...]
    queued: int
    shares: tuple[Share, ...]
    budgets: tuple[Budget, ...]
    ledger: tuple[Entry, ...]
    attempts: int


@dataclass(frozen=True, kw_only=True)
class Office:
    """What the store says beside the study: see the methods of :class:`~paribus_dashboards.home.Home`."""

    holder: Holder | None
    entries: tuple[StudyEntry, ...]
    live: tuple[AttemptRecord, ...]
    devices: tuple[DeviceRecord, ...]
    leases: tuple[LeaseRecord, ...]
    budgets: tuple[BudgetRecord, ...]
    steps: Mapping[str, int]


def view(study: StudyNow, office: Office) -> QueueView:
    """Lay out the queue and the budget of a study."""
    waiting = [r for r in study.runs if r.state is RunState.QUEUED]
    return QueueView(
        served=str(office.holder) if office.holder else "",
        engine=office.holder.engine if office.holder else "",
        held=tuple(_held(study, office, a) for a in office.live),
        devices=office.devices,
        waiting=tuple((r.label, r.seed, i, r.reason) for i, r in enumerate(waiting[:NEXT], 1)),
        queued=len(waiting),
        shares=tuple(_shares(study, office)),
        budgets=tuple(_budget(study, b) for b in office.budgets),
        ledger=tuple(_ledger(study)),
        attempts=sum(map(len, study.attempts.values())),
    )


def _held(study: StudyNow, office: Office, attempt: AttemptRecord) -> Held:
    names = {e.id: e.name for e in office.entries}
    run = next((r for r in study.runs if r.fingerprint == attempt.fingerprint), None)
    by_id = {d.id: d for d in office.devices}
    mine = [x for x in office.leases if (x.run_id, x.token) == (attempt.run_id, attempt.token)]
    parts = [f"{x.share:g} of GPU {by_id[x.device_id].name}" for x in mine if x.device_id in by_id]
    if not mine and attempt.gpus > 0:
        parts.append(f"{attempt.gpus:g} GPU")
    if attempt.cpus > 0:
        parts.append(f"{attempt.cpus:g} cores")
    began = attempt.started_at
    return Held(
        study=names.get(attempt.study_id, "an earlier plan"),
        label=run.label if run else "",
        seed=run.seed if run else None,
        run=attempt.fingerprint[:SHORT],
        step=office.steps.get(attempt.fingerprint),
        where=f"{attempt.engine} on {attempt.worker}",
        devices=", ".join(parts) or "one CPU slot",
        minutes=None if began is None else max(0.0, study.at - began) / 60,
        reserved=attempt.reserved / 3600,
        unit=UNITS[unit_of(attempt.gpus)],
    )


def _shares(study: StudyNow, office: Office) -> list[Share]:
    open_ones = [e for e in office.entries if e.open]
    found = []
    for e in open_ones:
        rivals = fsum(o.weight for o in open_ones if o.priority == e.priority and not o.paused)
        mine = sum(a.study_id == e.id for a in office.live)
        found.append(
            Share(
                name=e.name,
                state="paused" if e.paused else "running" if mine else "queued",
                priority=e.priority,
                weight=e.weight,
                due=0.0 if e.paused else e.weight / rivals,
                held=mine / len(office.live) if office.live else 0.0,
            )
        )
    return sorted(found, key=lambda s: (-s.priority, -s.due, s.name != study.record.name))


def _budget(study: StudyNow, b: BudgetRecord) -> Budget:
    remaining = sum(not r.terminal for r in study.runs)
    forecast, expected = b.forecast(remaining), b.expected(remaining)
    mine = [a for found in study.attempts.values() for a in found if unit_of(a.gpus) == b.unit]
    ends = [(a.ended_at, a.charged or 0.0) for a in mine if a.ended_at is not None]
    began = [(a.started_at, 0.0) for a in mine if a.started_at is not None]
    return Budget(
        unit=b.unit,
        words=UNITS[b.unit],
        cap=None if b.cap is None else b.cap / 3600,
        spent=b.spent / 3600,
        in_flight=b.live / 3600,
        reserved=b.reserved / 3600,
        wasted=b.wasted / 3600,
        expected=None if expected is None else expected / 3600,
        forecast=None if forecast is None else forecast / 3600,
        enough=b.allows_another,
        course=course([*began, *ends], study.at if len(ends) < len(mine) else 0.0),
    )


def _ledger(study: StudyNow) -> list[Entry]:
    found: Sequence[tuple[float, Entry]] = [
        (
            a.claimed_at,
            Entry(
                run=r.fingerprint[:SHORT],
                label=r.label,
                seed=r.seed,
                token=a.token,
                outcome=a.outcome.replace("_", " ") or "live",
                reserved=a.reserved / 3600,
                charged=None if a.charged is None else a.charged / 3600,
                unit=UNITS[unit_of(a.gpus)],
            ),
        )
        for r in study.runs
        for a in study.attempts.get(r.fingerprint, ())
    ]
    return [entry for _, entry in sorted(found, key=lambda f: -f[0])[:LEDGER]]


# ---- routes ------------------------------------------------------------------------------------------

router = APIRouter()


def read(home: Home, study: StudyNow) -> Office:
    """Return what the page needs beside the study."""
    live = home.live_attempts()
    known = {r.fingerprint: r for r in study.runs}
    return Office(
        holder=home.holder(),
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
    return _render(request, study, "queue.html", page)


@router.get("/study/{study}/queue/now")
def now(request: Request, study: str) -> Response:
    """Show the same alone, for polling."""
    return _render(request, study, "queue_now.html", None)


@router.get("/data/study/{study}/spending.json")
def spending(request: Request, study: str, unit: str) -> Response:
    """Answer with what was spent over time."""
    home = home_of(request)
    found = home.study(study)
    record = next((b for b in home.budgets(study) if b.unit == unit), None)
    if record is None:
        raise NotThere(f"`{study}` has spent nothing in the unit `{unit}`")
    b = _budget(found, record)
    return answer(request, spending_figure(Spending(unit=b.words, course=b.course, cap=b.cap, forecast=b.forecast)))


def _render(request: Request, study: str, template: str, shown: Page | None) -> Response:
    home = home_of(request)
    found = home.study(study)
    return render(request, template, shown, study, view=view(found, read(home, found)), paused=found.record.paused)


page = Page(key="queue", title="Queue and budget", place=5, router=router)
