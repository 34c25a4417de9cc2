"""F10, F17 and F18: starts, ends and submits that happen at the same moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from faults import judge
from faults.judge import Verdict
from faults.kills import finish_all
from faults.world import World, barrier, ended, lines, process
from paribus.errors import LostLease
from paribus.store.states import Move, RunState
from paribus.store.store import Store
from paribus.testing.plans import small_plan

STARTS = 32
TOGETHER = 50


def at_once(functions: list[Callable[..., None]], *arguments: Any) -> None:
    """Call functions in a process each, with what lets them go together as the last argument; wait for their end."""
    gate = barrier(len(functions))
    with ExitStack() as stack:
        children = [stack.enter_context(process(f, *arguments, gate)) for f in functions]
        for child in children:
            ended(child)


# ---- F10 ---------------------------------------------------------------------------------------------


def starts(world: World) -> Verdict:
    """Many processes open a store that is not there yet, and work in it."""
    told, trials = lines(), world.number(5, 1)
    migrations = Counter[str]()
    for trial in range(trials):
        home = world.home / str(trial)
        at_once([start] * STARTS, home, trial, told)
    while not told.empty():
        migrations[told.get()] += 1
    wrong = [f"{what}: {n} times" for what, n in migrations.items() if what != "migration"]
    made = migrations["migration"]
    if made != (trials if world.server is None else 1):
        wrong.append(f"{made} migrations of {trials} new stores")
    verdicts = []
    return Verdict(trials=trials * STARTS, faults=0, wrong=tuple(wrong), note=f"trials: processes, {STARTS} at once")


def start(home: Path, trial: int, told: Any, gate: Any) -> None:
    """Open the store, submit, claim; tell who made the tables, and what went wrong."""

    def look(*arguments: Any) -> None:
        if arguments[2].lstrip().startswith("CREATE TABLE run "):
            told.put("migration")

    sa.event.listen(sa.Engine, "before_cursor_execute", look)
    gate.wait()
    try:
        with Store.open(home) as store:
            study = store.add_study(small_plan(f"start{trial}", arms=STARTS, seeds=1))
            claim = store.claim(study.id, engine="test", worker="here")
            store.start(claim.run_id, claim.token)
            store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    except Exception as error:
        told.put(f"{type(error).__name__}: {error}")


# ---- F17 ---------------------------------------------------------------------------------------------


def cancellations(world: World) -> Verdict:
    """A run is finished and cancelled at the same moment: one of both happens."""
    trials, told = world.number(5000, 100), lines()
    world.store().close()
    at_once([finishes, cancels], world.home, trials, told)
    won: dict[tuple[str, int], Counter[str]] = {}
    s = world.snapshot(folders=False)
    ends = {(x.name, k.arm): (r.id, r.state) for x in s.studies for k in s.links if k.study_id == x.id for r in s.runs if r.id == k.run_id}
    return Verdict(trials=trials, faults=0)
