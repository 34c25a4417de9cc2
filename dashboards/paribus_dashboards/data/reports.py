"""Reports of studies, built in a process of their own: a large one takes seconds and more memory than a server has."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from paribus.errors import ParibusError
from paribus.masking import describe
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.collect import read_study
from paribus.report.model import ReportModel
from paribus.store.reader import Reader

WAIT_S = 0.4
"""Seconds for which a page waits for the first report of a study."""

PAUSE = 5.0
"""A report is built again only after this many times the seconds that the last time took."""

AGAIN_S = 5.0
"""Seconds after which a report that could not be built is tried again."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The spread of an arm's difference to the base, from which the number of seeds still needed follows.

    Attributes:
        label: label of the arm.
        n: pairs of seeds so far; seeds of the arm if they are not paired.
        sd: standard deviation of the paired differences, or of one arm's scores; ``None`` below two seeds.
        paired: whether seeds are paired.
    """

    label: str
    n: int
    sd: float | None
    paired: bool


@dataclass(frozen=True, kw_only=True)
class Built:
    """A report, and more from the same numbers.

    Attributes:
        model: the report.
        spreads: one for each arm except the base.
    """

    model: ReportModel
    spreads: tuple[Spread, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The newest report of a study.

    Attributes:
        built: the newest finished report; ``None`` while the first one is being built, or if it cannot be built.
        current: whether it includes all results.
        trouble: why the newest one could not be built; empty if it could.
    """

    built: Built | None
    current: bool
    trouble: str = ""


def build(folder: Path, study: str) -> Built:
    """Build the report of a study in this process.

    Raises:
        ParibusError: the study cannot be read.
    """
    with Reader.open(folder) as reader:
        data = read_study(reader, study)
    analysis = Analysis(data)
    spreads = tuple(
        Spread(
            label=analysis.plan.arm(arm).label,
            n=effect.estimate.n if effect else 0,
            sd=effect.estimate.sd if effect else None,
            paired=analysis.paired,
        )
        for arm, effect in analysis.to_base.items()
    )
    return Built(model=build_report(data), spreads=spreads)


def build_in_process(folder: Path, study: str) -> Built:
    """Build the report of a study in a process of its own, which returns its memory and leaves the server responsive.

    Raises:
        ParibusError: the study cannot be read, or the process was killed.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, folder, study), daemon=True)
    resource_tracker.ensure_running()  # now, because starting it unblocks SIGINT
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT}
    )  # Ctrl-C ends the server, and the server ends this process
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sender.close()
    try:
        found: Built | str = receiver.recv()
    except EOFError:
        raise ParibusError(
            "the process that built the report was killed; does the machine have too little memory?"
        ) from None
    finally:
        process.join()
    if isinstance(found, str):
        raise ParibusError(found)
    return found


def _work(sender: Connection, folder: Path, study: str) -> None:
    found: Built | str
    try:
        found = build(folder, study)
    except ParibusError as error:
        found = str(error)
    with suppress(BrokenPipeError):  # the server has stopped meanwhile
        sender.send(found)


class Reports:
    """The newest report of each study that pages request.

    Args:
        folder: the home folder.
        make: builds a report.
    """

    def __init__(self, folder: Path, make: Callable[[Path, str], Built] = build_in_process) -> None:
        self._folder = folder
        self._make = make
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}

    def of(self, study: str, stamp: Hashable, wait_s: float | None = WAIT_S) -> Report:
        """Return the newest report of a study; start building a newer one if there are new results.

        Args:
            study: name of the study.
            stamp: what the report depends on (:attr:`~paribus_dashboards.data.study_now.StudyNow.ended`).
            wait_s: seconds to wait for the first report; ``None``: wait until the report is current.
        """
        with self._lock:
            state = self._states.setdefault(study, _State())
            due = wait_s is None or time.monotonic() >= state.not_before
            first = state.built is None and not state.trouble
            if state.stamp != stamp and state.done.is_set() and (due or first):
                state.done.clear()
                threading.Thread(target=self._build, args=(study, stamp, state), daemon=True).start()
        if wait_s is None:
            state.done.wait()
        elif state.built is None:
            state.done.wait(wait_s)
        return Report(built=state.built, current=state.stamp == stamp, trouble=state.trouble)

    def _build(self, study: str, stamp: Hashable, state: _State) -> None:
        started = time.monotonic()
        again_s = 0.0
        try:
            state.built, state.trouble, state.stamp = self._make(self._folder, study), "", stamp
        except Exception as error:  # the next request after a while tries again: the database may be back
            state.trouble = str(error) if isinstance(error, ParibusError) else describe(error)
            again_s = AGAIN_S
        finally:
            ended = time.monotonic()
            state.not_before = ended + max(again_s, PAUSE * (ended - started))
            state.done.set()


class _State:
    def __init__(self) -> None:
        self.built: Built | None = None
        self.stamp: Hashable = None
        self.trouble = ""
        self.not_before = 0.0
        self.done = threading.Event()
        self.done.set()
