"""The loop that brings studies to their end: takes runs in a fair order, starts attempts, and clears up after them.

An attempt is submitted in two steps: the intent, with a name that no other attempt has, is in the store before the
engine hears of it; so after a crash nothing is started that nobody knows of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from paribus.engines.base import Engine, Need, Spec
from paribus.errors import EngineError, ParibusError, RunnerError, StoreError
from paribus.schedule import prepare
from paribus.schedule.budgets import Budgets
from paribus.schedule.devices import Devices
from paribus.schedule.fair_share import Demand, Shares, choose
from paribus.schedule.flights import GRACE_S, Flights
from paribus.schedule.preparation import Preparation
from paribus.schedule.served import Served
from paribus.schedule.signature import storage_failure
from paribus.schedule.worker import host_of, worker_of
from paribus.store.database import Unreachable
from paribus.store.records import Claim, StudyRecord, Unit, unit_of
from paribus.store.states import TERMINAL
from paribus.store.store import Store
from paribus.study.job import Job
from paribus.track.folder import RunFolder

PERIOD_S = 0.1
"""Seconds between two turns."""

CLAIMS = 8
"""Most runs that are claimed at once: all must have been submitted before the first lease is over."""

FULL_S = 1.0
"""Seconds before a machine is asked again that had nothing for another run of a study, unless one of its jobs ends."""


class Ending(StrEnum):
    """Why a study is not served any more."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"
    PAUSED = "paused"
    LEFT = "left"


class Scheduler:
    """Runs studies on one engine.

    Args:
        store: the store, open for writing.
        engine: where runs are started; made for this scheduler.
        office: address that supervisors report to.
        say: takes one line for people about each thing that happens.
        worker: who this scheduler is; the next one of the same name clears up after it.
        pause: pause a study that cannot be prepared or started, instead of raising its error.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        office: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        worker: str = "",
        pause: bool = False,
    ) -> None:
        self._store = store
        self._engine = engine
        self._office = office
        self._say = say
        self._worker = worker or worker_of(store.home)
        self._pause = pause
        self._flights = Flights(store, engine, self._worker, say)
        self._budgets = Budgets(store, self._flights, say)
        self._devices = Devices(store, engine, host_of(self._worker), say)
        self._served: dict[int, Served] = {}
        self._units: dict[str, Unit] = {}
        self._prepared: set[tuple[str, str]] = set()
        self._shares = Shares()
        self._interrupts = self._obeyed = 0

    @property
    def studies(self) -> Mapping[int, StudyRecord]:
        """The studies that are served, by number."""
        return {number: served.study for number, served in self._served.items()}

    @property
    def idle(self) -> bool:
        """Whether no study is served and nothing is in flight."""
        return not self._served and not self._flights

    @property
    def interrupted(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._interrupts > 0

    def interrupt(self) -> None:
        """Stop: no new attempts, and those that run write a checkpoint and end.

        Called again: end them by force. Called a third time: leave those that the engine cannot end.
        """
        self._interrupts += 1

    def reconcile(self) -> None:
        """Clear up after a scheduler of this name that was killed.

        Jobs that wait or run in the engine all the same go on; the other attempts are ended and their runs queued.

        Raises:
            EngineError: the engine cannot tell which jobs it has.
        """
        self._flights.adopt()

    # ---- which studies ---------------------------------------------------------------------------

    def take_up(self, study: StudyRecord) -> None:
        """Serve a study; one that is served already gets what was edited of it: priority, weight, resources.

        Raises:
            TooLarge: the engine will never have what a run of it asks for.
        """
        need = self.need(study)
        self._units[study.name] = unit_of(need.gpus)
        if (served := self._served.get(study.id)) is not None:
            served.study, served.need, served.full_until = study, need, 0.0
            return
        unfinished = {arm for arm, state in self._store.tally(study.id) if state not in TERMINAL}
        shared = prepare.shared_parts(a.recipe for a in study.plan.all_arms if a.key in unfinished)
        parts = {n: recipe for n, recipe in shared.items() if (study.plan.runner, n) not in self._prepared}
        say = self._named(study)
        made = Preparation(self._engine, self._store.home, study.plan.runner, parts, need, say) if parts else None
        self._served[study.id] = Served(study=study, need=need, preparation=made)

    def need(self, study: StudyRecord) -> Need:
        """Return what a run of a study holds.

        Raises:
            TooLarge: the engine will never have so much.
        """
        return self._engine.need(study.plan.resources)

    def drop(self, study_id: int) -> None:
        """Start no more runs of a study; what is in flight comes to its end."""
        preparation = self._served.pop(study_id).preparation
        if preparation is not None:
            preparation.cancel()

    def affords(self, study: str) -> bool:
        """Return whether the budget of a study allows another attempt, as far as it was seen what its runs hold."""
        unit = self._units.get(study)
        return self._store.affords(study) if unit is None else self._store.budget(study, unit).allows_another

    def flies(self, study: str) -> bool:
        """Return whether attempts of any plan of a name are in flight."""
        return bool(self._flights.of(study))

    # ---- the loop --------------------------------------------------------------------------------

    def run(self, wait: Callable[[], None], enough: Callable[[Mapping[int, Ending]], bool]) -> None:
        """Take turns until it is enough.

        While the database cannot be reached the runs go on as long as their leases allow. Where studies are paused for
        what is wrong with them, an engine that cannot be asked is asked again, too: no study is to blame.

        Args:
            wait: called between two turns; sleeps, shows progress, takes up studies.
            enough: called after each turn with the studies that came to an end in it; returns whether to stop.

        Raises:
            Unreachable: the database cannot be reached, and somebody asked to stop.
            EngineError: the same of the engine; or, where studies are not paused, it refuses one.
        """
        gone = False
        while True:
            try:
                if enough(self.turn()):
                    return
                gone = False
            except (Unreachable, EngineError) as error:
                if self.interrupted or not (self._pause or isinstance(error, Unreachable)):
                    raise
                if not gone:
                    self._say(f"{error} Trying again; Ctrl-C stops.")
                gone = True
            wait()

    def turn(self) -> Mapping[int, Ending]:
        """Take one turn; return the studies that are not served any more, and why."""
        if self._flights.collect(stopping=self.interrupted):
            self._devices.left()
            for served in self._served.values():
                served.full_until = 0.0
        self._flights.expire()
        if self._interrupts > self._obeyed:
            self._stop()
        elif not self.interrupted:
            self._budgets.keep()
            self._prepare()
            self._claim()
        endings = self._endings()
        for number in endings:
            del self._served[number]
        return endings

    def _stop(self) -> None:
        self._obeyed = self._interrupts
        self._flights.stop(GRACE_S if self._interrupts == 1 else 0.0)
        if self._interrupts > 2:
            self._flights.leave()
        for served in self._served.values():
            if served.preparation is not None:
                served.preparation.cancel()
                served.preparation = None

    def _endings(self) -> dict[int, Ending]:
        quiet = [n for n, s in self._served.items() if s.preparation is None and not self._flights.of(s.study.name)]
        endings = {}
        for study in self._store.entries(quiet) if quiet else ():
            if not study.open:
                endings[study.id] = Ending.COMPLETE
            elif self.interrupted:
                endings[study.id] = Ending.INTERRUPTED
            elif study.paused:
                endings[study.id] = Ending.PAUSED
            elif self._served[study.id].broke:
                endings[study.id] = Ending.BUDGET
        return endings

    def _prepare(self) -> None:
        for served in list(self._served.values()):
            if served.preparation is None:
                continue
            try:
                left = served.preparation.turn()
            except (RunnerError, EngineError) as error:
                if self._pause:
                    self._trouble(served, error)  # first: where the database is away, the next turn fails again
                served.preparation.cancel()
                served.preparation = None
                if not self._pause:
                    raise
                continue
            self._flights.tell_waiting(left)
            if not left:
                self._prepared |= {(served.study.plan.runner, part) for part in served.preparation.parts}
                served.preparation = None

    def _trouble(self, served: Served, error: ParibusError) -> None:
        """Pause a study that cannot go on; alone on the command line, its error is that of the command."""
        if not self._pause:
            raise error
        self._store.pause(served.study.id, str(error))

    # ---- new attempts ----------------------------------------------------------------------------

    def _claim(self) -> None:
        asking = {n: s for n, s in self._served.items() if self._asks(s)}
        while asking := {n: s for n, s in asking.items() if self._engine.capacity(s.need) > 0}:
            number, count = self._next([s.study for s in asking.values()])
            served, where = asking[number], {"engine": self._engine.name, "worker": self._worker}
            count = min(count, self._engine.capacity(served.need))
            pool = self._devices.pool(served.need, self._flights.busy)
            claims = self._store.claim_many(number, count, gpus=served.need.gpus, pool=pool, **where)
            if not claims:
                del asking[number]
                served.broke = self._budgets.is_broke(served)
                served.full_until = time.monotonic() + FULL_S if pool else 0.0
                continue
            try:
                self._start_all(served, claims)
            except Unreachable:
                raise
            except (EngineError, StoreError) as error:
                del asking[number]
                self._trouble(served, error)

    def _asks(self, served: Served) -> bool:
        ready = served.preparation is None and time.monotonic() >= served.full_until
        return ready and not self._budgets.still_broke(served)

    def _next(self, studies: Sequence[StudyRecord]) -> tuple[int, int]:
        """Return the study that begins the next run, and how many it begins before another one is due."""
        demands = {s.id: self._demand(s) for s in studies}
        chosen, self._shares = choose(self._shares, tuple(demands.values()))
        for count in range(1, CLAIMS):
            more = demands[chosen]
            demands[chosen] = replace(more, used=more.used + more.cost)
            if choose(self._shares, tuple(demands.values()))[0] != chosen:
                return chosen, count
        return chosen, CLAIMS

    def _demand(self, study: StudyRecord) -> Demand:
        used, cost = self._flights.use(study.name)
        return Demand(study=study.id, priority=study.priority, weight=study.weight, used=used, cost=cost)

    def _start_all(self, served: Served, claims: Sequence[Claim]) -> None:
        for number, claim in enumerate(claims, 1):
            try:
                self._start(served, claim)
            except (EngineError, StoreError):
                for unstarted in claims[number:]:
                    self._store.release(unstarted.run_id, unstarted.token, "the one before it could not be started")
                raise

    def _start(self, served: Served, claim: Claim) -> None:
        study, plan = served.study, served.study.plan
        arm = plan.arm(claim.arm)
        folder = RunFolder.of(self._store.home, claim.fingerprint, claim.token)
        job = Job(
            run=claim.fingerprint,
            study=study.name,
            arm=arm.label,
            runner=plan.runner,
            seed=claim.seed,
            token=claim.token,
            recipe=arm.recipe,
            evaluate=plan.evaluate,
            cache=str(self._store.home / "cache"),
            stop_on=plan.stop_on,
            profile=plan.profile,
        )
        try:
            folder.path.mkdir(parents=True)
            folder.job.write_text(job.model_dump_json(indent=1))
        except FileExistsError:
            self._store.release(claim.run_id, claim.token, "its folder exists already")
            jobs = claim.submit_name.removesuffix(f"a{claim.token}")  # an old exit status would end the new job
            raise StoreError(
                f"the folder {folder.path} exists already, but the store knows nothing of it. It belongs to a store "
                f"that is gone: move {folder.path.parent} away, and, if they are there, the files {jobs}* in the "
                f"folders of {self._store.home / 'engine'}; then type the same command again."
            ) from None
        except OSError as error:
            trouble = storage_failure(f"OSError: {error}", folder.path)
            self._store.fail(claim.run_id, claim.token, "storage", trouble.reason, trouble.signature)
            return
        arguments = (str(folder.path), str(self._office), str(claim.run_id))
        spec = Spec(module="paribus.schedule.supervisor", arguments=arguments, need=served.need, gpus=claim.devices)
        self._flights.enter(claim.submit_name, study.name, claim.gpus, claim.devices)
        self._named(study)(f"{arm.label}, seed {claim.seed}: attempt {claim.token}")
        try:
            external_id = self._engine.submit(spec, claim.submit_name)
        except EngineError as error:
            self._flights.forget(claim.submit_name)
            self._store.release(claim.run_id, claim.token, str(error))
            raise
        self._store.submitted(claim.run_id, claim.token, external_id)

    def _named(self, study: StudyRecord) -> Callable[[str], None]:
        return lambda line: self._say(f"{study.name}: {line}")
