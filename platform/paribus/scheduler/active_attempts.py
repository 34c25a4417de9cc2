"""The attempts that a scheduler has started: adopts those of an earlier scheduler, renews leases, cleans up."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.engines.base import Engine, JobState, Status, outlives_scheduler
from paribus.engines.process import Identity, kill_group
from paribus.errors import EngineError, LostLease, ParibusError, RunFolderError
from paribus.home import since_boot
from paribus.rpc.handler import answer_or_fail, uncounted
from paribus.run_folder.attempt_files import read_attempt, read_outcome
from paribus.run_folder.folder import RunFolder
from paribus.scheduler.home_lock import note_trouble
from paribus.store import transitions
from paribus.store.attempts import ANYWHERE
from paribus.store.models import AttemptRecord, Unit, unit_of
from paribus.store.store import Store
from paribus.text import plural

GRACE_S = 25.0
"""Seconds that an engine gives an attempt to stop: longer than the supervisor gives its runner."""

HOLD_S = 10.0
"""Seconds between two renewals of the leases of attempts that have no supervisor yet."""

START_S = 300.0
"""Seconds that a job may take from its start to its supervisor's first request."""

SILENT_HOLDS = 10
"""Renewals, half a lease apart, of a silent attempt's lease before the user sees a line."""

CHANGE_S = 150.0
"""Seconds to wait for the end of the jobs that an earlier scheduler gave to another engine."""

OUTSIDE_WAIT_S = 30.0
"""Seconds before a run whose job was ended from outside is started again: who cancels jobs may cancel the next, too."""

_PAUSE_S = 0.2
_THERE = (JobState.PENDING, JobState.RUNNING)


@dataclass(kw_only=True)
class _Active:
    """An attempt that was submitted, or is about to be.

    Attributes:
        study: name of the study that it was claimed for.
        slots: GPUs that it holds, or one CPU slot.
        unit: what it is charged in.
        began: when its job was first seen running; ``None`` before.
        whole: names of the GPUs that it doesn't share.
        capped: it was asked to stop because its budget is used up.
    """

    study: str
    slots: float
    unit: Unit
    began: float | None = None
    whole: tuple[str, ...] = ()
    capped: bool = False


class ActiveAttempts:
    """The attempts of the scheduler that the store knows as ``worker``, by the names of their jobs in the engine.

    On an engine whose jobs outlive the scheduler (its ``patience_s`` is longer than a lease), the engine decides:
    the lease of an attempt is renewed as long as its job waits or runs, whether its supervisor reports or not.

    Args:
        store: the store, open for writing.
        engine: where attempts are started.
        worker: its name in the store.
        say: prints one line for the user.
        others: returns another engine by name, to end the jobs that it was given before this engine was chosen.
        clock: seconds that never go back, also while the machine sleeps; ``None``: those of this machine.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        worker: str,
        say: Callable[[str], None],
        others: Callable[[str], Engine] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._others = others
        self._awake = clock or (lambda: time.monotonic())
        self._since_boot = clock or (lambda: since_boot())
        self._patient = outlives_scheduler(engine)
        self._missing: dict[str, float] = {}
        self._store = store
        self._engine = engine
        self._worker = worker
        self._say = say
        self._active: dict[str, _Active] = {}
        self._leftovers: dict[str, float] = {}
        self._next_hold = 0.0
        self._reported: set[str] = set()
        self._asked: set[str] = set()
        self._holds = Counter[str]()
        self._away_since: float | None = None

    def __len__(self) -> int:
        return len(self._active)

    def of(self, study: str) -> tuple[str, ...]:
        """Return the names of the attempts that were claimed for any plan of a name."""
        return tuple(name for name, attempt in self._active.items() if attempt.study == study)

    @property
    def budgets(self) -> tuple[tuple[str, Unit], ...]:
        """Study and unit of each budget that attempts are charged to, including plans that were replaced."""
        return tuple(dict.fromkeys((attempt.study, attempt.unit) for attempt in self._active.values()))

    def uncapped(self, study: str, unit: Unit) -> tuple[str, ...]:
        """Return the attempts charged to a budget that :meth:`cap` has not asked to stop."""
        return tuple(n for n, a in self._active.items() if (a.study, a.unit, a.capped) == (study, unit, False))

    def slots(self, study: str, unit: Unit) -> float:
        """Return how many GPUs or CPU slots the attempts charged to a budget hold."""
        return sum(a.slots for a in self._active.values() if (a.study, a.unit) == (study, unit))

    @property
    def busy(self) -> frozenset[str]:
        """The unshared GPUs of attempts whose processes may still be there, even if their leases have ended."""
        return frozenset(name for attempt in self._active.values() for name in attempt.whole)

    def enter(self, name: str, study: str, gpus: float, devices: tuple[str, ...] = ()) -> None:
        """Add an attempt that is about to be submitted, with the GPUs it was given."""
        whole = devices if gpus >= 1 else ()
        self._active[name] = _Active(study=study, slots=gpus or 1.0, unit=unit_of(gpus), whole=whole)

    def forget(self, name: str) -> None:
        """Remove an attempt that the engine refused."""
        del self._active[name]

    # ---- after a restart -------------------------------------------------------------------------

    def adopt(self, workers: Collection[str]) -> None:
        """Adopt the jobs of an earlier scheduler that the engine still has, and settle its other attempts.

        A job that may go on without a scheduler keeps its run for one more lease if the engine doesn't know it now.

        Raises:
            EngineError: the engine could not be asked.
        """
        studies: dict[int | None, str] = {s.id: s.name for s in self._store.summaries()}
        mine = [a for a in self._store.live_attempts() if a.worker in workers and self._is_here(a)]
        self._end_on_other_engines([a for a in mine if a.engine != self._engine.name])
        for attempt in mine:
            if attempt.engine != self._engine.name:
                continue
            name, folder = attempt.submit_name, RunFolder.of(self._store.home, attempt.fingerprint, attempt.token)
            known = self._engine.find(name) is not None
            state = self._engine.poll([name])[name].state if known else JobState.UNKNOWN
            if state in _THERE:
                self.enter(name, studies[attempt.study_id], attempt.gpus)
                self._say(f"{name}: still running, taken over")
            elif state is JobState.UNKNOWN and self._patient and not folder.outcome.exists():
                self.enter(name, studies[attempt.study_id], attempt.gpus)
                self._missing[name] = self._since_boot()
                with suppress(LostLease):
                    self._store.renew(attempt.run_id, attempt.token)
            else:
                self._settle(attempt, fault=False, reason="the scheduler was gone")

    def _is_here(self, attempt: AttemptRecord) -> bool:
        """Return whether an attempt belongs to this home folder: on another host, another may have the same path."""
        folder = RunFolder.of(self._store.home, attempt.fingerprint, attempt.token)
        return not attempt.worker.startswith(ANYWHERE) or attempt.external_id == "" or folder.path.exists()

    def _end_on_other_engines(self, attempts: Collection[AttemptRecord]) -> None:
        """End the jobs that an earlier scheduler gave to other engines, and queue their runs."""
        for name in sorted({a.engine for a in attempts}):
            theirs = [a for a in attempts if a.engine == name]
            if any(a.worker.startswith(ANYWHERE) for a in theirs):
                self._end_jobs(name, [a.submit_name for a in theirs])
            for attempt in theirs:
                self._settle(attempt, fault=False, reason=f"the engine was changed from {name} to {self._engine.name}")

    def _end_jobs(self, name: str, jobs: Sequence[str]) -> None:
        """Let another engine end its jobs. Those that it can't end find in their folders that they lost their runs."""
        try:
            if self._others is None:
                raise EngineError("it cannot be loaded here")
            engine = self._others(name)
            try:
                live = [job for job in jobs if engine.find(job) is not None]
                if live:
                    self._say(f"cancelling {plural(len(live), 'job')} of the engine {name}, which wait or run")
                for job in live:
                    engine.cancel(job, GRACE_S)
                until = time.monotonic() + CHANGE_S
                while any(s.state in _THERE for s in engine.poll(live).values()) and time.monotonic() < until:
                    time.sleep(_PAUSE_S)
            finally:
                engine.close()
        except ParibusError as error:
            of = f"of the engine {name} could not be cancelled and"
            said = plural(len(jobs), f"job {of} ends when it starts", f"jobs {of} end when they start")
            self._say(f"{said}: {error}")

    # ---- every turn ------------------------------------------------------------------------------

    def collect(self, *, stopping: bool) -> bool:
        """Remove the attempts whose jobs have ended; settle those whose supervisor reported nothing.

        A job that the engine doesn't know may still run, so it keeps its run as long as it renews its lease.

        Args:
            stopping: all attempts were asked to stop.

        Returns:
            Whether any attempt has ended.
        """
        statuses = self._engine.poll(tuple(self._active))
        self._report_trouble()
        self._hold(statuses)
        self._settle_missing(statuses)
        ended = [n for n, s in statuses.items() if s.state in (JobState.ENDED, JobState.UNKNOWN)]
        if not ended:
            return False
        live = {a.submit_name: a for a in self._store.live_attempts()}
        for name in ended:
            if name in live and statuses[name].state is JobState.UNKNOWN:
                continue
            if statuses[name].state is JobState.UNKNOWN:
                self._engine.cancel(name, 0.0)  # or the engine would keep a place for it
            if name in live:
                detail = f" ({statuses[name].reason})" if statuses[name].reason else ""
                asked = stopping or self._active[name].capped
                outside = statuses[name].interrupted and not asked
                reason = "interrupted" if asked else f"the supervisor ended without a report{detail}"
                reason = f"the job was ended from outside{detail}" if outside else reason
                wait_s = OUTSIDE_WAIT_S if outside else 0.0
                self._settle(live[name], fault=not (asked or outside), reason=reason, wait_s=wait_s, counted=not asked)
            del self._active[name]
        return True

    def _report_trouble(self) -> None:
        """Print one line when the engine no longer reaches its cluster, and one when it does again."""
        trouble = self._engine.trouble
        if bool(trouble) == (self._away_since is not None):
            return
        now = self._since_boot()
        if self._away_since is None:
            self._away_since = now
            self._say(f"{trouble} Runs that have begun go on; trying again.")
        else:
            self._say(f"The engine {self._engine.name} answers again, after {now - self._away_since:.0f} s.")
            self._away_since = None
        note_trouble(self._store.home, trouble)

    def _settle_missing(self, statuses: Mapping[str, Status]) -> None:
        """Settle the adopted attempts whose jobs the engine hasn't known, and which were silent, for a lease."""
        for name in [n for n in self._missing if n not in statuses or statuses[n].state is not JobState.UNKNOWN]:
            del self._missing[name]
        now = self._since_boot()
        due = {name for name, since in self._missing.items() if now - since > transitions.LEASE_S}
        silent = self._store.silent(0.0) if due else frozenset()
        for attempt in self._store.live_attempts() if due & silent else ():
            name = attempt.submit_name
            if name in due & silent:
                self._settle(attempt, fault=False, reason=f"{self._engine.name} no longer knows its job", counted=True)

    def _hold(self, statuses: Mapping[str, Status]) -> None:
        """Renew the leases of attempts that wait in the engine's queue, are starting, or may go on in silence."""
        self.report_waiting(statuses)
        self._note_starts(statuses)
        if (due := self._since_boot()) < self._next_hold:  # since boot: leases also run out while the machine sleeps
            return
        live = self._store.live_attempts()
        self._end_leftovers(statuses, {a.submit_name for a in live})
        for name in self._missing:
            with suppress(EngineError):
                self._engine.find(name)
        silent = self._store.silent(transitions.LEASE_S / 2) if self._patient else frozenset()
        for record in live:
            name, active = record.submit_name, self._active.get(record.submit_name)
            if record.started_at is not None:
                if name in silent and name in statuses and statuses[name].state in _THERE:
                    self._hold_silent(record)
            elif active is not None and name in statuses:
                if self._is_starting(active, statuses[name].state):
                    self._hold_waiting(record)
            elif record.worker == self._worker:
                self._settle(record, fault=False, reason="claimed by a call whose answer was lost")
        self._next_hold = due + HOLD_S  # only now: after a database outage, all leases are renewed before any expires

    def _note_starts(self, statuses: Mapping[str, Status]) -> None:
        now = self._awake()
        for name, status in statuses.items():
            attempt = self._active[name]
            if status.state is JobState.RUNNING and attempt.began is None:
                attempt.began = now

    def _is_starting(self, active: _Active, state: JobState) -> bool:
        """Return whether a job waits, or has started and its supervisor may still make its first request."""
        late = active.began is not None and self._awake() - active.began >= START_S
        return state is JobState.PENDING or (state is JobState.RUNNING and (self._patient or not late))

    def _hold_waiting(self, attempt: AttemptRecord) -> None:
        with suppress(LostLease):
            if self._store.renew(attempt.run_id, attempt.token).cancel:
                self._engine.cancel(attempt.submit_name, 0.0)
                # should its cluster start the job before the engine can cancel it, the job ends at once
                _revoke(RunFolder.of(self._store.home, attempt.fingerprint, attempt.token))
                self._store.cancelled(attempt.run_id, attempt.token)

    def _hold_silent(self, attempt: AttemptRecord) -> None:
        """Renew the lease of an attempt whose job the engine knows, although its supervisor doesn't report."""
        name = attempt.submit_name
        self._holds[name] += 1
        if self._holds[name] == SILENT_HOLDS:
            self._say(
                f"{name}: no heartbeat, but {self._engine.name} knows its job, so it keeps its run; its result will be "
                "taken from its folder. If the job has ended, cancel it there."
            )
        with suppress(LostLease):
            if self._store.renew(attempt.run_id, attempt.token).cancel and name not in self._asked:
                self._asked.add(name)
                self._engine.cancel(name, GRACE_S)

    def _end_leftovers(self, statuses: Mapping[str, Status], live: Collection[str]) -> None:
        """Cancel jobs reported as running long after their attempt ended: Slurm can lose track of a process."""
        now = self._awake()
        left = [n for n, s in statuses.items() if s.state is JobState.RUNNING and n not in live]
        self._leftovers = {name: self._leftovers.get(name, now) for name in left}
        for name, since in self._leftovers.items():
            if now - since > GRACE_S:
                self._engine.cancel(name, 0.0)

    def report_waiting(self, statuses: Mapping[str, Status]) -> None:
        """Print each reason why jobs wait once: some waits end only if the user does something."""
        for status in statuses.values():
            if status.state is JobState.PENDING and status.reason not in ("", "None", *self._reported):
                self._reported.add(status.reason)
                self._say(f"jobs wait in the queue of {self._engine.name}: {status.reason}")

    def expire(self) -> None:
        """Requeue the runs whose leases have expired, and kill what is left of their attempts."""
        for attempt in self._store.expire(self._worker):
            self._say(f"{attempt.submit_name}: no heartbeat, the run is queued again")
            self._engine.cancel(attempt.submit_name, 0.0)
            folder = RunFolder.of(self._store.home, attempt.fingerprint, attempt.token)
            _revoke(folder)
            _kill_processes(folder)

    def stop(self, grace: float) -> None:
        """Ask all attempts to stop within ``grace`` seconds."""
        for name in self._active:
            self._engine.cancel(name, grace)

    def leave(self) -> None:
        """Forget all attempts; the next scheduler finds the jobs that still run by their names."""
        if self._active:
            self._say(
                f"{plural(len(self._active), 'run has', 'runs have')} not stopped; the next start looks for "
                "them in the engine"
            )
        self._active.clear()

    def cap(self, name: str) -> None:
        """Ask an attempt to write a checkpoint and stop, because its study's budget is used up."""
        self._active[name].capped = True
        self._engine.cancel(name, GRACE_S)

    def _settle(
        self, attempt: AttemptRecord, *, fault: bool, reason: str, wait_s: float = 0.0, counted: bool = False
    ) -> None:
        """Kill what is left of an attempt, then record the outcome in its folder; without one, requeue the run.

        Args:
            attempt: one whose job has ended.
            fault: whether it counts as a failure of the infrastructure.
            reason: why it has ended.
            wait_s: seconds before the next attempt.
            counted: whether an interruption counts, unless the attempt wrote a new step.
        """
        folder = RunFolder.of(self._store.home, attempt.fingerprint, attempt.token)
        if not _kill_processes(folder):
            return  # processes remain: the lease will expire
        with suppress(LostLease):
            if self._record_outcome(folder, attempt, counted=counted):
                if attempt.started_at is None:
                    self._say(f"{attempt.submit_name}: its end was found in its folder; it had reached no scheduler")
                return
            _revoke(folder)  # first: should a job be left all the same, it ends before the next attempt begins
            ago = _age(folder.log, folder.metrics) if attempt.worker.startswith(ANYWHERE) else None
            if fault:
                self._store.fail(attempt.run_id, attempt.token, "infrastructure", reason, ago_s=ago)
            else:
                reached = _newest_step(folder) if counted and attempt.started_at is not None else None
                self._store.release(attempt.run_id, attempt.token, reason, wait_s=wait_s, reached=reached, ago_s=ago)

    def _record_outcome(self, folder: RunFolder, attempt: AttemptRecord, *, counted: bool) -> bool:
        """Record the outcome that a supervisor left in the folder; return whether this ended the attempt.

        The attempt may have begun and ended while no scheduler was there.
        """
        try:
            report = read_outcome(folder)
        except RunFolderError:
            return False
        if report.get("token", attempt.token) != attempt.token:
            return False
        report |= {"run": attempt.run_id, "token": attempt.token}
        if attempt.worker.startswith(ANYWHERE):
            report["ago_s"] = _age(folder.outcome)
        if attempt.started_at is None and "seconds" in report:
            ago = (report.get("ago_s") or 0.0) + report["seconds"]
            self._store.start(attempt.run_id, attempt.token, ago_s=ago)
        return bool(answer_or_fail(self._store, report if counted else uncounted(report))["ok"])


def _newest_step(folder: RunFolder) -> int:
    newest = 0
    with suppress(RunFolderError, OSError):  # up to a damaged line
        for line in folder.read_metrics():
            newest = max(newest, line.step)
    return newest


def _age(*files: Path) -> float | None:
    """Return the seconds since any of these files was written; ``None`` if there is none."""
    written = []
    for file in files:
        with suppress(OSError):
            written.append(file.stat().st_mtime)
    return max(0.0, time.time() - max(written)) if written else None


def _revoke(folder: RunFolder) -> None:
    """Mark the attempt as revoked in its folder: its supervisor may not reach the scheduler."""
    with suppress(OSError):
        folder.revoked.touch()


def _kill_processes(folder: RunFolder) -> bool:
    """Kill the supervisor and the runner of an attempt on this host; return whether both have ended."""
    try:
        here = read_attempt(folder)
        leaders = [Identity.read(here["supervisor"]), Identity.read(here["runner"])]
    except (RunFolderError, KeyError):
        return True  # the supervisor ended before it started a runner
    own = os.getpid()  # the inline engine's attempts are this process
    return sum(not kill_group(leader) for leader in leaders if leader.pid != own) == 0
