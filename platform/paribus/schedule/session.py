"""Runs a study from its plan to its end: puts store, office, engine, shipper and scheduler together."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.engines.base import Engine, load_engine, refuse_too_large
from paribus.engines.options import engine_settings
from paribus.errors import StoreError
from paribus.schedule.follow import follow
from paribus.schedule.growth import Grown, added_text, grow, submit, ungrown
from paribus.schedule.holder import hold, holder_of
from paribus.schedule.hooks import Hooks
from paribus.schedule.ledger import unshipped
from paribus.schedule.news import News
from paribus.schedule.office import Office
from paribus.schedule.progress import Display
from paribus.schedule.scheduler import PERIOD_S, Ending, Scheduler
from paribus.schedule.shipping import ShipperProcess, mlflow_is_installed
from paribus.schedule.signature import disk_failure
from paribus.store.database import Unreachable
from paribus.store.recorded import recorded_runs
from paribus.store.records import StudyRecord
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.study.plan import Plan

LOOK_S = 0.5
"""Seconds between two looks at the progress."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a study is run.

    Attributes:
        home: home folder.
        engine: name of the engine.
        slots: runs at a time; ``None``: what the engine suggests.
        options: file with the options of engines; ``None``: ``engines.yaml`` in the home folder, if it is there.
    """

    home: Path
    engine: str = "local"
    slots: int | None = None
    options: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a session ended.

    Attributes:
        trained: whether any attempt could be made: False if the study was complete or paused before.
        paused: why no run is claimed any more; empty if nothing is wrong.
        mirror: what is wrong with the mirror in MLflow; empty if nothing is.
        seconds: wall time.
    """

    ending: Ending
    trained: bool
    study: StudyRecord
    counts: dict[RunState, int]
    paused: str
    mirror: str
    seconds: float


def run_study(plan: Plan, settings: Settings, display: Display, grown: Grown = ungrown) -> Summary:
    """Submit a plan, or go on with it and with what has grown from it, and stay until it has come to its end.

    Where a `paribus scheduler` serves the home folder the study is left to it, and only followed.

    Raises:
        StoreError: another process works in this home folder, a newer version of Paribus wrote the store, or the
            disk takes nothing.
        EngineError: the engine is not there, or refuses a job.
        RunnerError: the runner cannot make what the runs share.
    """
    begun = time.monotonic()
    home = settings.home.resolve()
    with ExitStack() as stack:
        stack.enter_context(disk(home))
        home.mkdir(parents=True, exist_ok=True)
        holder = holder_of(home)
        served = holder is not None and holder.serves_all
        if not served:
            stack.enter_context(hold(home, "paribus run", settings.engine))
        store = stack.enter_context(Store.open(home))
        made = engine_settings(plan.runner, home, settings.slots, settings.options)
        if plan.resources.declared and not served:
            recorded = recorded_runs(home, [r.fingerprint for r in plan.runs])
            if len(recorded) < len(plan.runs):
                refuse_too_large(plan.resources, settings.engine, made)
        study = submit(store, plan, grown)
        runs = store.runs_of(study.id)
        trained = not all(r.terminal for r in runs)
        ending, mirror = Ending.COMPLETE, ""
        attempted = {r.fingerprint: r.token for r in runs if r.token > 0}
        if trained and study.paused:
            ending, trained = Ending.PAUSED, False
        if served and trained:
            ending, study = _follow(store, study, display, grown)
        elif not served and (trained or unshipped(home, attempted)):
            shipper = start_shipper(home, stack, display)
            if trained:
                engine = load_engine(settings.engine)(made)
                ending, study = _train(store, study, engine, shipper, display, grown)
            mirror = drain(shipper, display)
        counts = dict(store.counts(study.id))
        paused = store.paused(study.id)
    seconds = time.monotonic() - begun
    return Summary(
        ending=ending, trained=trained, study=study, counts=counts, paused=paused, mirror=mirror, seconds=seconds
    )


def _follow(store: Store, study: StudyRecord, display: Display, grown: Grown) -> tuple[Ending, StudyRecord]:
    """Follow a study and what grows from it; the scheduler that serves it asks the same and submits the same."""
    while True:
        ending = follow(store, study, display)
        later = grow(store, study, grown) if ending is Ending.COMPLETE else None
        if later is None:
            return ending, study
        study = later


def _train(
    store: Store,
    study: StudyRecord,
    engine: Engine,
    shipper: ShipperProcess | None,
    display: Display,
    grown: Grown,
) -> tuple[Ending, StudyRecord]:
    with workplace(store, engine, display) as scheduler:
        if study.plan.resources.declared:
            display.say(f"the study asks for {study.plan.resources.about()} a run")
        while True:
            ending = _train_plan(store, study, scheduler, shipper, display)
            later = grow(store, study, grown) if ending is Ending.COMPLETE else None
            if later is None:
                return ending, study
            display.say(added_text(study, later))
            study = later


def _train_plan(
    store: Store, study: StudyRecord, scheduler: Scheduler, shipper: ShipperProcess | None, display: Display
) -> Ending:
    news = News(store, study, display.say, Hooks(study.plan, display.say))
    pause, looked, endings = threading.Event(), [0.0], dict[int, Ending]()

    def wait() -> None:
        now = time.monotonic()
        if now - looked[0] >= LOOK_S:
            looked[0] = now
            with suppress(Unreachable):  # the scheduler tells
                display.show(news.view(now))
            if shipper is not None:
                shipper.ensure()
        pause.wait(PERIOD_S)

    def enough(ended: Mapping[int, Ending]) -> bool:
        endings.update(ended)
        return study.id in endings and scheduler.idle

    scheduler.take_up(study)
    scheduler.run(wait, enough)
    display.show(news.view(time.monotonic()))
    return endings[study.id]


@contextmanager
def workplace(store: Store, engine: Engine, display: Display, *, pause: bool = False) -> Iterator[Scheduler]:
    """Yield a scheduler with its office, which has cleared up after the one before; close the engine at the end.

    Ctrl-C and SIGTERM stop it with grace, a second one by force, a third one at once.

    Args:
        store: the store, open for writing.
        engine: where runs are started.
        display: where it says what it does.
        pause: whether it pauses studies that cannot be prepared or started, instead of raising.

    Raises:
        EngineError: the engine cannot be reached from its jobs.
    """
    with ExitStack() as stack:
        office = Office(store, engine.reach)
        stack.callback(office.close)
        stack.callback(engine.close)
        if engine.about:
            display.say(engine.about)
        scheduler = Scheduler(store, engine, office.address, say=display.say, pause=pause)
        stack.enter_context(_interrupts(scheduler, display))
        scheduler.reconcile()
        yield scheduler


def start_shipper(home: Path, stack: ExitStack, display: Display) -> ShipperProcess | None:
    """Return the shipper of a home folder, closed with the stack; ``None`` if there is no MLflow."""
    if not mlflow_is_installed():
        display.say("MLflow is not installed, so nothing is mirrored to it: pip install 'paribus[mlflow]'")
        return None
    shipper = ShipperProcess(home)
    stack.callback(shipper.close)
    return shipper


def drain(shipper: ShipperProcess | None, display: Display) -> str:
    """Ship what is left; return what is wrong, in one sentence, or nothing."""
    if shipper is None:
        return ""
    display.say("shipping the rest to MLflow")
    try:
        return shipper.drain(lambda: time.sleep(0.05))
    except KeyboardInterrupt:
        return "MLflow does not have everything yet: the rest is shipped the next time"


@contextmanager
def disk(home: Path) -> Iterator[None]:
    """Tell the user of a disk that takes nothing."""
    try:
        yield
    except OSError as error:
        trouble = disk_failure(error, home)
        if trouble is None:
            raise
        raise StoreError(trouble.reason) from error


@contextmanager
def _interrupts(scheduler: Scheduler, display: Display) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the scheduler with grace, a second one by force, and a third one at once."""

    def interrupt(number: int, frame: Any) -> None:
        again = scheduler.interrupted
        scheduler.interrupt()
        by_force = "ending the runs by force; again: leave those that do not end"
        display.say(by_force if again else "stopping: the runs write a checkpoint; again: by force")

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
