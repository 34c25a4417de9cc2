"""Serves all studies of a home folder: takes up those that are submitted, and has a report written when one ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.engines.base import load_engine
from paribus.engines.options import engine_settings
from paribus.errors import ParibusError, RunFolderError, TooLarge
from paribus.schedule.growth import Grown, added_text, grow, ungrown
from paribus.schedule.holder import SCHEDULER, hold
from paribus.schedule.hooks import Hooks
from paribus.schedule.news import News
from paribus.schedule.progress import Display
from paribus.schedule.reports import Reports
from paribus.schedule.scheduler import PERIOD_S, Ending, Scheduler
from paribus.schedule.session import Settings, disk, drain, start_shipper, workplace
from paribus.schedule.shipping import ShipperProcess
from paribus.schedule.signature import storable
from paribus.store.database import Unreachable
from paribus.store.records import StudyRecord
from paribus.store.states import RECORDED, RunState
from paribus.store.store import Store
from paribus.study.fingerprint import fingerprints, stops_of
from paribus.study.runner import load_runner
from paribus.track.folder import read_json, write_json

LOOK_S = 0.5
"""Seconds between two looks for studies that were submitted."""

SHOW_S = 5.0
"""Seconds between two looks at the progress."""

NOTES = "served.json"
"""File of the home folder with the names of studies whose end is not told, or whose report is not written."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A study that came to an end while it was served."""

    study: str
    ending: Ending
    counts: Mapping[RunState, int]


def serve(
    settings: Settings, display: Display, *, reports: Path, until_idle: bool = False, grown: Grown = ungrown
) -> tuple[Ended, ...]:
    """Serve the studies of a home folder until somebody asks to stop.

    Args:
        settings: home folder and engine.
        display: where it says what it does.
        reports: folder in which each study that ends gets a folder with its report.
        until_idle: end when there is nothing left to do.
        grown: what studies that grow ask for next.

    Returns:
        What has ended meanwhile, in that order.

    Raises:
        StoreError: another process works in this home folder, a newer version of Paribus wrote the store, or the
            disk takes nothing.
        EngineError: the engine is not there.
    """
    home = settings.home.resolve()
    with ExitStack() as stack:
        stack.enter_context(disk(home))
        home.mkdir(parents=True, exist_ok=True)
        stack.enter_context(hold(home, SCHEDULER, settings.engine))
        store = stack.enter_context(Store.open(home))
        shipper = start_shipper(home, stack, display)
        waiting = [s for s in store.entries() if s.open]
        runner = store.numbered(waiting[-1].id).plan.runner if waiting else "native"
        engine = load_engine(settings.engine)(engine_settings(runner, home, settings.slots, settings.options))
        scheduler = stack.enter_context(workplace(store, engine, display, pause=True))
        display.say(f"serving {home} on the engine {settings.engine}: paribus submit STUDY.yaml --home {home}")
        written = Reports(home, reports, display.say)
        stack.callback(written.close)
        service = _Service(store, scheduler, shipper, display, written, grown, until_idle=until_idle)
        scheduler.run(service.wait, service.enough)
        trouble = drain(shipper, display)
        display.say(trouble or ("nothing is left to do" if until_idle and not scheduler.interrupted else "stopped"))
        return tuple(service.ended)


class _Service:
    """What is done between the turns of the scheduler."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        shipper: ShipperProcess | None,
        display: Display,
        reports: Reports,
        grown: Grown,
        *,
        until_idle: bool,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._shipper = shipper
        self._display = display
        self._reports = reports
        self._grown = grown
        self._until_idle = until_idle
        self._code: dict[str, str] = {}
        self._news: dict[int, News] = {}
        self._over: dict[int, Ending] = {}
        self._replaced: set[str] = set()
        self._next_look = self._next_show = 0.0
        self._pause = threading.Event()
        self._notes = store.home / NOTES
        self._noted: list[str] | None = None
        self.ended: list[Ended] = []
        self._recall()
        self._look()

    def wait(self) -> None:
        """Sleep; now and then look for what was submitted, and show the progress."""
        now = time.monotonic()
        with suppress(Unreachable):  # the scheduler tells
            if now >= self._next_look and not self._scheduler.interrupted:
                self._next_look = now + LOOK_S
                self._look()
                self._reports.turn()
                self._note()
                if self._shipper is not None:
                    self._shipper.ensure()
            if now >= self._next_show:
                self._next_show = now + SHOW_S
                for number in self._scheduler.studies:
                    view = self._news[number].view(now)
                    if view.live:
                        self._display.show(view)
        self._pause.wait(PERIOD_S)

    def enough(self, ended: Mapping[int, Ending]) -> bool:
        """Tell what has ended, and whether that was all."""
        self._over.update(ended)
        for number in list(self._over):
            if self._over[number] is not Ending.COMPLETE or not self._grows(number):
                self._tell_end(number, self._over[number])
            del self._over[number]
        if self._scheduler.interrupted:
            return self._scheduler.idle
        if self._until_idle and self._scheduler.idle:
            self._look()
            if not self._scheduler.idle or self._over or self._reports.turn() > 0:
                return False
            self._note()
            return True
        return False

    # ---- what the next scheduler has to know -----------------------------------------------------

    def _note(self) -> None:
        """Write down whose end is not told, or whose report is not written."""
        names = sorted({study.name for study in self._scheduler.studies.values()} | self._reports.asked)
        if names != self._noted:
            write_json(self._notes, names)
            self._noted = names

    def _recall(self) -> None:
        """Note the ends that the scheduler before was killed too early to tell."""
        try:
            names = read_json(self._notes)
        except RunFolderError:
            return
        for entry in {e.name: e for e in self._store.entries() if e.name in names}.values():
            if not entry.open:
                self._over[entry.id] = Ending.COMPLETE
            elif entry.paused:
                self._over[entry.id] = Ending.PAUSED
            elif not self._scheduler.affords(entry.name):
                self._over[entry.id] = Ending.BUDGET

    # ---- which studies ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Take up what can go on, and let go of plans that a newer one of their name has replaced."""
        newest = {entry.name: entry for entry in self._store.entries()}
        for number, study in list(self._scheduler.studies.items()):
            if newest[study.name].id != number:
                self._display.say(f"{study.name}: replaced by what was submitted later")
                self._scheduler.drop(number)
                del self._news[number]
                self._replaced.add(study.name)
        for entry in newest.values():
            served = self._scheduler.studies.get(entry.id)
            if served is None:
                if not entry.open or entry.paused:
                    continue
                if self._scheduler.affords(entry.name):
                    self._replaced.discard(entry.name)
                    self._take_up(self._store.numbered(entry.id))
                elif entry.name in self._replaced and not self._scheduler.flies(entry.name):
                    self._replaced.discard(entry.name)
                    self._over[entry.id] = Ending.BUDGET
            elif served.submitted_at != entry.submitted_at and not entry.paused:
                self._go_on(served, self._store.numbered(entry.id))

    def _go_on(self, before: StudyRecord, study: StudyRecord) -> None:
        """Let what was edited of a study that is served count from its next run on."""
        try:
            self._scheduler.take_up(study)
        except TooLarge as error:
            self._store.pause(study.id, str(error))
            return
        if (before.priority, before.weight) != (study.priority, study.weight):
            self._display.say(f"{study.name}: priority {study.priority}, weight {study.weight:g} from now on")
        if before.plan.resources != study.plan.resources:
            held = study.plan.resources.about() or "what the engine gives"
            self._display.say(f"{study.name}: each run holds {held} from now on")

    def _take_up(self, study: StudyRecord) -> None:
        obstacle = self._obstacle(study)
        if obstacle:
            self._store.pause(study.id, obstacle)
            self._tell_end(study.id, Ending.PAUSED)
            return
        counts = self._store.counts(study.id)
        known = sum(n for state, n in counts.items() if state in RECORDED)
        runs = f"{sum(counts.values())} runs, {known} with a result"
        self._display.say(f"{study.name}: taken up, {runs}, priority {study.priority}, weight {study.weight:g}")
        say = self._display.say
        self._news[study.id] = News(self._store, study, say, Hooks(study.plan, say))
        self._scheduler.take_up(study)

    def _obstacle(self, study: StudyRecord) -> str:
        """Return why a study would not give the numbers that its runs are recorded under; empty if it would."""
        plan = study.plan
        arm, first = plan.arm(plan.base), next((r for r in plan.runs if r.arm == plan.base), None)
        try:
            runner = load_runner(plan.runner)
            self._scheduler.need(study)
            code = runner.code_fingerprint(arm.recipe)
            data, model = runner.data_fingerprint(arm.recipe), runner.model_fingerprint(arm.recipe)
        except ParibusError as error:
            return str(error)
        except Exception as error:  # a runner's code is not ours
            return storable(f"the runner `{plan.runner}` cannot be used: {type(error).__name__}: {error}")
        if self._code.setdefault(plan.runner, code) != code:
            return f"the code of the runner `{plan.runner}` has changed since this scheduler has loaded it: restart it."
        stops = stops_of(plan.stop_on, plan.profile)
        now = fingerprints(recipe=arm.recipe, evaluate=plan.evaluate, code=code, data=data, model=model, stops=stops)
        if first is not None and now(first.seed) != first.fingerprint:
            return "code, data or model are not those that it was submitted with: submit it again, with its file."
        return ""

    def _grows(self, number: int) -> bool:
        """Submit what a study asks for that has come to the end of its runs; it is taken up at the next look."""
        study = self._store.numbered(number)
        try:
            later = grow(self._store, study, self._grown)
        except Unreachable:
            raise
        except ParibusError as error:
            self._store.pause(number, str(error))
            self._over[number] = Ending.PAUSED
            return False
        if later is None:
            return False
        self._news.pop(number, None)
        self._display.say(f"{study.name}: {added_text(study, later)}")
        return True

    # ---- what to say -----------------------------------------------------------------------------

    def _tell_end(self, number: int, ending: Ending) -> None:
        study, counts = self._store.numbered(number), self._store.counts(number)
        if (news := self._news.pop(number, None)) is not None:
            news.view(time.monotonic())
        self.ended.append(Ended(study=study.name, ending=ending, counts=counts))
        shown = ", ".join(f"{n} {state.lower().replace('_', ' ')}" for state, n in counts.items())
        self._display.say(f"{study.name}: {ending}: {shown}")
        if ending is Ending.PAUSED:
            self._display.say(f"{study.paused}\nMend it, then: paribus retry {study.name}")
        if ending is Ending.BUDGET:
            self._display.say(f"{study.name}: raise its budget in the study file, and submit it again")
        if ending is not Ending.INTERRUPTED and any(state in RECORDED for state in counts):
            self._reports.ask(study.name)
