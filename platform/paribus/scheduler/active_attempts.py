"""The attempts that a scheduler has started: adopts those of an earlier scheduler, renews leases, cleans up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from paribus.engines.base import Engine, JobState, Status
from paribus.engines.process import Identity, kill_group
from paribus.errors import LostLease, RunFolderError
from paribus.home import since_boot
from paribus.rpc.handler import answer_or_fail
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.models import AttemptRecord, Unit, unit_of
from paribus.store.store import Store

GRACE_S = 25.0
"""Seconds that an engine gives an attempt to stop: longer than the supervisor gives its runner."""

HOLD_S = 10.0
"""Seconds between two renewals of the leases of attempts that have no supervisor yet."""

START_S = 300.0
"""Seconds that a job may take from its start to its supervisor's first request."""


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
    """The attempts of the scheduler that the store knows as ``worker``, by the names of their jobs in the engine."""

    def __init__(self, store: Store, engine: Engine, worker: str, say: Callable[[str], None]) -> None:
        self._store = store
        self._engine = engine
        self._worker = worker
        self._say = say
        self._active: dict[str, _Active] = {}
        self._leftovers: dict[str, float] = {}
        self._next_hold = 0.0
        self._reported: set[str] = set()

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

    def adopt(self) -> None:
        """Adopt the jobs of an earlier scheduler that the engine still has, and requeue its other runs.

        Raises:
            EngineError: the engine could not be asked.
        """
        studies = {s.id: s.name for s in self._store.summaries()}
        for attempt in self._store.live_attempts():
            if attempt.worker != self._worker:
                continue
            name = attempt.submit_name
            known = attempt.engine == self._engine.name and self._engine.find(name) is not None
            if known and self._engine.poll([name])[name].state in (JobState.PENDING, JobState.RUNNING):
                self.enter(name, studies[attempt.study_id], attempt.gpus)
                self._say(f"{name}: still running, taken over")
            else:
                self._settle(attempt, fault=False, reason="the scheduler was gone")

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
        self._hold(statuses)
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
                reason = "interrupted" if asked else f"the supervisor ended without a report{detail}"
                self._settle(live[name], fault=not asked, reason=reason)
            del self._active[name]
        return True

    def _hold(self, statuses: Mapping[str, Status]) -> None:
        """Renew the leases of attempts that wait in the engine's queue or are starting: no supervisor does so yet."""
        self.report_waiting(statuses)
        now = time.monotonic()
        for name, status in statuses.items():
            attempt = self._active[name]
            if status.state is JobState.RUNNING and attempt.began is None:
                attempt.began = now
        if (due := since_boot()) < self._next_hold:  # since boot: leases also run out while the machine sleeps
            return
        live = self._store.live_attempts()
        self._end_leftovers(statuses, {a.submit_name for a in live})
        for record in live:
            name = record.submit_name
            if name not in statuses and record.worker == self._worker and record.started_at is None:
                self._settle(record, fault=False, reason="claimed by a call whose answer was lost")
                continue
            state = statuses[name].state if name in statuses and record.started_at is None else JobState.UNKNOWN
            starting = state is JobState.RUNNING and now - (self._active[name].began or now) < START_S
            if not (starting or state is JobState.PENDING):
                continue
            with suppress(LostLease):
                if self._store.renew(record.run_id, record.token).cancel:
                    self._engine.cancel(name, 0.0)
                    self._store.cancelled(record.run_id, record.token)
        self._next_hold = due + HOLD_S  # only now: after a database outage, all leases are renewed before any expires

    def _end_leftovers(self, statuses: Mapping[str, Status], live: Collection[str]) -> None:
        """Cancel jobs reported as running long after their attempt ended: Slurm can lose track of a process."""
        now = time.monotonic()
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
        for attempt in self._store.expire():
            self._say(f"{attempt.submit_name}: no heartbeat, the run is queued again")
            self._engine.cancel(attempt.submit_name, 0.0)
            _kill_processes(RunFolder.of(self._store.home, attempt.fingerprint, attempt.token))

    def stop(self, grace: float) -> None:
        """Ask all attempts to stop within ``grace`` seconds."""
        for name in self._active:
            self._engine.cancel(name, grace)

    def leave(self) -> None:
        """Forget all attempts; the next scheduler finds the jobs that still run by their names."""
        if self._active:
            self._say(f"{len(self._active)} runs have not stopped; the next start looks for them in the engine")
        self._active.clear()

    def cap(self, name: str) -> None:
        """Ask an attempt to write a checkpoint and stop, because its study's budget is used up."""
        self._active[name].capped = True
        self._engine.cancel(name, GRACE_S)

    def _settle(self, attempt: AttemptRecord, *, fault: bool, reason: str) -> None:
        """Kill what is left of an attempt, then record the outcome in its folder; without one, requeue the run."""
        folder = RunFolder.of(self._store.home, attempt.fingerprint, attempt.token)
        if not _kill_processes(folder):
            return  # processes remain: the lease will expire
        with suppress(LostLease):
            if self._record_outcome(folder, attempt):
                return
            if fault:
                self._store.fail(attempt.run_id, attempt.token, "infrastructure", reason)
            else:
                self._store.release(attempt.run_id, attempt.token, reason)

    def _record_outcome(self, folder: RunFolder, attempt: AttemptRecord) -> bool:
        """Record the outcome that a supervisor left in the folder; return whether this ended the attempt."""
        try:
            report = {**read_json(folder.outcome), "run": attempt.run_id, "token": attempt.token}
            return bool(answer_or_fail(self._store, report)["ok"])
        except (RunFolderError, TypeError, KeyError):
            return False


def _kill_processes(folder: RunFolder) -> bool:
    """Kill the supervisor and the runner of an attempt on this host; return whether both have ended."""
    try:
        here: Mapping[str, Mapping[str, object]] = read_json(folder.attempt)
        leaders = [Identity.read(here["supervisor"]), Identity.read(here["runner"])]
    except (RunFolderError, KeyError, TypeError):
        return True  # the supervisor ended before it started a runner
    own = os.getpid()  # the inline engine's attempts are this process
    return sum(not kill_group(leader) for leader in leaders if leader.pid != own) == 0
