"""`paribus scheduler`: serves all studies of a home folder, those that are submitted later, too, and writes reports."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from paribus.contract import EXTERNAL, load_runner
from paribus.engines.options import engine_settings
from paribus.errors import ParibusError, RunFolderError, TooLarge
from paribus.failures import storable
from paribus.home import at_home, make_home
from paribus.mlflow_sync.event_files import tensorboard_is_installed
from paribus.mlflow_sync.process import SyncProcess
from paribus.mlflow_sync.wandb_files import wandb_is_installed
from paribus.monitor.progress import Display, StudyView
from paribus.run_folder.folder import read_json, write_json
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.home_lock import SCHEDULER, beat, lock_home
from paribus.scheduler.scheduler import Ending, Scheduler
from paribus.scheduler.serve import (
    Ended,
    ServingLoop,
    Settings,
    drain,
    explain_disk_errors,
    patiently,
    start_sync,
    working_scheduler,
)
from paribus.store.database import StudyDeleted
from paribus.store.models import StudyRecord, StudySummary
from paribus.store.states import RECORDED, TERMINAL
from paribus.store.store import Store
from paribus.study.evaluation import arm_hashes
from paribus.study.expand import matches
from paribus.text import plural

UNFINISHED = "served.json"
"""File of the home folder with the names of the studies whose end was not reported, or whose report isn't written."""

LOG = "report.log"
"""File of the home folder with the output of the newest report job."""


def serve_home(settings: Settings, display: Display, *, reports: Path, until_idle: bool = False) -> tuple[Ended, ...]:
    """Serve the studies of a home folder until Ctrl-C or SIGTERM.

    Args:
        settings: home folder and engine.
        display: shows progress and messages.
        reports: folder in which each study that ends gets a folder with its report.
        until_idle: also end when nothing is left to do.

    Returns:
        The studies that have ended, in this order; with ``until_idle``, followed by those that have runs to do, but are
        paused or out of budget.

    Raises:
        StoreError: another process works in this home folder, a newer version of Paribus wrote the store, or the disk
            can't be written.
        EngineError: the engine is missing.
    """
    home = settings.home.resolve()
    with ExitStack() as stack:
        stack.enter_context(explain_disk_errors(home))
        make_home(home)
        stack.enter_context(lock_home(home, SCHEDULER, settings.engine))
        store = stack.enter_context(patiently(lambda: Store.open(home), display))
        sync = start_sync(home, stack, display, files=tensorboard_is_installed() or wandb_is_installed())
        runner = patiently(lambda: _likely_runner(store), display)
        made = engine_settings(runner, home, settings.slots, settings.options)
        scheduler = stack.enter_context(working_scheduler(store, settings.engine, made, display, pause=True))
        display.say(f"serving {home} on the engine {settings.engine}: paribus submit STUDY.yaml{at_home(home)}")
        jobs = ReportJobs(home, reports, display.say)
        stack.callback(jobs.close)
        loop = HomeLoop(store, scheduler, display, settings.adaptive, sync, jobs, until_idle=until_idle)
        loop.run()
        trouble = drain(sync, display)
        idle = until_idle and not scheduler.interrupted
        left = patiently(loop.left, display) if idle else ()
        for each in left:
            display.say(f"{each.study.name}: {plural(_open_runs(each), 'run is', 'runs are')} left: {_why(each)}")
        finished = "nothing is left to do" if not left else "nothing is left that can be done now"
        display.say(trouble or (finished if idle else "stopped"))
        known = {e.study.id for e in loop.ended}
        return (*loop.ended, *(each for each in left if each.study.id not in known))


def _likely_runner(store: Store) -> str:
    """Return the runner whose heavy parts the engine may import ahead of time."""
    waiting = [s for s in store.summaries() if s.open]
    runner = store.study_by_id(waiting[-1].id).plan.runner if waiting else EXTERNAL
    return "native" if runner == EXTERNAL else runner


def _open_runs(left: Ended) -> int:
    return sum(n for state, n in left.counts.items() if state not in TERMINAL)


def _why(left: Ended) -> str:
    if left.ending is Ending.PAUSED:
        return f"it is paused (paribus status {left.study.name}; paribus retry {left.study.name} lifts it)"
    return "its budget does not allow another"


class HomeLoop(ServingLoop):
    """The serving loop for all studies of a home folder; with ``until_idle`` it ends when nothing is left to do."""

    show_s = 5.0

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        display: Display,
        adaptive: Adaptive,
        sync: SyncProcess | None,
        reports: ReportJobs,
        *,
        until_idle: bool,
    ) -> None:
        super().__init__(store, scheduler, display, adaptive, sync)
        self._scheduler = scheduler
        self._reports = reports
        self._until_idle = until_idle
        self._code: dict[str, str] = {}
        self._replaced: set[str] = set()
        self._external: dict[int, bool] = {}
        self._file = store.home / UNFINISHED
        self._written: list[str] | None = None

    def left(self) -> tuple[Ended, ...]:
        """Return the newest studies that have runs to do, and why these are not done."""
        newest = {entry.name: entry for entry in self._store.summaries()}
        return tuple(
            Ended(
                study=self._store.study_by_id(entry.id),
                ending=Ending.PAUSED if entry.paused else Ending.BUDGET,
                counts=self._store.counts(entry.id),
            )
            for entry in newest.values()
            if entry.open and not self._is_external(entry.id)
        )

    def _begin(self) -> None:
        self._recall()
        self._find_studies()

    def _wait(self) -> None:
        beat(self._store.home)
        super()._wait()

    def _look(self) -> None:
        self._find_studies()
        self._reports.turn()
        self._remember()

    def _nothing_left(self) -> bool:
        if not self._until_idle:
            return False
        self._find_studies()
        if not self._scheduler.idle or self._over or self._reports.turn() > 0:
            return False
        self._remember()
        return True

    def _show(self, view: StudyView) -> None:
        if view.live:
            self._display.show(view)

    def _close(self, number: int, ending: Ending) -> None:
        super()._close(number, ending)
        study, counts = self.ended[-1].study, self.ended[-1].counts
        shown = ", ".join(f"{n} {state.lower().replace('_', ' ')}" for state, n in counts.items())
        self._display.say(f"{study.name}: {ending}: {shown}")
        if ending is Ending.PAUSED:
            self._display.say(f"{study.paused}\nFix it, then: paribus retry {study.name}")
        if ending is Ending.BUDGET:
            self._display.say(f"{study.name}: raise its budget in the study file, and submit it again")
        if ending is not Ending.INTERRUPTED and any(state in RECORDED for state in counts):
            self._reports.ask(study.name)

    # ---- what the next scheduler needs to know ---------------------------------------------------

    def _remember(self) -> None:
        """Write down the studies whose end is not reported, or whose report isn't written."""
        names = sorted({study.name for study in self._scheduler.studies.values()} | self._reports.asked)
        if names != self._written:
            write_json(self._file, names)
            self._written = names

    def _recall(self) -> None:
        """Find the studies whose end the previous scheduler was killed too early to report."""
        try:
            names = read_json(self._file)
        except RunFolderError:
            return
        for entry in {e.name: e for e in self._store.summaries() if e.name in names}.values():
            if not entry.open:
                self._over[entry.id] = Ending.COMPLETE
            elif entry.paused:
                self._over[entry.id] = Ending.PAUSED
            elif not self._scheduler.affords(entry.name):
                self._over[entry.id] = Ending.BUDGET

    # ---- which studies ---------------------------------------------------------------------------

    def _find_studies(self) -> None:
        """Take up the studies that can go on, and drop plans that a newer one of the same name has replaced."""
        newest = {entry.name: entry for entry in self._store.summaries()}
        for number, study in list(self._scheduler.studies.items()):
            if study.name in newest and newest[study.name].id != number:
                self._display.say(f"{study.name}: replaced by a plan that was submitted later")
                self._scheduler.drop(number)
                del self._alerts[number]
                self._replaced.add(study.name)
        for entry in newest.values():
            with suppress(StudyDeleted):
                self._consider(entry)

    def _consider(self, entry: StudySummary) -> None:
        """Take up a study if it can go on; if it is served already, use its edited terms.

        Raises:
            StudyDeleted: it was deleted meanwhile.
        """
        served = self._scheduler.studies.get(entry.id)
        if served is None:
            if not entry.open or entry.paused or self._is_external(entry.id):
                return
            if self._scheduler.affords(entry.name):
                self._replaced.discard(entry.name)
                self._check_and_take_up(self._store.study_by_id(entry.id))
            elif entry.name in self._replaced and not self._scheduler.has_attempts(entry.name):
                self._replaced.discard(entry.name)
                self._over[entry.id] = Ending.BUDGET
        elif served.submitted_at != entry.submitted_at and not entry.paused:
            self._update(served, self._store.study_by_id(entry.id))

    def _is_external(self, number: int) -> bool:
        """Return whether the runs of a study are not started here."""
        if number not in self._external:
            self._external[number] = self._store.study_by_id(number).plan.external
        return self._external[number]

    def _update(self, before: StudyRecord, study: StudyRecord) -> None:
        """Use the edited priority, weight and resources of a study that is served from its next run on."""
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

    def _check_and_take_up(self, study: StudyRecord) -> None:
        obstacle = self._obstacle(study)
        if obstacle:
            self._store.pause(study.id, obstacle)
            self._close(study.id, Ending.PAUSED)
            return
        counts = self._store.counts(study.id)
        known = sum(n for state, n in counts.items() if state in RECORDED)
        runs = f"{plural(sum(counts.values()), 'run')}, {known} with a result"
        self._display.say(f"{study.name}: {runs}, priority {study.priority}, weight {study.weight:g}")
        self.take_up(study)

    def _obstacle(self, study: StudyRecord) -> str:
        """Return why training a study now would not give results for its fingerprints; empty if it would."""
        plan = study.plan
        arm = plan.arm(plan.base)
        try:
            runner = load_runner(plan.runner)
            self._scheduler.need(study)
            hashes = arm_hashes(runner, arm.recipe, plan.options, plan.evaluate)
        except ParibusError as error:
            return str(error)
        except Exception as error:  # a runner may be anyone's code
            return storable(f"the runner `{plan.runner}` cannot be used: {type(error).__name__}: {error}")
        if self._code.setdefault(plan.runner, hashes.code) != hashes.code:
            return f"the code of the runner `{plan.runner}` has changed since this scheduler loaded it: restart it."
        if not matches(plan, arm, hashes):
            return "code, data or model have changed since it was submitted: submit it again, with its file."
        return ""


class ReportJobs:
    """Lets processes of their own write reports, one after the other: a report imports much and takes long.

    Args:
        home: home folder.
        folder: where each study gets a folder.
        say: prints one line.
    """

    def __init__(self, home: Path, folder: Path, say: Callable[[str], None]) -> None:
        self._home = home
        self._folder = folder
        self._say = say
        self._asked = deque[str]()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def asked(self) -> frozenset[str]:
        """The studies whose reports aren't written yet."""
        return frozenset(self._asked)

    def ask(self, study: str) -> None:
        """Ask for the report of a study."""
        self._asked.append(study)

    def turn(self) -> int:
        """Start the next report if none is being written; return how many are left."""
        if self._process is not None and self._process.poll() is not None:
            self._announce(self._asked.popleft(), self._process.returncode)
            self._process = None
        if self._process is None and self._asked:
            name = self._asked[0]
            command = [sys.executable, "-m", "paribus", "report", name, "--home", str(self._home)]
            try:
                with (self._home / LOG).open("wb") as log:
                    self._process = subprocess.Popen(
                        [*command, "--out", str(self._folder / name)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # Ctrl-C in the terminal reaches only the scheduler
                    )
            except OSError as error:  # runs train on
                self._asked.popleft()
                self._say(f"{name}: no report: {error}. Write it later: paribus report {name}{at_home(self._home)}")
        return len(self._asked)

    def close(self) -> None:
        """Kill the job that runs; `paribus report` can write its report at any time."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _announce(self, study: str, status: int) -> None:
        if status == 0:
            self._say(f"{study}: report in {self._folder / study}")
            return
        output = list[str]()
        with suppress(OSError):  # someone has deleted it
            output = (self._home / LOG).read_text(errors="replace").strip().splitlines()
        self._say(f"{study}: no report: {output[-1] if output else f'exit status {status}'}")
