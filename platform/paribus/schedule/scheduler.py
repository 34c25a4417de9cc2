"""The loop that brings a study to its end: takes runs in queue order, starts attempts, and clears up after them.

An attempt is submitted in two steps: the intent, with a name that no other attempt has, is in the store before the
engine hears of it; so after a crash nothing is started that nobody knows of.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from paribus.engines.base import Engine, JobState, Spec, Status
from paribus.engines.process import Identity, kill_group
from paribus.errors import EngineError, LostLease, RunFolderError, RunnerError, StoreError
from paribus.schedule import prepare
from paribus.schedule.desk import answer_to
from paribus.schedule.signature import storage_failure
from paribus.store.budget import OVERRUN_S, shown_use
from paribus.store.database import Unreachable
from paribus.store.records import AttemptRecord, Claim, StudyRecord, unit_of
from paribus.store.states import TERMINAL
from paribus.store.store import Store
from paribus.study.job import Job
from paribus.track.folder import RunFolder, read_json

GRACE_S = 25.0
"""Seconds that an engine gives an attempt to end: longer than the supervisor gives its runner."""

PERIOD_S = 0.1
"""Seconds between two turns."""

CLAIMS = 8
"""Most runs that are claimed at once: all must have been submitted before the first lease is over."""

HOLD_S = 10.0
"""Seconds between two renewals for attempts that have no supervisor yet."""

START_S = 300.0
"""Seconds that a job may take from its start to its supervisor's first word."""

CHECK_S = 1.0
"""Seconds between two looks at what the attempts in flight have used of the budget."""

LOST_S = 60.0
"""Seconds after which a job that the engine does not know is taken for lost, where no lease tells."""


class Ending(StrEnum):
    """Why the scheduler came to its end."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"
    PAUSED = "paused"


class Scheduler:
    """Runs one study on one engine.

    Args:
        store: the store, open for writing.
        engine: where runs are started; made for this scheduler.
        study: the study.
        office: address that supervisors report to.
        say: takes one line for people about each thing that happens.
        host: name of this machine.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        study: StudyRecord,
        office: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        host: str = "",
    ) -> None:
        self._store = store
        self._engine = engine
        self._study = study
        self._plan = study.plan
        self._office = office
        self._say = say
        self._host = host or socket.gethostname()
        self._running: dict[str, Claim | AttemptRecord] = {}
        self._started: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._next_hold = 0.0
        self._told: set[str] = set()
        self._interrupts = self._obeyed = 0
        self._next_check = 0.0
        self._broke = False
        self._capped: set[str] = set()

    @property
    def interrupted(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._interrupts > 0

    def interrupt(self) -> None:
        """Stop: no new attempts, and those that run write a checkpoint and end. Called again: end them by force."""
        self._interrupts += 1

    # ---- before the first attempt ----------------------------------------------------------------

    def reconcile(self) -> None:
        """Clear up after a scheduler of this host that was killed.

        Jobs that wait or run in the engine all the same go on; the other attempts are ended and their runs queued.

        Raises:
            EngineError: the engine cannot tell which jobs it has.
        """
        for attempt in self._store.live_attempts():
            if attempt.worker != self._host:
                continue
            name = attempt.submit_name
            known = attempt.engine == self._engine.name and self._engine.find(name) is not None
            if known and self._engine.poll([name])[name].state in (JobState.PENDING, JobState.RUNNING):
                self._running[name] = attempt
                self._say(f"{name}: still there")
            else:
                self._settle(attempt, fault=False, reason="the scheduler was gone")

    def prepare(self, wait: Callable[[], None]) -> None:
        """Let the runner make what the runs share: tiny models, data.

        Args:
            wait: called between two looks.

        Raises:
            RunnerError: the runner cannot; the message holds the end of its log.
        """
        unfinished = {arm for arm, state in self._store.tally(self._study.id) if state not in TERMINAL}
        parts = prepare.shared_parts(a.recipe for a in self._plan.arms if a.key in unfinished)
        session = secrets.token_hex(3)  # an engine may remember what an earlier session prepared
        waiting, started = {f"{name}-{session}": recipe for name, recipe in parts.items()}, dict[str, float]()
        logs = {name: self._store.home / "prepare" / f"{name}.log" for name in waiting}
        while waiting or started:
            while waiting and self._engine.capacity() > 0 and not self.interrupted:
                name, recipe = waiting.popitem()
                spec = prepare.specification(self._plan.runner, recipe, self._cache(), logs[name])
                self._say(f"preparing {recipe.model.name} for {recipe.task.kind}")
                self._engine.submit(spec, name)
                started[name] = time.monotonic()
            if self.interrupted:
                waiting.clear()
                for name in started:
                    self._engine.cancel(name, 0.0)
            statuses = self._engine.poll(started)
            self._tell_waiting(statuses)
            for name, status in statuses.items():
                if status.state is JobState.ENDED or self._lost(started, name, status):
                    del started[name]
                    if status.exit_code != 0 and not self.interrupted:
                        raise self._unprepared(logs[name], status)
            wait()

    def _lost(self, seen: dict[str, float], name: str, status: Status) -> bool:
        now = time.monotonic()
        if status.state is not JobState.UNKNOWN:
            seen[name] = now
        return now - seen[name] > LOST_S

    def _unprepared(self, log: Path, status: Status) -> RunnerError:
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        if not tail:
            tail = f"its job ended before its first word{f' ({status.reason})' if status.reason else ''}."
            if self._engine.reach is not None:
                here, said = self._store.home, self._store.home / "engine"
                tail += f" Do the nodes see {here} and the Python environment? What they said is in {said}"
        return RunnerError(f"the runner `{self._plan.runner}` could not prepare the study:\n{tail}")

    # ---- the loop --------------------------------------------------------------------------------

    def run(self, wait: Callable[[], None]) -> Ending:
        """Take turns until the study has come to its end, or somebody asks to stop.

        While the database cannot be reached the runs go on as long as their leases allow.

        Args:
            wait: called between two turns; sleeps, and shows progress.

        Raises:
            Unreachable: the database cannot be reached, and somebody asked to stop.
        """
        gone = False
        while True:
            try:
                ending = self.turn()
            except Unreachable as error:
                if self.interrupted:
                    raise
                if not gone:
                    self._say(f"{error} Trying again; Ctrl-C stops.")
                gone = True
            else:
                gone = False
                if ending is not None:
                    return ending
            wait()

    def turn(self) -> Ending | None:
        """Take one turn; return why to stop, or ``None`` to go on."""
        self._collect()
        for attempt in self._store.expire():
            self._say(f"{attempt.submit_name}: no heartbeat, taken back")
            self._engine.cancel(attempt.submit_name, 0.0)
            _kill_processes(RunFolder.of(self._store.home, attempt.fingerprint, attempt.token))
        if self._interrupts > self._obeyed:
            self._stop_attempts()
        elif not self.interrupted:
            self._keep_to_budget()
            self._claim()
        if self._running:
            return None
        if self._finished():
            return Ending.COMPLETE
        if self.interrupted:
            return Ending.INTERRUPTED
        if self._store.paused(self._study.id):
            return Ending.PAUSED
        return Ending.BUDGET if self._broke else None

    def _finished(self) -> bool:
        return self._store.finished(self._study.id)

    def _collect(self) -> None:
        """Let go of attempts whose processes have ended; those that reported nothing are settled.

        A job that the engine does not know may run all the same: it holds its run as long as it renews its lease.
        """
        statuses = self._engine.poll(tuple(self._running))
        self._hold(statuses)
        ended = [n for n, s in statuses.items() if s.state in (JobState.ENDED, JobState.UNKNOWN)]
        if not ended:
            return
        live = {a.submit_name: a for a in self._store.live_attempts()}
        for name in ended:
            if name in live and statuses[name].state is JobState.UNKNOWN:
                continue
            if name in live:
                told = f" ({statuses[name].reason})" if statuses[name].reason else ""
                asked = self.interrupted or name in self._capped
                reason = "interrupted" if asked else f"the supervisor ended without a report{told}"
                self._settle(live[name], fault=not asked, reason=reason)
            del self._running[name]
            self._capped.discard(name)

    def _hold(self, statuses: Mapping[str, Status]) -> None:
        """Renew the leases of attempts that wait in the engine's queue, or are just starting: nobody else does yet."""
        self._tell_waiting(statuses)
        now = time.monotonic()
        for name, status in statuses.items():
            if status.state is JobState.RUNNING:
                self._started.setdefault(name, now)
        if now < self._next_hold:
            return
        self._next_hold = now + HOLD_S
        live = self._store.live_attempts()
        self._end_leftovers(statuses, {a.submit_name for a in live})
        for attempt in live:
            name = attempt.submit_name
            state = statuses[name].state if name in statuses and attempt.started_at is None else JobState.UNKNOWN
            starting = state is JobState.RUNNING and now - self._started[name] < START_S
            if not (starting or state is JobState.PENDING):
                continue
            with suppress(LostLease):
                if self._store.renew(attempt.run_id, attempt.token).cancel:
                    self._engine.cancel(name, 0.0)
                    self._store.cancelled(attempt.run_id, attempt.token)

    def _end_leftovers(self, statuses: Mapping[str, Status], live: Collection[str]) -> None:
        """End jobs that are said to run long after their attempt: Slurm does not hear of a process that it has lost."""
        now = time.monotonic()
        left = [n for n, s in statuses.items() if s.state is JobState.RUNNING and n not in live]
        self._left = {name: self._left.get(name, now) for name in left}
        for name, since in self._left.items():
            if now - since > GRACE_S:
                self._engine.cancel(name, 0.0)

    def _tell_waiting(self, statuses: Mapping[str, Status]) -> None:
        """Say each reason why jobs wait once: some end only if the user does something."""
        for status in statuses.values():
            if status.state is JobState.PENDING and status.reason not in ("", "None", *self._told):
                self._told.add(status.reason)
                self._say(f"jobs wait in the queue of {self._engine.name}: {status.reason}")

    def _stop_attempts(self) -> None:
        self._obeyed = self._interrupts
        for name in self._running:
            self._engine.cancel(name, GRACE_S if self._interrupts == 1 else 0.0)

    def _settle(self, attempt: AttemptRecord, *, fault: bool, reason: str) -> None:
        """End what is left of an attempt, then record the outcome that its supervisor left, or put the run back."""
        folder = RunFolder.of(self._store.home, attempt.fingerprint, attempt.token)
        if not _kill_processes(folder):
            return  # still dying: its lease will run out
        with suppress(LostLease):
            if folder.outcome.exists() and answer_to(self._store, read_json(folder.outcome)).get("ok"):
                return
            if fault:
                self._store.fail(attempt.run_id, attempt.token, "infrastructure", reason)
            else:
                self._store.release(attempt.run_id, attempt.token, reason)

    # ---- new attempts ----------------------------------------------------------------------------

    def _claim(self) -> None:
        self._broke = self._broke and self._is_broke()
        while (free := self._engine.capacity()) > 0 and not self._broke:
            where = {"engine": self._engine.name, "worker": self._host}
            gpus = self._engine.gpus_per_run
            claims = self._store.claim_many(self._study.id, min(free, CLAIMS), gpus=gpus, **where)
            if not claims:
                self._broke = self._is_broke()
                return
            self._start_all(claims)

    def _start_all(self, claims: Sequence[Claim]) -> None:
        for number, claim in enumerate(claims, 1):
            try:
                self._start(claim)
            except (EngineError, StoreError):
                for unstarted in claims[number:]:
                    self._store.release(unstarted.run_id, unstarted.token, "the one before it could not be started")
                raise

    def _start(self, claim: Claim) -> None:
        arm = self._plan.arm(claim.arm)
        folder = RunFolder.of(self._store.home, claim.fingerprint, claim.token)
        job = Job(
            run=claim.fingerprint,
            study=self._study.name,
            arm=arm.label,
            runner=self._plan.runner,
            seed=claim.seed,
            token=claim.token,
            recipe=arm.recipe,
            evaluate=self._plan.evaluate,
            cache=str(self._cache()),
            stop_on=self._plan.stop_on,
        )
        try:
            folder.path.mkdir(parents=True)
            folder.job.write_text(job.model_dump_json(indent=1))
        except FileExistsError:
            self._store.release(claim.run_id, claim.token, "its folder exists already")
            raise StoreError(
                f"the folder {folder.path} exists already, but the store knows nothing of it. It belongs to a store "
                f"that is gone: move {folder.path.parent} away, and type the same command again."
            ) from None
        except OSError as error:
            trouble = storage_failure(f"OSError: {error}", folder.path)
            self._store.fail(claim.run_id, claim.token, "storage", trouble.reason, trouble.signature)
            return
        arguments = (str(folder.path), str(self._office), str(claim.run_id))
        spec = Spec(module="paribus.schedule.supervisor", arguments=arguments)
        self._running[claim.submit_name] = claim
        self._say(f"{arm.label}, seed {claim.seed}: attempt {claim.token}")
        try:
            external_id = self._engine.submit(spec, claim.submit_name)
        except EngineError as error:
            del self._running[claim.submit_name]
            self._store.release(claim.run_id, claim.token, str(error))
            raise
        self._store.submitted(claim.run_id, claim.token, external_id)

    # ---- the budget ------------------------------------------------------------------------------

    def _is_broke(self) -> bool:
        """Tell whether the budget has too little left for one more attempt; what is in flight may need less."""
        budget = self._store.budget(self._study.name, unit_of(self._engine.gpus_per_run))
        if not budget.allows_another and not self._broke:
            self._say(
                f"the budget has too little left ({shown_use(budget)}; another run may need "
                f"{budget.estimate / 3600:.3g}): no new attempts for now"
            )
        return not budget.allows_another

    def _keep_to_budget(self) -> None:
        """End the attempts in flight with grace, when they have used the budget up; their checkpoints stay."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        fresh = [name for name in self._running if name not in self._capped]
        budget = self._store.budget(self._study.name, unit_of(self._engine.gpus_per_run)) if fresh else None
        if budget is None or not budget.used_up:
            return
        most = len(self._running) * (self._engine.gpus_per_run or 1.0) * OVERRUN_S / 3600
        self._say(
            f"the budget is used up ({shown_use(budget)}): the runs write a checkpoint and end; {most:.3g} more at most"
        )
        for name in fresh:
            self._capped.add(name)
            self._engine.cancel(name, GRACE_S)

    def _cache(self) -> Path:
        return self._store.home / "cache"


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
