"""Runs a study from its plan to its end: puts store, office, engine, shipper and scheduler together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paribus.engines.base import Engine, EngineSettings, load_engine
from paribus.engines.options import FILE as OPTIONS_FILE
from paribus.errors import StoreError
from paribus.schedule.ledger import unshipped
from paribus.schedule.office import Office
from paribus.schedule.progress import Follower, StudyView
from paribus.schedule.scheduler import PERIOD_S, Ending, Scheduler
from paribus.schedule.shipping import ShipperProcess, mlflow_is_installed
from paribus.schedule.signature import disk_failure
from paribus.store.database import Unreachable
from paribus.store.records import StudyRecord
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.study.plan import Plan

LOOK_S = 0.5
"""Seconds between two looks at the progress."""


_DYING_S = 2.0
"""Seconds for which a process that it had just started may hold the lock of one that was killed."""


class Display(Protocol):
    """Where a session shows what it does."""

    def say(self, line: str) -> None:
        """Show one line about something that happened."""

    def show(self, view: StudyView) -> None:
        """Show the progress."""


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


def run_study(plan: Plan, settings: Settings, display: Display) -> Summary:
    """Submit a plan, or go on with it, and stay until it has come to its end.

    Raises:
        StoreError: another process works in this home folder, a newer version of Paribus wrote the store, or the
            disk takes nothing.
        EngineError: the engine is not there, or refuses a job.
        RunnerError: the runner cannot make what the runs share.
    """
    begun = time.monotonic()
    home = settings.home.resolve()
    with ExitStack() as stack:
        stack.enter_context(_disk(home))
        home.mkdir(parents=True, exist_ok=True)
        stack.enter_context(only_one(home))
        store = stack.enter_context(Store.open(home))
        study = store.add_study(plan)
        runs = store.runs_of(study.id)
        trained = not all(r.terminal for r in runs)
        ending, mirror = Ending.COMPLETE, ""
        attempted = {r.fingerprint: r.token for r in runs if r.token > 0}
        if trained and study.paused:
            ending, trained = Ending.PAUSED, False
        if trained or unshipped(home, attempted):
            shipper = _shipper(home, stack, display)
            if trained:
                ending = _train(store, study, settings, shipper, display)
            mirror = _drain(shipper, display)
        counts = dict(store.counts(study.id))
        paused = store.paused(study.id)
    seconds = time.monotonic() - begun
    return Summary(
        ending=ending, trained=trained, study=study, counts=counts, paused=paused, mirror=mirror, seconds=seconds
    )


def _train(
    store: Store, study: StudyRecord, settings: Settings, shipper: ShipperProcess | None, display: Display
) -> Ending:
    with ExitStack() as stack:
        engine = _engine(study, settings, store.home)
        office = Office(store, engine.reach)
        stack.callback(office.close)
        stack.callback(engine.close)
        if engine.about:
            display.say(engine.about)
        scheduler = Scheduler(store, engine, study, office.address, say=display.say)
        stack.enter_context(_interrupts(scheduler, display))
        follower = Follower(store, study)
        pause, looked = threading.Event(), [0.0]

        def wait() -> None:
            now = time.monotonic()
            if now - looked[0] >= LOOK_S:
                looked[0] = now
                with suppress(Unreachable):  # the scheduler tells
                    display.show(follower.view(now))
                if shipper is not None:
                    shipper.ensure()
            pause.wait(PERIOD_S)

        scheduler.reconcile()
        scheduler.prepare(wait)
        ending = scheduler.run(wait)
        display.show(follower.view(time.monotonic()))
        return ending


def _engine(study: StudyRecord, settings: Settings, home: Path) -> Engine:
    found = home / OPTIONS_FILE
    options = settings.options or (found if found.exists() else None)
    arguments = EngineSettings(runner=study.plan.runner, folder=home / "engine", slots=settings.slots, options=options)
    return load_engine(settings.engine)(arguments)


def _shipper(home: Path, stack: ExitStack, display: Display) -> ShipperProcess | None:
    if not mlflow_is_installed():
        display.say("MLflow is not installed, so nothing is mirrored to it: pip install 'paribus[mlflow]'")
        return None
    shipper = ShipperProcess(home)
    stack.callback(shipper.close)
    return shipper


def _drain(shipper: ShipperProcess | None, display: Display) -> str:
    if shipper is None:
        return ""
    display.say("shipping the rest to MLflow")
    try:
        return shipper.drain(lambda: time.sleep(0.05))
    except KeyboardInterrupt:
        return "MLflow does not have everything yet: the rest is shipped the next time"


@contextmanager
def _disk(home: Path) -> Iterator[None]:
    """Tell the user of a disk that takes nothing."""
    try:
        yield
    except OSError as error:
        trouble = disk_failure(error, home)
        if trouble is None:
            raise
        raise StoreError(trouble.reason) from error


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the home folder: only one process at a time starts attempts in it.

    Raises:
        StoreError: another process holds it; the message names it.
    """
    from filelock import FileLock, Timeout

    holder = home / "run.pid"
    lock = FileLock(home / "run.lock")
    try:
        lock.acquire(timeout=_DYING_S)
    except Timeout:
        pid = holder.read_text().strip() if holder.exists() else "unknown"
        raise StoreError(
            f"another `paribus run` works in {home} (process {pid}). Wait for it, watch it with `paribus status`, "
            "or choose another folder with --home."
        ) from None
    try:
        holder.write_text(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()


@contextmanager
def _interrupts(scheduler: Scheduler, display: Display) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the scheduler with grace, and a second one by force."""

    def interrupt(number: int, frame: Any) -> None:
        again = scheduler.interrupted
        scheduler.interrupt()
        display.say("ending the runs by force" if again else "stopping: the runs write a checkpoint; again: by force")

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
