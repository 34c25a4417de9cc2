"""The serving loop, and `paribus run`: serves one study until it ends, or attaches to the scheduler of the home."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from paribus.contract import Resources
from paribus.engines.base import EngineSettings, load_engine, refuse_too_large
from paribus.engines.options import engine_settings
from paribus.engines.process import handled
from paribus.errors import EngineError, ParibusError, StoreError, install_command
from paribus.failures import disk_failure
from paribus.home import make_home
from paribus.mlflow_sync.copies import Copies, unwritten
from paribus.mlflow_sync.event_files import EventFiles, tensorboard_is_installed
from paribus.mlflow_sync.offsets import unsynced
from paribus.mlflow_sync.process import SyncProcess, mlflow_is_installed
from paribus.mlflow_sync.wandb_files import WandbFiles, wandb_is_installed
from paribus.monitor.alerts import Alerts, Webhooks
from paribus.monitor.progress import Display, StudyView
from paribus.rpc.server import RpcServer
from paribus.scheduler.adaptive import Adaptive, growth_text
from paribus.scheduler.attach import Attached
from paribus.scheduler.home_lock import lock_home, lock_owner
from paribus.scheduler.scheduler import Ending, Scheduler
from paribus.store.database import StudyDeleted, Unreachable, refused
from paribus.store.history import recorded_runs
from paribus.store.models import StudyRecord
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.study.plan import Plan

T = TypeVar("T")

LOOK_S = 0.5
"""Seconds between two looks at what was submitted and at the MLflow sync."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How studies are served.

    Attributes:
        home: home folder.
        engine: name of the engine.
        slots: runs at a time; ``None``: what the engine suggests.
        options: file with the options of engines; ``None``: ``engines.yaml`` in the home folder, if there is one.
        adaptive: grows the studies that have a rule for it.
        at_end: called when :func:`run_study` has trained, before the remaining metrics are copied.
    """

    home: Path
    engine: str = "local"
    slots: int | None = None
    options: Path | None = None
    adaptive: Adaptive = field(default_factory=Adaptive)
    at_end: Callable[[Ending], None] = lambda _ending: None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A study that ended while it was served."""

    study: StudyRecord
    ending: Ending
    counts: Mapping[RunState, int]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What `paribus run` has done.

    Attributes:
        ending: why it stopped.
        trained: whether any attempt could be made: False if the study was complete or paused before.
        paused: why the study is paused; empty if it isn't.
        mirror: why MLflow doesn't have all metrics; empty if it has.
        seconds: wall time.
    """

    ending: Ending
    trained: bool
    study: StudyRecord
    counts: dict[RunState, int]
    paused: str
    mirror: str
    seconds: float


def run_study(plan: Plan, settings: Settings, display: Display) -> Summary:
    """Submit a plan and serve its study, with all that it grows to, until it ends.

    If a `paribus scheduler` serves the home folder, attach to it instead.

    Raises:
        StoreError: another process works in this home folder, a newer version of Paribus wrote the store, or the disk
            can't be written.
        EngineError: the engine is missing, or refuses a job.
        RunnerError: the runner can't make what the runs share.
    """
    begun = time.monotonic()
    home = settings.home.resolve()
    with ExitStack() as stack:
        stack.enter_context(explain_disk_errors(home))
        make_home(home)
        owner = lock_owner(home)
        if owner is not None and not owner.is_scheduler:
            owner = None
        if owner is None:
            stack.enter_context(lock_home(home, "paribus run", settings.engine))
        store = stack.enter_context(patiently(lambda: Store.open(home), display))
        declared = owner is None and plan.resources.declared
        prints = [r.fingerprint for r in plan.runs]
        unrecorded = declared and len(patiently(lambda: recorded_runs(home, prints), display)) < len(plan.runs)
        made = engine_settings(plan.runner, home, settings.slots, settings.options)
        if unrecorded:  # before anything is submitted
            refuse_too_large(plan.resources, settings.engine, made)
        study = patiently(lambda: settings.adaptive.submit(store, plan), display)
        runs = patiently(lambda: store.runs_of(study.id), display)
        trained, ending, sync = not all(r.terminal for r in runs), Ending.COMPLETE, None
        attempted = {r.fingerprint: r.token for r in runs if r.token > 0}
        if trained and study.paused:
            ending, trained = Ending.PAUSED, False
        if owner is not None:
            if trained:
                display.say(f"Attached to {owner}. Ctrl-C detaches; the study keeps running.")
                loop = ServingLoop(store, Attached(store), display, settings.adaptive, webhooks=False)
                ending, study = loop.run_one(study)
        elif trained or _uncopied(home, plan, attempted):
            sync = start_sync(home, stack, display, files=bool(_file_copies(plan.mirror)))
            if trained:
                with working_scheduler(store, settings.engine, made, display, resources=plan.resources) as scheduler:
                    ending, study = ServingLoop(store, scheduler, display, settings.adaptive, sync).run_one(study)
        settings.at_end(ending)  # first, so that MLflow gets the report
        mirror = drain(sync, display)
        return Summary(
            ending=ending,
            trained=trained,
            study=study,
            counts=dict(store.counts(study.id)),
            paused=store.paused(study.id),
            mirror=mirror,
            seconds=time.monotonic() - begun,
        )


# ---- the loop ------------------------------------------------------------------------------------


Driver: TypeAlias = Scheduler | Attached
"""What moves studies forward: this process's scheduler, or nothing but a look at what another one does."""


class ServingLoop:
    """Takes turns, shows progress, sends alerts, and grows adaptive studies, until the studies it took up have ended.

    Args:
        store: the store, open for writing.
        driver: moves the studies forward.
        display: shows progress and messages.
        adaptive: grows the studies that have a rule for it.
        sync: copies metrics to MLflow, unless ``None``.
        webhooks: whether alerts go to the webhooks of the study, too.

    Attributes:
        ended: the studies that have ended, in this order.
    """

    show_s = 0.5
    """Seconds between two looks at the progress."""

    def __init__(
        self,
        store: Store,
        driver: Driver,
        display: Display,
        adaptive: Adaptive,
        sync: SyncProcess | None = None,
        *,
        webhooks: bool = True,
    ) -> None:
        self.ended: list[Ended] = []
        self._store = store
        self._driver = driver
        self._display = display
        self._adaptive = adaptive
        self._sync = sync
        self._webhooks = webhooks
        self._alerts: dict[int, Alerts] = {}
        self._over: dict[int, Ending] = {}
        self._first: list[StudyRecord] = []
        self._begun = False
        self._next_look = self._next_show = 0.0

    def run_one(self, study: StudyRecord) -> tuple[Ending, StudyRecord]:
        """Serve a study until it ends or, if this process is only attached, until Ctrl-C.

        Returns:
            Why it ended, and the study with its newest plan.
        """
        self._first = [study]
        try:
            self.run()
        except KeyboardInterrupt:  # a scheduler of this process handles the signal itself
            return Ending.DETACHED, next(iter(self._driver.studies.values()), study)
        return self.ended[-1].ending, self.ended[-1].study

    def run(self) -> None:
        """Take turns until nothing is left to do.

        If the driver pauses studies that can't go on, a study that is deleted meanwhile is dropped.
        While the database can't be reached, the loop tries again: runs go on as long as their leases allow. If it
        pauses studies that can't go on, it also tries again when the engine can't be asked: no study is at fault.

        Raises:
            Unreachable: the database can't be reached, and the user asked to stop.
            StudyDeleted: studies aren't paused, and one was deleted.
            EngineError: the same of the engine; or, if studies aren't paused, it refused a job.
        """
        away = False
        while True:
            try:
                if not self._begun:
                    self._begin()
                    self._begun = True
                if self._is_done(self._driver.turn()):
                    return
                away = False
            except (Unreachable, EngineError) as error:
                if self._driver.interrupted or not (self._driver.pause or isinstance(error, Unreachable)):
                    raise
                if not away:
                    self._display.say(f"{error} Trying again; Ctrl-C stops.")
                away = True
            self._wait()

    def _begin(self) -> None:
        """Take up what is there at the start; called again if the database could not be reached."""
        for study in self._first:
            self.take_up(study)

    def take_up(self, study: StudyRecord) -> None:
        """Serve a study from the next turn on."""
        say = self._display.say
        webhooks = Webhooks(study.plan, say) if self._webhooks else None
        self._alerts[study.id] = Alerts(self._store, study, say, webhooks)
        self._driver.take_up(study)

    def _wait(self) -> None:
        now = time.monotonic()
        with suppress(Unreachable):  # the next turn reports it
            if not self._begun:
                time.sleep(LOOK_S)
                return
            if now >= self._next_look:
                self._next_look = now + LOOK_S
                if self._sync is not None:
                    self._sync.ensure()
                if not self._driver.interrupted:
                    self._look()
            if now >= self._next_show:
                self._next_show = now + self.show_s
                for number in self._driver.studies:
                    self._show(replace(self._alerts[number].view(now), preparing=self._driver.preparing(number)))
        time.sleep(self._driver.period_s)

    def _is_done(self, ended: Mapping[int, Ending]) -> bool:
        self._over.update(ended)  # kept until handled: the database may go away meanwhile
        for number in list(self._over):
            try:
                if self._over[number] is not Ending.COMPLETE or not self._grow(number):
                    self._close(number, self._over[number])
            except StudyDeleted:
                if not self._driver.pause:
                    raise
                self._alerts.pop(number, None)
            del self._over[number]
        return self._driver.idle and (self._driver.interrupted or self._nothing_left())

    def _grow(self, number: int) -> bool:
        """Submit and take up what the rule of a complete study asks for; return whether it asks for anything."""
        study = self._store.study_by_id(number)
        try:
            later = self._adaptive.grow(self._store, study)
        except (Unreachable, StudyDeleted):
            raise
        except ParibusError as error:
            if not self._driver.pause:
                raise
            self._store.pause(number, str(error))
            self._over[number] = Ending.PAUSED
            return False
        if later is None:
            return False
        self._alerts.pop(number, None)
        self._display.say(f"{study.name}: {growth_text(study, later)}")
        self.take_up(later)
        return True

    def _close(self, number: int, ending: Ending) -> None:
        """Show the last progress of a study, and note that it has ended."""
        study, counts = self._store.study_by_id(number), self._store.counts(number)
        if (alerts := self._alerts.get(number)) is not None:
            self._show(alerts.view(time.monotonic()))
            del self._alerts[number]
        self.ended.append(Ended(study=study, ending=ending, counts=counts))

    def _show(self, view: StudyView) -> None:
        self._display.show(view)

    def _look(self) -> None:
        """Do what is due every :data:`LOOK_S`: nothing for a single study."""

    def _nothing_left(self) -> bool:
        """Return whether an idle loop may end."""
        return True


# ---- what surrounds it ---------------------------------------------------------------------------


def patiently(ask: Callable[[], T], display: Display, interrupted: Callable[[], bool] = lambda: False) -> T:
    """Return what ``ask`` returns. While the database can't be reached, say so once, and ask again.

    Raises:
        Unreachable: the database can't be reached, and the user asked to stop; or the server answers, but refuses this
            user or has no such database.
    """
    away = False
    while True:
        try:
            return ask()
        except Unreachable as error:
            if interrupted() or refused(error):
                raise
            if not away:
                display.say(f"{error} Trying again; Ctrl-C stops.")
            away = True
        time.sleep(LOOK_S)


@contextmanager
def working_scheduler(
    store: Store,
    engine_name: str,
    made: EngineSettings,
    display: Display,
    *,
    resources: Resources | None = None,
    pause: bool = False,
) -> Iterator[Scheduler]:
    """Yield a scheduler with its engine and RPC server, after it has cleaned up after the previous one.

    With ``resources``, what the engine says of itself holds for studies that declare these.
    Ctrl-C and SIGTERM let the runs write a checkpoint; a second signal kills them, a third leaves them. With ``pause``,
    studies that can't be set up or started are paused; otherwise their errors are raised.

    Raises:
        EngineError: the engine is missing, or its jobs can't reach this process.
    """
    engine = load_engine(engine_name)(made)
    with ExitStack() as stack:
        server = RpcServer(store, engine.reach)
        stack.callback(server.close)
        stack.callback(engine.close)
        if about := engine.about(resources or Resources()):
            display.say(about)
        scheduler = Scheduler(
            store, engine, server.address, say=display.say, pause=pause, others=lambda name: load_engine(name)(made)
        )

        def interrupt() -> None:
            again = scheduler.interrupted
            server.stopping()
            scheduler.interrupt()
            killing = "killing the runs; press Ctrl-C again to leave those that don't end"
            display.say(killing if again else "stopping: the runs write a checkpoint; press Ctrl-C again to kill")

        stack.enter_context(handled((signal.SIGINT, signal.SIGTERM), interrupt))
        patiently(scheduler.reconcile, display, lambda: scheduler.interrupted)
        yield scheduler


def start_sync(home: Path, stack: ExitStack, display: Display, *, files: bool) -> SyncProcess | None:
    """Return the sync of a home folder, closed with the stack; ``None`` if it would have nothing to copy.

    Args:
        home: the home folder.
        stack: closes the sync.
        display: says what is missing.
        files: whether studies may want copies in files that can be written here.
    """
    if not mlflow_is_installed():
        display.say(f"MLflow is not installed, so metrics aren't copied to it: {install_command('mlflow')}")
        if not files:
            return None
    sync = SyncProcess(home)
    stack.callback(sync.close)
    return sync


def _file_copies(mirror: Collection[str]) -> tuple[type[Copies], ...]:
    """Return the kinds of files that a study wants and that can be written here."""
    kinds = (("tensorboard", EventFiles, tensorboard_is_installed), ("wandb", WandbFiles, wandb_is_installed))
    return tuple(kind for name, kind, installed in kinds if name in mirror and installed())


def _uncopied(home: Path, plan: Plan, runs: Mapping[str, int]) -> bool:
    """Return whether copies of ended runs (with their newest token) lack something that this machine can copy."""
    files = any(unwritten(home, kind, runs) for kind in _file_copies(plan.mirror))
    return files or ("mlflow" in plan.mirror and bool(unsynced(home, runs)))


def drain(sync: SyncProcess | None, display: Display) -> str:
    """Upload what MLflow doesn't have yet; return what went wrong, in one sentence, or an empty string."""
    if sync is None:
        return ""
    display.say("copying remaining metrics")
    try:
        return sync.drain(lambda: time.sleep(0.05))
    except KeyboardInterrupt:
        return "MLflow doesn't have all metrics yet: the next start uploads the rest"


@contextmanager
def explain_disk_errors(home: Path) -> Iterator[None]:
    """Turn an error of the disk, such as a full one, into a :class:`StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        trouble = disk_failure(error, home)
        if trouble is None:
            raise
        raise StoreError(trouble.reason) from error
