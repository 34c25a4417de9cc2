"""F3: a process is killed before every statement, commit, file and call of its engine, one after the other."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from faults import judge
from faults.judge import Verdict
from faults.sessions import work
from faults.world import Lines, World, ended, process
from paribus.attempt import supervisor
from paribus.audit.snapshot import Snapshot
from paribus.engines.inline import InlineEngine
from paribus.recipe.recipe import fingerprint_of
from paribus.scheduler import scheduler, serve
from paribus.scheduler.scheduler import worker_of
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.study.plan import Plan
from support.plans import small_plan

RULES = [{"do": "crash", "at": 2, "arm": "arm 1", "token": 1}, {"do": "requeue", "at": 2, "arm": "arm 2", "token": 1}]

_WROTE = "paribus_faults_wrote"


class Points:
    """Counts what this process does, and kills it before the chosen one.

    Args:
        last: number of the point before which to die; 0: never.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._lock = threading.Lock()
        self.names = list[str]()

    def here(self, name: str) -> None:
        """Pass a point, or die."""
        with self._lock:
            self.names.append(name)
            if len(self.names) == self._last:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, holder: Any, name: str) -> None:
        """Make a point before and after each call of a function or method."""
        function: Callable[..., Any] = getattr(holder, name)

        def called(*arguments: Any, **named: Any) -> Any:
            self.here(f"before {name}")
            result = function(*arguments, **named)
            self.here(f"after {name}")
            return result

        setattr(holder, name, called)

    def install(self) -> None:
        """Watch the database, the engine and the files of this process."""
        sa.event.listen(sa.Engine, "before_cursor_execute", self._statement)
        sa.event.listen(sa.Engine, "commit", self._commit)
        for name in ("submit", "cancel", "find", "close"):
            self.around(InlineEngine, name)
        for holder, name in ((scheduler, "Job"), (scheduler, "Spec"), (supervisor, "write_json")):
            self.around(holder, name)

    def _statement(self, connection: sa.Connection, _: object, text: str, *rest: object) -> None:
        if not text.startswith(("INSERT", "UPDATE", "DELETE")):
            return  # to die before it leaves what dying before the next change leaves
        connection.info[_WROTE] = True
        self.here(" ".join(text.split()[:3]))

    def _commit(self, connection: sa.Connection) -> None:
        if connection.info.pop(_WROTE, False):
            self.here("COMMIT")


def quick() -> None:
    """Run jobs inside this process, look at no progress, and wait for nothing."""
    serve.load_engine = lambda _: InlineEngine  # type: ignore[attr-defined]
    serve.LOOK_S = 1e12  # type: ignore[misc]
    serve.ServingLoop.show_s = 1e12
    scheduler.Scheduler.period_s = 0.005
    supervisor._UNASKED_WAIT_S = 0.0


def crashes(world: World) -> Verdict:
    """Whatever the process was doing: another one goes on, and everything that was acknowledged is there."""
    world.orders(json.dumps({"rules": RULES}))
    world.store().close()
    told, wrong = Lines(), list[str]()
    with process(life, world.home, 0, 0, told) as whole:
        ended(whole)
    told.new()
    names = json.loads(world.home.with_name("points").read_text())
    stride = 1 if not world.short else max(1, len(names) // 12)
    chosen = range(1 + world.random.randrange(stride), len(names) + 1, stride)
    died = 0
    for last in chosen:
        with process(life, world.home, last, last, told) as victim:
            victim.join()
            died += victim.exitcode == -signal.SIGKILL
        wrong += after(world, last, names[last - 1], told.new())
    s = world.snapshot()
    return judge.judge(
        s, trials=len(chosen), faults=died, home=world.home, expected=(RunState.SUCCEEDED, RunState.CANCELLED),
        wrong=[*wrong, *judge.broken_records(s, world.home)],
        note=f"trials: points, of {len(names)} that were found",
    )  # fmt: skip


def after(world: World, number: int, name: str, told: list[tuple[str, str]]) -> list[str]:
    """Look at what a crash left, go on, and look again; return what must not be."""
    place = f"point {number} ({name})"
    before = world.snapshot(folders=False)
    wrong = [f"{place}: {v.rows}: {v.invariant} {v.message}" for v in judge.audit(before)]
    studies = {x.name for x in before.studies}
    asked = {what for kind, what in told if kind == "submit"}
    wrong += [f"{place}: the submit of {name} was acknowledged" for name in asked - studies]
    for plan in plans(number):
        with process(work, world.home, plan, 1, quick) as session_:
            ended(session_)
    s = world.snapshot(folders=False)
    wrong += [f"{place}: {v.rows}: {v.invariant} {v.message}" for v in judge.audit(s)]
    if ("cancel", "arm3") in told and arm_state(s, f"direct{number}", "arm3") is not RunState.CANCELLED:
        wrong.append(f"{place}: the cancellation of arm3 was acknowledged")
    return wrong


def arm_state(s: Snapshot, study: str, arm: str) -> RunState:
    """Return the state of the only run of an arm."""
    ids = {x.id for x in s.studies if x.name == study}
    run = next(k.run_id for k in s.links if k.study_id in ids and k.arm == arm)
    return next(r.state for r in s.runs if r.id == run)


def plans(number: int) -> tuple[Plan, Plan]:
    """Return the two studies of a trial; no other has their runs."""
    made = small_plan(f"direct{number}", arms=4, seeds=1), small_plan(f"whole{number}", arms=3, seeds=1)
    return own(made[0]), own(made[1])


def own(plan: Plan) -> Plan:
    """Return a plan with runs that no other study has."""
    runs = tuple(replace(r, fingerprint=fingerprint_of([plan.study, r.fingerprint])) for r in plan.runs)
    return replace(plan, runs=runs)


def life(home: Path, number: int, last: int, told: Lines) -> None:
    """Do all that can be done with runs: claim, submit, start, renew, finish, release, fail, cancel, try again."""
    direct, whole = plans(number)
    points = Points(last)
    points.install()
    with Store.open(home) as store:
        study = store.add_study(direct)
        told.put(("submit", study.name))
        take = [store.claim(study.id, engine="inline", worker=worker_of(home)) for _ in range(3)]
        one, two, three = (c for c in take if c is not None)
        for claim in (one, two, three):
            store.set_external_id(claim.run_id, claim.token, claim.submit_name)
            store.start(claim.run_id, claim.token)
        store.release(one.run_id, one.token, "interrupted")
        store.fail(two.run_id, two.token, "program", "why", "signature")
        store.cancel(study.name, three.arm)
        store.cancelled(three.run_id, three.token)
        store.retry(study.name, three.arm, author="somebody", reason="after all")
        store.cancel(study.name, "arm3")
        told.put(("cancel", "arm3"))
    for plan in (direct, whole):
        work(home, plan, 1, quick)
    if last == 0:
        home.with_name("points").write_text(json.dumps(points.names))
