"""A home folder and its store as the pages see them: read only, from many threads, whatever happens there meanwhile.

What pages ask for, and what it costs:

* :meth:`Home.studies` and :meth:`Home.study` read the store, at most once a second, whoever asks;
* :meth:`Home.now` reads the newest line and the verdict of a run: two small reads, none while the files stay the same;
* :meth:`Home.series` opens the series of a run, and keeps those that were asked for last;
* :meth:`Home.evaluations` reads files that are written once a step; they are not kept;
* :meth:`Home.reading` finds texts and counts by step and problem, and keeps where they lie, never a text.

A server holds one :class:`Home`; an export makes one of its own. Nothing here writes, but for ``series.bin``, which
whoever reads first derives from the metric lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from paribus.errors import DashboardError, RunFolderError
from paribus.schedule.holder import Holder, holder_of
from paribus.store.budget import UNITS
from paribus.store.database import FILE, database_url
from paribus.store.reader import Reader
from paribus.store.records import (
    AttemptRecord,
    BudgetRecord,
    DeviceRecord,
    LeaseRecord,
    RunRecord,
    StudyEntry,
    StudyRecord,
)
from paribus.store.states import RunState
from paribus.study.plan import Plan
from paribus.track.folder import SHORT, Evaluation, RunFolder
from paribus.track.rollup import RunSeries
from paribus_dashboards.cache import Kept
from paribus_dashboards.reading import Reading, RunReading
from paribus_dashboards.reports import WAIT_S, Built, Report, Reports, build_apart
from paribus_dashboards.run_now import RunNow, read_now
from paribus_dashboards.series import SharedSeries
from paribus_dashboards.study_now import StudyNow
from paribus_dashboards.verdicts import Judged, Verdicts

FRESH_S = 1.0
"""Seconds for which a state of the store is shown."""

PLAN_S = 30.0
"""Seconds for which a plan is not read again: only its budget and its words can change."""

_SERIES, _RUNS = 256, 4096  # open series; newest states of runs


Points: TypeAlias = tuple[tuple[int, float], ...]
"""Step and value."""


class NotThere(LookupError):
    """There is no such study, run or page; the message names what there is."""


class Home:
    """A home folder, to be read by pages.

    Args:
        folder: the home folder; it may come to be later.
        only: names of the studies that are shown; empty: all.
        make_report: builds the report of a study.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        folder: Path,
        only: Collection[str] = (),
        *,
        make_report: Callable[[Path, str], Built] = build_apart,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.reports = Reports(folder, make_report)
        self.verdicts = Verdicts(folder)
        self.only = frozenset(only)
        self._clock = clock
        self._reading = Reading()
        self._lock = threading.Lock()
        self._opened: tuple[Hashable, Reader] | None = None
        self._entries: Kept[str, tuple[StudyEntry, ...]] = Kept(1)
        self._studies: Kept[int, StudyNow] = Kept(16)
        self._plans: Kept[int, StudyRecord] = Kept(16)
        self._now: Kept[tuple[str, int], RunNow] = Kept(_RUNS)
        self._points: Kept[tuple[str, int, str, int], Points] = Kept(_RUNS)
        self._series: Kept[tuple[str, int], SharedSeries] = Kept(_SERIES)

    # ---- the store -------------------------------------------------------------------------------

    def reader(self) -> Reader:
        """Return the store, opened for reading; opened anew where its file is another one.

        Raises:
            StoreError: there is none yet, it cannot be reached, or another version wrote it.
        """
        stamp = self._store_stamp()
        with self._lock:
            if self._opened is None or self._opened[0] != stamp:
                if self._opened is not None:
                    self._opened[1].close()
                    self._opened = None
                self._opened = stamp, Reader.look(self.folder)
            return self._opened[1]

    def _store_stamp(self) -> Hashable:
        url = database_url(self.folder)
        if url.get_backend_name() != "sqlite":
            return str(url)
        with suppress(OSError):
            return (self.folder / FILE).stat().st_ino
        return None

    @property
    def empty(self) -> bool:
        """Whether there is no store yet: nothing was run in this folder."""
        return self._store_stamp() is None

    def close(self) -> None:
        """Close all connections."""
        self.verdicts.close()
        if self._opened is not None:
            self._opened[1].close()

    def _second(self) -> int:
        return int(self._clock() / FRESH_S)

    def studies(self) -> tuple[StudyEntry, ...]:
        """Return one entry a study name, its newest plan, the study that was submitted last at the end.

        Raises:
            StoreError: the store cannot be read.
        """
        found = self._entries.get("", self._second(), lambda: self.reader().entries())
        newest = {e.name: e for e in found if not self.only or e.name in self.only}
        return tuple(sorted(newest.values(), key=found.index))

    def require(self) -> None:
        """Make sure that every study that is asked for is there.

        Raises:
            DashboardError: one is not.
            StoreError: the store cannot be read.
        """
        there = dict.fromkeys(e.name for e in self.reader().entries())
        if unknown := sorted(self.only - there.keys()):
            raise DashboardError(
                f"there is no study `{unknown[0]}` in {self.folder}; studies: {', '.join(there) or 'none'}"
            )

    def study(self, name: str) -> StudyNow:
        """Return a study, the newest plan of this name, with its runs and attempts.

        Raises:
            NotThere: there is none of this name.
            StoreError: the store cannot be read.
        """
        entries = {e.name: e for e in self.studies()}
        if name not in entries:
            raise NotThere(f"there is no study `{name}` here; studies: {', '.join(entries) or 'none'}")
        number = entries[name].id
        return self._studies.get(number, self._second(), lambda: self._read(number))

    def _read(self, number: int) -> StudyNow:
        reader = self.reader()
        record = self._plans.get(number, int(self._clock() / PLAN_S), lambda: reader.numbered(number))
        attempts: dict[str, list[AttemptRecord]] = {}
        for attempt in reader.attempts_of(number):
            attempts.setdefault(attempt.fingerprint, []).append(attempt)
        tried = {run: tuple(found) for run, found in attempts.items()}
        return StudyNow(record=record, runs=reader.runs_of(number), attempts=tried, at=reader.now())

    def counts(self, study: StudyEntry) -> Mapping[RunState, int]:
        """Return the number of runs of a study in each state that occurs, without reading its plan."""
        return self.reader().counts(study.id)

    def find_run(self, study: StudyNow, digits: str) -> RunRecord:
        """Return the run of a study whose fingerprint begins with these digits, at least six.

        Raises:
            NotThere: there is none, or more than one.
        """
        found = [r for r in study.runs if r.fingerprint.startswith(digits)] if len(digits) >= 6 else []
        if len(found) != 1:
            raise NotThere(f"no run of `{study.record.name}` has a fingerprint that begins with `{digits[:SHORT]}`")
        return found[0]

    def report(self, study: StudyNow, *, wait_s: float | None = WAIT_S) -> Report:
        """Return the report of a study as far as it is built; another process builds it.

        Args:
            study: the study.
            wait_s: seconds to wait where there is none yet; ``None``: until all results have entered it.
        """
        return self.reports.of(study.record.name, study.ended, wait_s)

    def budgets(self, name: str) -> tuple[BudgetRecord, ...]:
        """Return what a study may spend and has spent, in each unit that it uses or has a cap in."""
        found = (self.reader().budget(name, unit) for unit in UNITS)
        return tuple(b for b in found if b.cap is not None or b.used + b.reserved > 0)

    def devices(self) -> tuple[DeviceRecord, ...]:
        """Return the devices of all hosts that the store knows, and how much of each is held."""
        return self.reader().devices()

    def live_attempts(self) -> tuple[AttemptRecord, ...]:
        """Return the attempts that hold a run now, of all studies."""
        return self.reader().live_attempts()

    def leases(self) -> tuple[LeaseRecord, ...]:
        """Return what these attempts hold of GPUs."""
        return self.reader().leases()

    def holder(self) -> Holder | None:
        """Return the process of this machine that starts runs here; ``None`` if there is none."""
        return holder_of(self.folder)

    # ---- run folders -----------------------------------------------------------------------------

    def run_folder(self, run: RunRecord) -> RunFolder:
        """Return the folder of the newest attempt at a run."""
        return RunFolder.of(self.folder, run.fingerprint, run.token)

    def now(self, run: RunRecord) -> RunNow:
        """Return what a run says of itself."""
        folder = self.run_folder(run)
        stamp = _stamp(folder.metrics), _stamp(folder.health)
        return self._now.get((run.fingerprint, run.token), stamp, lambda: read_now(folder))

    def verdict(self, plan: Plan, run: RunRecord) -> Judged:
        """Return what is wrong with a run: as it was told while it trained, else judged here."""
        now = self.now(run)
        return self.verdicts.of(plan, run, now.step, now.judged)

    def series(self, run: RunRecord) -> SharedSeries:
        """Return the series of a run over its attempts, with what came since they were asked for last.

        Ask with ``first``, ``last`` and ``least``, so that a chart of a long run costs what it shows.

        Raises:
            RunFolderError: a metric line of the newest attempt cannot be read.
        """
        key = run.fingerprint, run.token
        found = self._series.get(key, (), lambda: SharedSeries(RunSeries(self.folder, *key)))
        found.follow(_stamp(self.run_folder(run).metrics))
        return found

    def points(self, run: RunRecord, metric: str, *, least: int) -> Points:
        """Return a metric over the whole run in few points, for lines that are drawn small; none where unreadable.

        Args:
            run: the run.
            metric: its name.
            least: how many points there are at least where the run has more.
        """

        def read() -> Points:
            with suppress(RunFolderError):
                found = self.series(run).series(metric, least=least).finite()
                return tuple(zip(found.steps.tolist(), found.mean.tolist(), strict=True))
            return ()

        key = run.fingerprint, run.token, metric, least
        return self._points.get(key, _stamp(self.run_folder(run).metrics), read)

    def known_points(self, run: RunRecord, metric: str, *, least: int) -> Points | None:
        """Return what :meth:`points` returned last, at once; ``None`` if it was never asked."""
        return self._points.known((run.fingerprint, run.token, metric, least))

    def evaluations(self, run: RunRecord) -> tuple[Evaluation, ...]:
        """Return the evaluations of a run by set and step, those that count over its attempts.

        Raises:
            RunFolderError: one cannot be read.
        """
        found: dict[tuple[str, int], Evaluation] = {}
        for folder in self._attempts(run):
            evaluated = folder.read_evaluations()
            first = min((e.step for e in evaluated), default=None)
            if first is not None:
                found = {k: e for k, e in found.items() if k[1] < first}
            found |= {(e.set, e.step): e for e in evaluated}
        return tuple(found[k] for k in sorted(found))

    def reading(self, run: RunRecord) -> RunReading:
        """Return what a run keeps of its problems and responses, found without reading all of it.

        Where the metric lines of its newest attempt cannot be read, that attempt alone counts.
        """
        attempts = self._attempts(run)
        try:
            return self._reading.run(attempts, self.series(run).folder_at)
        except RunFolderError:
            return self._reading.run(attempts, lambda _: attempts[-1])

    def _attempts(self, run: RunRecord) -> list[RunFolder]:
        return [RunFolder.of(self.folder, run.fingerprint, n) for n in range(1, run.token + 1)]


def _stamp(path: Path) -> Hashable:
    """Return what changes when a file does; ``None`` where it is not."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
