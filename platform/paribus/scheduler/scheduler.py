"""The scheduler: claims runs in a fair order, starts their attempts, and cleans up after them, one turn at a time.

An attempt is submitted in two steps. Its intent, with a unique name, is committed to the store before the engine gets
the job, so a crash can't leave a job that the store doesn't know.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from paribus.contract import Job, Need
from paribus.engines.base import Engine, Spec, need_of, outlives_scheduler
from paribus.errors import EngineError, ParibusError, RunnerError, StoreError
from paribus.failures import storage_failure
from paribus.monitor.progress import Preparing
from paribus.run_folder.folder import RunFolder
from paribus.scheduler.active_attempts import GRACE_S, ActiveAttempts
from paribus.scheduler.fair_share import Demand, FairShare
from paribus.scheduler.setup_jobs import SetupJobs, prepared, shared_parts
from paribus.store.attempts import ANYWHERE
from paribus.store.budget import OVERRUN_S, shown_use
from paribus.store.database import StudyDeleted, Unreachable
from paribus.store.devices import Pool
from paribus.store.models import Claim, StudyRecord, Unit, unit_of
from paribus.store.states import TERMINAL
from paribus.store.store import Store
from paribus.study.stages import located
from paribus.text import plural

CLAIMS = 8
"""Most runs that are claimed at once: all must be submitted before the first lease expires."""

FULL_S = 1.0
"""Seconds before a machine without room for a study's next run is asked again, unless one of its jobs ends."""

CHECK_S = 1.0
"""Seconds between two checks of what the active attempts have used of their budgets."""


class Ending(StrEnum):
    """Why a study is no longer served."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"
    PAUSED = "paused"
    DETACHED = "detached"


@dataclass(kw_only=True)
class ActiveStudy:
    """A study that is served.

    Attributes:
        need: what each of its runs holds.
        setup: jobs that must end before the first run starts; ``None`` afterwards.
        error: why it starts no more runs; raised when the active attempts have ended.
        out_of_budget: its budget doesn't allow another attempt.
        full_until: when to ask the machine again after it had no room for another run (monotonic seconds).
    """

    study: StudyRecord
    need: Need
    setup: SetupJobs | None
    error: ParibusError | None = None
    out_of_budget: bool = False
    full_until: float = 0.0

    @property
    def demand(self) -> Demand:
        """What it asks of the fair share."""
        study = self.study
        return Demand(study=study.id, priority=study.priority, weight=study.weight, slots=self.need.gpus or 1.0)


def worker_of(home: Path, *, anywhere: bool = False) -> str:
    """Return the store's name for the scheduler of a home folder: two folders may share a database.

    Args:
        home: the home folder.
        anywhere: its jobs outlive it, so the next one may run on another machine that sees the folder.
    """
    host = "" if anywhere else socket.gethostname()
    return f"{host}{ANYWHERE}{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:8]}"


class Scheduler:
    """Runs studies on one engine.

    Args:
        store: the store, open for writing.
        engine: where runs are started; made for this scheduler.
        server: address that supervisors report to.
        say: prints one line for the user.
        worker: its name in the store; the next scheduler of the same name cleans up after it.
        others: returns another engine by name, to end the jobs that an earlier scheduler gave it.
        pause: pause a study that can't be set up or started, instead of raising its error.
        clock: seconds that never go back; ``None``: those of this machine.
    """

    period_s = 0.1
    """Seconds between two turns."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        server: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        worker: str = "",
        pause: bool = False,
        others: Callable[[str], Engine] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.pause = pause
        self._clock = clock or (lambda: time.monotonic())
        anywhere = outlives_scheduler(engine)
        names = (worker_of(store.home, anywhere=anywhere), worker_of(store.home, anywhere=not anywhere))
        self._workers = (worker,) if worker else names
        self._store = store
        self._engine = engine
        self._server = server
        self._say = say
        self._worker = self._workers[0]
        self._attempts = ActiveAttempts(store, engine, self._worker, say, others, clock)
        self._active: dict[int, ActiveStudy] = {}
        self._units: dict[str, Unit] = {}
        self._shares = FairShare()
        self._devices: Mapping[str, int] | None = None
        self._next_check = 0.0
        self._interrupts = self._obeyed = 0

    @property
    def studies(self) -> Mapping[int, StudyRecord]:
        """The studies that are served, by number."""
        return {number: active.study for number, active in self._active.items()}

    @property
    def idle(self) -> bool:
        """Whether no study is served and no attempt is active."""
        return not self._active and not self._attempts

    @property
    def interrupted(self) -> bool:
        """Whether :meth:`interrupt` was called."""
        return self._interrupts > 0

    def interrupt(self) -> None:
        """Stop: start no attempts, and let the active ones write a checkpoint.

        The second call kills them; the third leaves those that the engine can't kill.
        """
        self._interrupts += 1

    def reconcile(self) -> None:
        """Clean up after a scheduler of this name that was killed.

        Jobs that still wait or run in the engine go on; the other attempts end, and their runs are queued.

        Raises:
            EngineError: the engine could not be asked.
        """
        self._attempts.adopt(self._workers)

    # ---- which studies ---------------------------------------------------------------------------

    def take_up(self, study: StudyRecord) -> None:
        """Serve a study. If it is served already, use its edited priority, weight and resources from now on.

        Raises:
            TooLarge: a run asks for more than the engine will ever have.
        """
        need = self.need(study)
        self._units[study.name] = unit_of(need.gpus)
        if (active := self._active.get(study.id)) is not None:
            active.study, active.need, active.full_until = study, need, 0.0
            return
        unfinished = {arm for arm, state in self._store.counts_by_arm(study.id) if state not in TERMINAL}
        shared = shared_parts(study.plan.runner, (a for a in study.plan.all_arms if a.key in unfinished))
        parts = {name: recipe for name, recipe in shared.items() if not prepared(self._store.home, name)}
        say = self._say_of(study)
        setup = SetupJobs(self._engine, self._store.home, study.plan.runner, parts, need.a_node, say) if parts else None
        self._active[study.id] = ActiveStudy(study=study, need=need, setup=setup)

    def need(self, study: StudyRecord) -> Need:
        """Return what a run of a study holds.

        Raises:
            TooLarge: it is more than the engine will ever have.
        """
        return need_of(self._engine, study.plan.resources)

    def drop(self, study_id: int) -> None:
        """Start no more runs of a study; active attempts go on."""
        setup = self._active.pop(study_id).setup
        if setup is not None:
            setup.cancel()

    def preparing(self, study_id: int) -> tuple[Preparing, ...]:
        """Return what is made before the first run of a study starts; empty afterwards."""
        active = self._active.get(study_id)
        return () if active is None or active.setup is None else active.setup.progress()

    def affords(self, study: str) -> bool:
        """Return whether a study's budget allows another attempt, in the unit in which its runs were last charged."""
        unit = self._units.get(study)
        return self._store.within_budget(study) if unit is None else self._store.budget(study, unit).allows_another

    def has_attempts(self, study: str) -> bool:
        """Return whether attempts of any plan of this name are active."""
        return bool(self._attempts.of(study))

    # ---- a turn ----------------------------------------------------------------------------------

    def turn(self) -> Mapping[int, Ending]:
        """Take one turn; return the studies that are no longer served, and why.

        Raises:
            Unreachable: the database can't be reached; runs go on as long as their leases allow.
            EngineError: the engine can't be asked or, without ``pause``, refused a job; in the latter case the active
                attempts have ended first.
            RunnerError: without ``pause``, a study can't be set up; the active attempts have ended.
        """
        if self._attempts.collect(stopping=self.interrupted):
            for active in self._active.values():
                active.full_until = 0.0
        for active in self._active.values():
            if active.error is not None and not self._attempts:
                raise active.error
        self._attempts.expire()
        if self._interrupts > self._obeyed:
            self._stop()
        elif not self.interrupted:
            self._enforce_budgets()
            self._set_up_studies()
            self._start_runs()
        endings = self._endings()
        for number in endings:
            del self._active[number]
        return endings

    def _stop(self) -> None:
        self._obeyed = self._interrupts
        self._attempts.stop(GRACE_S if self._interrupts == 1 else 0.0)
        if self._interrupts > 2:
            self._attempts.leave()
        for active in self._active.values():
            if active.setup is not None:
                active.setup.cancel()
                active.setup = None

    def _endings(self) -> dict[int, Ending]:
        quiet = [n for n, a in self._active.items() if a.setup is None and not self._attempts.of(a.study.name)]
        endings = {}
        known = self._store.summaries(quiet) if quiet else ()
        for number in {*quiet} - {study.id for study in known}:  # deleted
            endings[number] = Ending.COMPLETE
        for study in known:
            if not study.open:
                endings[study.id] = Ending.COMPLETE
            elif self.interrupted:
                endings[study.id] = Ending.INTERRUPTED
            elif study.paused:
                endings[study.id] = Ending.PAUSED
            elif self._active[study.id].out_of_budget:
                endings[study.id] = Ending.BUDGET
        return endings

    def _set_up_studies(self) -> None:
        for active in list(self._active.values()):
            if active.setup is None:
                continue
            try:
                left = active.setup.turn()
            except (RunnerError, EngineError) as error:
                if self.pause:
                    self._fault(active, error)  # first: if the database is away, the next turn fails here again
                active.setup.cancel()
                active.setup = None
                if not self.pause:
                    self._fault(active, error)
                continue
            self._attempts.report_waiting(left)
            if not left:
                active.setup = None

    def _fault(self, active: ActiveStudy, error: ParibusError) -> None:
        """Pause a study that can't go on or, without ``pause``, raise its error once the active attempts have ended."""
        if self.pause:
            self._store.pause(active.study.id, str(error))
            return
        if not self._attempts:
            raise error
        active.error = error  # raised now, it would end jobs that may have waited for days
        self._say_of(active.study)(
            f"{error}\n{plural(len(self._attempts), 'run goes', 'runs go')} on; no more are started"
        )

    # ---- budgets ---------------------------------------------------------------------------------

    def _check_budget(self, active: ActiveStudy) -> None:
        """Note whether a budget allows one more attempt; that of the active ones may become free again."""
        study = active.study.name
        budget = self._store.budget(study, unit_of(active.need.gpus))
        if not budget.allows_another and not active.out_of_budget:
            self._say(
                f"{study}: the budget has too little left ({shown_use(budget)}; another run may need "
                f"{budget.estimate / 3600:.3g}): no new attempts for now"
            )
        active.out_of_budget = not budget.allows_another

    def _enforce_budgets(self) -> None:
        """Ask the active attempts of studies that have used up their budgets to write a checkpoint and stop."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        for study, unit in self._attempts.budgets:
            running = self._attempts.uncapped(study, unit)
            budget = self._store.budget(study, unit) if running else None
            if budget is None or not budget.used_up:
                continue
            overrun = self._attempts.slots(study, unit) * OVERRUN_S / 3600
            self._say(
                f"{study}: the budget is used up ({shown_use(budget)}): the runs write a checkpoint and stop, "
                f"which uses up to {overrun:.3g} more"
            )
            for attempt in running:
                self._attempts.cap(attempt)

    # ---- new attempts ----------------------------------------------------------------------------

    def _start_runs(self) -> None:
        asking = {n: a for n, a in self._active.items() if self._can_start(a)}
        while asking := {n: a for n, a in asking.items() if self._engine.capacity(a.need) > 0}:
            demand, count = self._shares.choose([a.demand for a in asking.values()], CLAIMS)
            active = asking[demand.study]
            count = min(count, self._engine.capacity(active.need))
            pool, where = self._pool(active.need), {"engine": self._engine.name, "worker": self._worker}
            claims = self._store.claim_many(demand.study, count, gpus=active.need.gpus, pool=pool, **where)
            if not claims:
                del asking[demand.study]
                with suppress(StudyDeleted):  # this turn ends it
                    self._check_budget(active)
                active.full_until = self._clock() + FULL_S if pool else 0.0
                continue
            self._shares.start(demand, len(claims))
            try:
                self._start_all(active, claims)
            except Unreachable:
                raise
            except (EngineError, StoreError) as error:
                del asking[demand.study]
                self._fault(active, error)

    def _can_start(self, active: ActiveStudy) -> bool:
        if active.setup is not None or active.error is not None or self._clock() < active.full_until:
            return False
        if active.out_of_budget:
            with suppress(StudyDeleted):
                self._check_budget(active)
        return not active.out_of_budget

    def _pool(self, need: Need) -> Pool | None:
        """Return the devices that a run may get now; ``None`` if the engine places jobs itself."""
        host = self._worker.partition("/")[0]
        if self._devices is None:
            self._devices = self._store.register(host, self._engine.devices())
        if not self._devices:
            return None
        busy = self._attempts.busy
        return Pool(host=host, need=need, devices={n for name, n in self._devices.items() if name not in busy})

    def _start_all(self, active: ActiveStudy, claims: Sequence[Claim]) -> None:
        for number, claim in enumerate(claims, 1):
            try:
                self._start(active, claim)
            except (EngineError, StoreError):
                for unstarted in claims[number:]:
                    self._store.release(unstarted.run_id, unstarted.token, "the one before it could not be started")
                raise

    def _start(self, active: ActiveStudy, claim: Claim) -> None:
        study, plan = active.study, active.study.plan
        arm = plan.arm(claim.arm)
        folder = RunFolder.of(self._store.home, claim.fingerprint, claim.token)
        job = Job(
            run=claim.fingerprint,
            study=study.name,
            arm=arm.label,
            runner=plan.runner,
            options=plan.options,
            seed=claim.seed,
            gpus=active.need.gpus,
            nodes=active.need.nodes,
            token=claim.token,
            recipe=located(arm.recipe, self._store.home, plan.models_of(claim.fingerprint)),
            evaluate=plan.evaluate,
            cache=str(self._store.home / "cache"),
            stop_on=plan.stop_on,
            profile=plan.profile,
            rules=plan.rules,
            mirror=plan.mirror,
            checkpoint=plan.checkpoint,
            timeouts=plan.timeouts,
            hashes=plan.hashes_of(claim.arm, claim.fingerprint),
        )
        try:
            folder.path.mkdir(parents=True)
            folder.job.write_text(job.model_dump_json(indent=1))
        except FileExistsError:
            self._store.release(claim.run_id, claim.token, "its folder exists already")
            raise StoreError(self._folder_exists(claim, folder)) from None
        except OSError as error:
            trouble = storage_failure(f"OSError: {error}", folder.path)
            self._store.fail(claim.run_id, claim.token, "storage", trouble.reason, trouble.signature)
            return
        arguments = (str(folder.path), str(self._server), str(claim.run_id))
        spec = Spec(module="paribus.attempt.supervisor", arguments=arguments, need=active.need, gpus=claim.devices)
        self._attempts.enter(claim.submit_name, study.name, claim.gpus, claim.devices)
        self._say_of(study)(f"{arm.label}, seed {claim.seed}: attempt {claim.token}")
        try:
            external_id = self._engine.submit(spec, claim.submit_name)
        except EngineError as error:
            self._attempts.forget(claim.submit_name)
            self._store.release(claim.run_id, claim.token, str(error))
            raise
        self._store.set_external_id(claim.run_id, claim.token, external_id)

    def _folder_exists(self, claim: Claim, folder: RunFolder) -> str:
        jobs = claim.submit_name.removesuffix(f"a{claim.token}")  # a stale exit status would end the new job
        return (
            f"the folder {folder.path} exists already, but the store doesn't know this attempt; it belongs to a store "
            f"that is gone. Move {folder.path.parent} away and, if there are any, the files {jobs}* in the folders of "
            f"{self._store.home / 'engine'}; then type the same command again."
        )

    def _say_of(self, study: StudyRecord) -> Callable[[str], None]:
        return lambda line: self._say(f"{study.name}: {line}")
