"""The attempts that a scheduler has in flight: adopts those of the one before, holds them, and settles what is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from paribus.engines.base import Engine, JobState, Status
from paribus.engines.process import Identity, kill_group, since_boot
from paribus.errors import LostLease, RunFolderError
from paribus.schedule.desk import answer_or_fail
from paribus.store.records import AttemptRecord, Unit, unit_of
from paribus.store.store import Store
from paribus.track.folder import RunFolder, read_json

GRACE_S = 25.0
"""Seconds that an engine gives an attempt to end: longer than the supervisor gives its runner."""

HOLD_S = 10.0
"""Seconds between two renewals for attempts that have no supervisor yet."""

LEAST_S = 0.1
"""Seconds that every attempt counts at least: runs that end at once must not be free."""

START_S = 300.0
"""Seconds that a job may take from its start to its supervisor's first word."""


@dataclass(kw_only=True)
class _Flight:
    """An attempt in flight.

    Attributes:
        study: name of the study that it was claimed for.
        slots: GPUs that it holds, or one CPU slot.
        unit: what it is charged in.
        entered: when it was claimed.
        began: when its job was first seen to run; ``None`` before.
        whole: names of the GPUs that it has for itself.
        capped: it was asked to end because its budget is used up.
    """

    study: str
    slots: float
    unit: Unit
    entered: float
    began: float | None = None
    whole: tuple[str, ...] = ()
    capped: bool = False


class Flights:
    """The attempts in flight, by the names under which the engine knows their jobs.

    Args:
        store: the store, open for writing.
        engine: where they run.
        worker: who this scheduler is, in the store.
        say: takes one line for people about each thing that happens.
    """

    def __init__(self, store: Store, engine: Engine, worker: str, say: Callable[[str], None]) -> None:
        self._store = store
        self._engine = engine
        self._worker = worker
        self._say = say
        self._flights: dict[str, _Flight] = {}
        self._ended: dict[str, tuple[float, int]] = {}
        self._left: dict[str, float] = {}
        self._next_hold = 0.0
        self._told: set[str] = set()

    def __len__(self) -> int:
        return len(self._flights)

    def of(self, study: str) -> tuple[str, ...]:
        """Return the names of the attempts that were claimed for any plan of a name."""
        return tuple(name for name, flight in self._flights.items() if flight.study == study)

    @property
    def budgets(self) -> tuple[tuple[str, Unit], ...]:
        """Study and unit of each budget that attempts are charged to, also those of plans that were replaced."""
        return tuple(dict.fromkeys((flight.study, flight.unit) for flight in self._flights.values()))

    def fresh(self, study: str, unit: Unit) -> tuple[str, ...]:
        """Return those charged to a budget that were not asked to end for its sake."""
        return tuple(n for n, f in self._flights.items() if (f.study, f.unit, f.capped) == (study, unit, False))

    def slots(self, study: str, unit: Unit) -> float:
        """Return how many GPUs, or CPU slots, those charged to a budget hold."""
        return sum(f.slots for f in self._flights.values() if (f.study, f.unit) == (study, unit))

    @property
    def busy(self) -> frozenset[str]:
        """The GPUs that an attempt has for itself whose processes may still be there, whatever its lease says."""
        return frozenset(name for flight in self._flights.values() for name in flight.whole)

    def enter(self, name: str, study: str, gpus: float, devices: tuple[str, ...] = ()) -> None:
        """Note an attempt that is about to be submitted, and which GPUs it was given."""
        whole = devices if gpus >= 1 else ()
        held, now = gpus or 1.0, time.monotonic()
        self._flights[name] = _Flight(study=study, slots=held, unit=unit_of(gpus), entered=now, whole=whole)

    def forget(self, name: str) -> None:
        """Forget an attempt that the engine refused."""
        del self._flights[name]

    def use(self, study: str) -> tuple[float, float]:
        """Return the seconds of slots that a study has had here, and those that one more run is expected to take.

        What has just begun counts as much as is expected of it.
        """
        seconds, count = self._ended.get(study, (0.0, 0))
        if count == 0:
            every = self._ended.values()
            expected = sum(s for s, _ in every) / max(1, sum(n for _, n in every))
        else:
            expected = seconds / count
        cost, now = expected or 1.0, time.monotonic()
        mine = (self._flights[name] for name in self.of(study))
        return seconds + sum(max(cost, f.slots * (now - f.began) if f.began else 0.0) for f in mine), cost

    # ---- what the scheduler before has left ------------------------------------------------------

    def adopt(self) -> None:
        """Take over what goes on in the engine, and put the other attempts of the scheduler before back.

        Raises:
            EngineError: the engine cannot tell which jobs it has.
        """
        studies = {s.id: s.name for s in self._store.entries()}
        for attempt in self._store.live_attempts():
            if attempt.worker != self._worker:
                continue
            name = attempt.submit_name
            known = attempt.engine == self._engine.name and self._engine.find(name) is not None
            if known and self._engine.poll([name])[name].state in (JobState.PENDING, JobState.RUNNING):
                self.enter(name, studies[attempt.study_id], attempt.gpus)
                self._say(f"{name}: still there")
            else:
                self._settle(attempt, fault=False, reason="the scheduler was gone")

    # ---- every turn ------------------------------------------------------------------------------

    def collect(self, *, stopping: bool) -> bool:
        """Let go of attempts whose processes have ended; those that reported nothing are settled.

        A job that the engine does not know may run all the same: it holds its run as long as it renews its lease.

        Args:
            stopping: all were asked to end.

        Returns:
            Whether any has ended.
        """
        statuses = self._engine.poll(tuple(self._flights))
        self._hold(statuses)
        ended = [n for n, s in statuses.items() if s.state in (JobState.ENDED, JobState.UNKNOWN)]
        if not ended:
            return False
        live = {a.submit_name: a for a in self._store.live_attempts()}
        for name in ended:
            if name in live and statuses[name].state is JobState.UNKNOWN:
                continue
            flight = self._flights[name]
            if statuses[name].state is JobState.UNKNOWN:
                self._engine.cancel(name, 0.0)  # or the engine would keep a place for it
            if name in live:
                told = f" ({statuses[name].reason})" if statuses[name].reason else ""
                asked = stopping or flight.capped
                reason = "interrupted" if asked else f"the supervisor ended without a report{told}"
                self._settle(live[name], fault=not asked, reason=reason)
            seconds, count = self._ended.get(flight.study, (0.0, 0))
            held = flight.slots * max(LEAST_S, time.monotonic() - (flight.began or flight.entered))
            self._ended[flight.study] = (seconds + held, count + 1)
            del self._flights[name]
        return True

    def _hold(self, statuses: Mapping[str, Status]) -> None:
        """Renew the leases of attempts that wait in the engine's queue, or are just starting: nobody else does yet."""
        self.tell_waiting(statuses)
        now = time.monotonic()
        for name, status in statuses.items():
            flight = self._flights[name]
            if status.state is JobState.RUNNING and flight.began is None:
                flight.began = now
        if (due := since_boot()) < self._next_hold:  # leases run out while the machine sleeps, too
            return
        live = self._store.live_attempts()
        self._end_leftovers(statuses, {a.submit_name for a in live})
        for attempt in live:
            name = attempt.submit_name
            if name not in statuses and attempt.worker == self._worker and attempt.started_at is None:
                self._settle(attempt, fault=False, reason="claimed by a call whose answer was lost")
                continue
            state = statuses[name].state if name in statuses and attempt.started_at is None else JobState.UNKNOWN
            starting = state is JobState.RUNNING and now - (self._flights[name].began or now) < START_S
            if not (starting or state is JobState.PENDING):
                continue
            with suppress(LostLease):
                if self._store.renew(attempt.run_id, attempt.token).cancel:
                    self._engine.cancel(name, 0.0)
                    self._store.cancelled(attempt.run_id, attempt.token)
        self._next_hold = due + HOLD_S  # where the database was away meanwhile all are held before any is taken back

    def _end_leftovers(self, statuses: Mapping[str, Status], live: Collection[str]) -> None:
        """End jobs that are said to run long after their attempt: Slurm does not hear of a process that it has lost."""
        now = time.monotonic()
        left = [n for n, s in statuses.items() if s.state is JobState.RUNNING and n not in live]
        self._left = {name: self._left.get(name, now) for name in left}
        for name, since in self._left.items():
            if now - since > GRACE_S:
                self._engine.cancel(name, 0.0)

    def tell_waiting(self, statuses: Mapping[str, Status]) -> None:
        """Say each reason why jobs wait once: some end only if the user does something."""
        for status in statuses.values():
            if status.state is JobState.PENDING and status.reason not in ("", "None", *self._told):
                self._told.add(status.reason)
                self._say(f"jobs wait in the queue of {self._engine.name}: {status.reason}")

    def expire(self) -> None:
        """Take the runs back whose lease is over, and end what is left of their attempts."""
        for attempt in self._store.expire():
            self._say(f"{attempt.submit_name}: no heartbeat, taken back")
            self._engine.cancel(attempt.submit_name, 0.0)
            _kill_processes(RunFolder.of(self._store.home, attempt.fingerprint, attempt.token))

    def stop(self, grace: float) -> None:
        """Ask all attempts to end."""
        for name in self._flights:
            self._engine.cancel(name, grace)

    def leave(self) -> None:
        """Let go of all attempts: the next scheduler finds those that go on by name."""
        if self._flights:
            self._say(f"{len(self._flights)} runs have not ended, as the engine says: the next start looks for them")
        self._flights.clear()

    def cap(self, name: str) -> None:
        """Ask an attempt to write a checkpoint and end, because the budget of its study is used up."""
        self._flights[name].capped = True
        self._engine.cancel(name, GRACE_S)

    def _settle(self, attempt: AttemptRecord, *, fault: bool, reason: str) -> None:
        """End what is left of an attempt, then record the outcome that its supervisor left, or put the run back."""
        folder = RunFolder.of(self._store.home, attempt.fingerprint, attempt.token)
        if not _kill_processes(folder):
            return  # still dying: its lease will run out
        with suppress(LostLease):
            if self._reported(folder, attempt):
                return
            if fault:
                self._store.fail(attempt.run_id, attempt.token, "infrastructure", reason)
            else:
                self._store.release(attempt.run_id, attempt.token, reason)

    def _reported(self, folder: RunFolder, attempt: AttemptRecord) -> bool:
        """Record the outcome that a supervisor left, if it is whole; return whether that has ended its attempt."""
        try:
            report = {**read_json(folder.outcome), "run": attempt.run_id, "token": attempt.token}
            return bool(answer_or_fail(self._store, report)["ok"])
        except (RunFolderError, TypeError, KeyError):
            return False


def _kill_processes(folder: RunFolder) -> bool:
    """End the supervisor and the runner of an attempt on this host; return whether both have ended."""
    try:
        here: Mapping[str, Mapping[str, object]] = read_json(folder.attempt)
        leaders = [Identity.read(here["supervisor"]), Identity.read(here["runner"])]
    except (RunFolderError, KeyError, TypeError):
        return True  # the supervisor did not come so far as to start a runner
    others = [
        leader for leader in leaders if leader.pid != os.getpid()
    ]  # the inline engine's attempts are this process
    return sum(not kill_group(leader) for leader in others) == 0
