"""A home folder and its store as the pages see them: read-only, from many threads, while studies train.

What pages request, and what it costs:

* :meth:`Home.studies` and :meth:`Home.study` read the store at most once a second, whatever the number of viewers;
* :meth:`Home.now` reads the newest metric line and the health of a run: two small reads, none while the files are
  unchanged;
* :meth:`Home.series` opens the series of a run and caches the most recently used ones;
* :meth:`Home.evaluations` reads files that are written once per evaluation; they are not cached;
* :meth:`Home.samples` finds texts and counts by step and problem; it caches positions, never texts.

A server has one :class:`Home`; an export makes its own. Nothing here writes, except ``series.bin``, which the first
reader derives from the metric lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np

from paribus.errors import DashboardError, RunFolderError
from paribus.run_folder.folder import SHORT, Evaluation, RunFolder
from paribus.run_folder.json_text import LARGEST
from paribus.run_folder.metrics import Source
from paribus.run_folder.series import Floats, Ints, Series
from paribus.run_folder.series_file import RunSeries
from paribus.scheduler.home_lock import LockOwner, lock_owner
from paribus.store.budget import UNITS
from paribus.store.database import FILE, NothingYet, database_url
from paribus.store.models import (
    AttemptRecord,
    BudgetRecord,
    DeviceRecord,
    LeaseRecord,
    RunRecord,
    StudyRecord,
    StudySummary,
)
from paribus.store.reader import Reader
from paribus.store.remarks import About
from paribus.store.states import RunState
from paribus.study.plan import Plan
from paribus_dashboards.data.cache import Cache
from paribus_dashboards.data.reports import WAIT_S, Built, Report, Reports, build_in_process
from paribus_dashboards.data.run_now import RunNow, read_now
from paribus_dashboards.data.sample_index import RunSamples, SampleIndex
from paribus_dashboards.data.study_now import StudyNow
from paribus_dashboards.data.verdicts import RunDiagnosis, Verdicts

STORE_S = 1.0
"""Seconds for which a state of the store is shown."""

PLAN_S = 30.0
"""Seconds for which a plan is cached; only its budget and its texts can change."""

_SERIES, _RUNS = 256, 1 << 15  # cached series; cached states and small curves of runs, below a kilobyte each


Points: TypeAlias = tuple[tuple[int, float], ...]
"""Step and value."""


class NotFound(LookupError):
    """There is no such study, run or page; the message lists what there is."""


class Home:
    """A home folder, as pages read it.

    Args:
        folder: the home folder; it may not exist yet.
        only: names of the studies to show; empty for all.
        make_report: builds the report of a study.
        clock: seconds, monotonic.
    """

    patient = False
    """Whether pages read all that they show, whatever it takes, as an export does."""

    def __init__(
        self,
        folder: Path,
        only: Collection[str] = (),
        *,
        make_report: Callable[[Path, str], Built] = build_in_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.reports = Reports(folder, make_report)
        self.verdicts = Verdicts(folder)
        self.only = frozenset(only)
        self._clock = clock
        self._sample_index = SampleIndex()
        self._lock = threading.Lock()
        self._opened: tuple[Hashable, Reader] | None = None
        self._entries: Cache[str, tuple[StudySummary, ...]] = Cache(1)
        self._about: Cache[str, Mapping[str, About]] = Cache(17)
        self._studies: Cache[int, StudyNow] = Cache(16)
        self._plans: Cache[int, StudyRecord] = Cache(16)
        self._now: Cache[tuple[str, int], RunNow] = Cache(_RUNS)
        self._points: Cache[tuple[str, int, str, int], tuple[Ints, Floats]] = Cache(_RUNS)
        self._series: Cache[tuple[str, int], LockedSeries] = Cache(_SERIES)

    # ---- the store -------------------------------------------------------------------------------

    def reader(self) -> Reader:
        """Return the store, opened for reading; it is opened again if its file was replaced.

        Raises:
            NothingYet: there is no store, or one without tables.
            StoreError: it cannot be reached, or another version wrote it.
        """
        stamp = self._store_stamp()
        with self._lock:
            if self._opened is None or self._opened[0] != stamp:
                if self._opened is not None:
                    self._opened[1].close()
                    self._opened = None
                self._opened = stamp, Reader.open(self.folder)
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
        """Whether there is no store yet: nothing has run in this folder.

        Raises:
            StoreError: see :meth:`reader`.
        """
        try:
            self.reader()
        except NothingYet:
            return True
        return False

    def close(self) -> None:
        """Close all connections."""
        self.verdicts.close()
        if self._opened is not None:
            self._opened[1].close()

    def _second(self) -> int:
        return int(self._clock() / STORE_S)

    def studies(self) -> tuple[StudySummary, ...]:
        """Return one entry per study name, for its newest plan, in the order of submission.

        Raises:
            StoreError: the store cannot be read.
        """
        found = self._entries.get("", self._second(), lambda: self.reader().summaries())
        newest = {e.name: e for e in found if not self.only or e.name in self.only}
        return tuple(sorted(newest.values(), key=found.index))

    def about_studies(self) -> Mapping[str, About]:
        """Return note, tags and whether it is archived, of the studies of which something is said, by name."""
        return self._about.get("", self._second(), lambda: self.reader().about_studies())

    def about_runs(self, study: StudyNow) -> Mapping[str, About]:
        """Return note and tags of the runs of a study of which something is said, by fingerprint."""
        number = study.record.id
        return self._about.get(str(number), self._second(), lambda: self.reader().about_runs(number))

    def require(self) -> None:
        """Check that all studies to show exist.

        Raises:
            DashboardError: a study does not exist.
            StoreError: the store cannot be read.
        """
        there = dict.fromkeys(e.name for e in self.reader().summaries())
        if unknown := sorted(self.only - there.keys()):
            raise DashboardError(
                f"there is no study `{unknown[0]}` in {self.folder}; studies: {', '.join(there) or 'none'}"
            )

    def study(self, name: str) -> StudyNow:
        """Return the newest plan of a study, with its runs and attempts.

        Raises:
            NotFound: there is no study of this name.
            StoreError: the store cannot be read.
        """
        entries = {e.name: e for e in self.studies()}
        if name not in entries:
            raise NotFound(f"there is no study `{name}` here; studies: {', '.join(entries) or 'none'}")
        number = entries[name].id
        return self._studies.get(number, self._second(), lambda: self._read(number))

    def _read(self, number: int) -> StudyNow:
        reader = self.reader()
        record = self._plans.get(number, int(self._clock() / PLAN_S), lambda: reader.study_by_id(number))
        attempts: dict[str, list[AttemptRecord]] = {}
        for attempt in reader.attempts_of(number):
            attempts.setdefault(attempt.fingerprint, []).append(attempt)
        tried = {run: tuple(found) for run, found in attempts.items()}
        return StudyNow(record=record, runs=reader.runs_of(number), attempts=tried, at=reader.now())

    def counts(self, study: StudySummary) -> Mapping[RunState, int]:
        """Return the number of runs of a study in each state that occurs, without reading its plan."""
        return self.reader().counts(study.id)

    def find_run(self, study: StudyNow, digits: str) -> RunRecord:
        """Return the run of a study whose fingerprint starts with these digits, at least six.

        Raises:
            NotFound: there is no such run, or more than one.
        """
        found = [r for r in study.runs if r.fingerprint.startswith(digits)] if len(digits) >= 6 else []
        if len(found) != 1:
            raise NotFound(f"`{study.record.name}` has no run whose fingerprint starts with `{digits[:SHORT]}`")
        return found[0]

    def report(self, study: StudyNow, *, wait_s: float | None = WAIT_S) -> Report:
        """Return the newest report of a study; another process builds it.

        Args:
            study: the study.
            wait_s: seconds to wait for the first report; ``None``: wait until the report includes all results.
        """
        return self.reports.of(study.record.name, study.ended, wait_s)

    def budgets(self, name: str) -> tuple[BudgetRecord, ...]:
        """Return the budgets of a study, one for each unit that it uses or that has a cap."""
        found = (self.reader().budget(name, unit) for unit in UNITS)
        return tuple(b for b in found if b.cap is not None or b.used + b.reserved > 0)

    def devices(self) -> tuple[DeviceRecord, ...]:
        """Return the devices of all known hosts, and how much of each is in use."""
        return self.reader().devices()

    def live_attempts(self) -> tuple[AttemptRecord, ...]:
        """Return the live attempts of all studies."""
        return self.reader().live_attempts()

    def leases(self) -> tuple[LeaseRecord, ...]:
        """Return the GPU shares of live attempts."""
        return self.reader().leases()

    def scheduler(self) -> LockOwner | None:
        """Return the process on this machine that starts runs in this home folder; ``None`` without one."""
        return lock_owner(self.folder)

    # ---- run folders -----------------------------------------------------------------------------

    def run_folder(self, run: RunRecord) -> RunFolder:
        """Return the folder of the newest attempt at a run."""
        return RunFolder.of(self.folder, run.fingerprint, run.token)

    def now(self, run: RunRecord) -> RunNow:
        """Return the newest step and the health of a run."""
        if not run.token:
            return RunNow()
        folder = self.run_folder(run)
        stamp = _stamp(folder.metrics), _stamp(folder.health)
        try:
            return self._now.get((run.fingerprint, run.token), stamp, lambda: read_now(folder))
        except OSError:  # a server of files that is away for a moment: nothing is kept, the next page reads again
            return RunNow()

    def states(self, study: StudyNow, limit_s: float | None = None) -> tuple[Mapping[str, RunNow], bool]:
        """Return fingerprint to the state of a run, and whether some are missing because the time was over.

        The files of a run that has ended are read once. A page looks at the files of the runs that it shows with
        :meth:`now`.

        Args:
            study: the study.
            limit_s: seconds; ``None``: as many as it takes.
        """
        until = None if limit_s is None else self._clock() + limit_s
        found: dict[str, RunNow] = {}
        for run in study.runs:
            known = self._now.peek((run.fingerprint, run.token)) if run.terminal and run.token else None
            if known is None and (until is None or not run.token or self._clock() <= until):
                known = self.now(run)
            if known is not None:
                found[run.fingerprint] = known
        return found, len(found) < len(study.runs)

    def verdict(self, plan: Plan, run: RunRecord) -> RunDiagnosis:
        """Return the diagnosis of a run: its supervisor's if that is current, else one made here."""
        now = self.now(run)
        return self.verdicts.of(plan, run, now.step, now.judged_step)

    def series(self, run: RunRecord) -> LockedSeries:
        """Return the series of a run over its attempts, up to date.

        Read it with ``first``, ``last`` and ``least``, so that a chart of a long run costs only what it shows.

        Raises:
            RunFolderError: a metric line of the newest attempt cannot be read.
        """
        key = run.fingerprint, run.token
        newest = self.run_folder(run)
        stamp = _stamp(newest.metrics)
        found = self._series.get(key, (), lambda: LockedSeries(lambda: RunSeries(self.folder, *key), newest, stamp))
        found.follow(stamp)
        return found

    def points(self, run: RunRecord, metric: str, *, least: int) -> Points:
        """Return a metric over the whole run in few points, for small lines; empty if it is unreadable.

        Args:
            run: the run.
            metric: name of the metric.
            least: fewest points, if the run has more.
        """

        def read() -> tuple[Ints, Floats]:
            with suppress(RunFolderError):
                found = self.series(run).series(metric, least=least).finite()
                return found.steps.copy(), found.mean.copy()
            return np.empty(0, np.int64), np.empty(0)

        key = run.fingerprint, run.token, metric, least
        return _pairs(self._points.get(key, _stamp(self.run_folder(run).metrics), read))

    def cached_points(self, run: RunRecord, metric: str, *, least: int) -> Points | None:
        """Return the last result of :meth:`points` without reading a file; ``None`` before the first call."""
        found = self._points.peek((run.fingerprint, run.token, metric, least))
        return None if found is None else _pairs(found)

    def evaluations(self, run: RunRecord) -> tuple[Evaluation, ...]:
        """Return the evaluations of a run by set and step; of repeated steps, those of the newest attempt.

        Raises:
            RunFolderError: an evaluation cannot be read.
        """
        found: dict[tuple[str, int], Evaluation] = {}
        for folder in self._attempts(run):
            evaluated = folder.read_evaluations()
            first = min((e.step for e in evaluated), default=None)
            if first is not None:
                found = {k: e for k, e in found.items() if k[1] < first}
            found |= {(e.set, e.step): e for e in evaluated}
        return tuple(found[k] for k in sorted(found))

    def samples(self, run: RunRecord) -> RunSamples:
        """Return the samples and evaluations of a run, found without reading whole files.

        If the metric lines of the newest attempt cannot be read, only that attempt counts.
        """
        attempts = self._attempts(run)
        try:
            return self._sample_index.run(attempts, self.series(run).folder_at)
        except RunFolderError:
            return self._sample_index.run(attempts, lambda _: attempts[-1])

    def _attempts(self, run: RunRecord) -> list[RunFolder]:
        return [RunFolder.of(self.folder, run.fingerprint, n) for n in range(1, run.token + 1)]


class LockedSeries:
    """The series of a run behind a lock; a :class:`paribus.run_folder.series.Recorded` for many threads."""

    def __init__(self, read: Callable[[], RunSeries], newest: RunFolder, stamp: Hashable = ()) -> None:
        self._read, self._newest = read, newest
        self._series = read()
        self._stamp = stamp
        self._lock = threading.Lock()

    def follow(self, stamp: Hashable) -> None:
        """Read new metric lines unless the file is unchanged.

        Raises:
            RunFolderError: a metric line cannot be read.
        """
        with self._lock:
            if stamp != self._stamp:
                counted = self._series.folder_at(LARGEST)
                if counted is None or counted.path != self._newest.path:
                    self._series = self._read()  # it leaves out an attempt that had no line when it was opened
                else:
                    self._series.refresh()
                self._stamp = stamp

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last step with a metric line; ``None`` without a metric line."""
        with self._lock:
            return self._series.span

    @property
    def names(self) -> frozenset[str]:
        """Recorded metrics."""
        with self._lock:
            return self._series.names

    def sources_of(self, metric: str) -> frozenset[Source]:
        """Return the sources of a metric's values; empty if it was not recorded."""
        with self._lock:
            return self._series.sources_of(metric)

    def folder_at(self, step: int) -> RunFolder | None:
        """Return the folder of the attempt that counts at a step; ``None`` if no attempt has lines there."""
        with self._lock:
            return self._series.folder_at(step)

    def series(
        self, metric: str, *, first: int | None = None, last: int | None = None, least: int | None = None
    ) -> Series:
        """Return a metric; see :class:`paribus.run_folder.series.Recorded`."""
        with self._lock:
            return self._series.series(metric, first=first, last=last, least=least)


def _pairs(found: tuple[Ints, Floats]) -> Points:
    return tuple(zip(found[0].tolist(), found[1].tolist(), strict=True))


def _stamp(path: Path) -> Hashable:
    """Return inode, size and modification time of a file, which identify its content; ``None`` without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
