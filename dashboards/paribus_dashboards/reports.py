"""Reports of studies, built beside the server: a large one takes seconds and memory that pages must not wait for."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from paribus.errors import ParibusError
from paribus.report.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.model import ReportModel
from paribus.report.read import read_study
from paribus.store.reader import Reader

WAIT_S = 0.4
"""Seconds for which a page waits for the first report of a study."""

REST = 5.0
"""A report is not built again before so many times the seconds that it took have passed."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far an arm's difference to the base is from being known.

    Attributes:
        label: the arm.
        n: pairs of seeds so far, or seeds of the arm.
        sd: standard deviation of the paired differences, or of one arm's scores; ``None`` below two seeds.
        paired: whether seeds are paired.
    """

    label: str
    n: int
    sd: float | None
    paired: bool


@dataclass(frozen=True, kw_only=True)
class Built:
    """A report and what was read off the same numbers.

    Attributes:
        model: the report.
        spreads: each arm but the base.
        seconds: how long it took.
    """

    model: ReportModel
    spreads: tuple[Spread, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is known of a study's report now.

    Attributes:
        built: the newest that is done; ``None`` while the first is being built, or where it cannot be.
        current: whether all results that there are have entered it.
        trouble: why the newest could not be built; empty if it could.
    """

    built: Built | None
    current: bool
    trouble: str = ""


def build(folder: Path, study: str) -> Built:
    """Build the report of a study, here and now.

    Raises:
        ParibusError: the study cannot be read.
    """
    began = time.perf_counter()
    with Reader.look(folder) as reader:
        data = read_study(reader, study)
    analysis = Analysis(data)
    spreads = tuple(
        Spread(
            label=analysis.label(arm),
            n=effect.estimate.n if effect else 0,
            sd=effect.estimate.sd if effect else None,
            paired=data.plan.paired,
        )
        for arm, effect in analysis.to_base.items()
    )
    return Built(model=build_report(data), spreads=spreads, seconds=time.perf_counter() - began)


def build_apart(folder: Path, study: str) -> Built:
    """Build it in a process of its own, which gives back its memory and leaves the server free.

    Raises:
        ParibusError: the study cannot be read, or the process was ended.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, folder, study), daemon=True)
    resource_tracker.ensure_running()  # which unblocks the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the server, which ends it
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sender.close()
    try:
        found: Built | str = receiver.recv()
    except EOFError:
        raise ParibusError("the process that built the report was ended; is there too little memory?") from None
    finally:
        process.join()
    if isinstance(found, str):
        raise ParibusError(found)
    return found


def _work(sender: Connection, folder: Path, study: str) -> None:
    try:
        sender.send(build(folder, study))
    except ParibusError as error:
        sender.send(str(error))


class Reports:
    """The newest report of each study that was asked for.

    Args:
        folder: the home folder.
        make: builds one.
    """

    def __init__(self, folder: Path, make: Callable[[Path, str], Built] = build_apart) -> None:
        self._folder = folder
        self._make = make
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}

    def of(self, study: str, stamp: Hashable, wait_s: float | None = WAIT_S) -> Report:
        """Return a study's report as far as it is known; has a newer one built if results came since.

        Args:
            study: its name.
            stamp: what the report depends on (:attr:`~paribus_dashboards.home.StudyNow.ended`).
            wait_s: seconds to wait if there is none yet; ``None``: until it is current.
        """
        with self._lock:
            state = self._states.setdefault(study, _State())
            due = wait_s is None or time.monotonic() >= state.rest_until
            if state.stamp != stamp and state.done.is_set() and (due or state.built is None):
                state.done.clear()
                threading.Thread(target=self._build, args=(study, stamp, state), daemon=True).start()
        if wait_s is None:
            state.done.wait()
        elif state.built is None:
            state.done.wait(wait_s)
        return Report(built=state.built, current=state.stamp == stamp, trouble=state.trouble)

    def _build(self, study: str, stamp: Hashable, state: _State) -> None:
        began = time.monotonic()
        try:
            state.built, state.trouble = self._make(self._folder, study), ""
        except ParibusError as error:
            state.trouble = str(error)
        finally:
            state.stamp = stamp
            state.rest_until = time.monotonic() + REST * (time.monotonic() - began)
            state.done.set()


class _State:
    def __init__(self) -> None:
        self.built: Built | None = None
        self.stamp: Hashable = None
        self.trouble = ""
        self.rest_until = 0.0
        self.done = threading.Event()
        self.done.set()
