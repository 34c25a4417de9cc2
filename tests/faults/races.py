"""F10, F17 and F18: starts, ends and submits that happen at the same moment."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from faults import judge
from faults.judge import Verdict
from faults.kills import finish_all
from faults.world import Lines, World, barrier, ended, process
from paribus.errors import LostLease
from paribus.store.states import RunState
from paribus.store.store import Store
from support.plans import small_plan

STARTS = 32
TOGETHER = 50
NUDGE = 1.3
"""By how much a finish comes later after it has won, and sooner after it has lost."""
MIGRATED = "migrated"


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
    for name in ("command", "script", "config"):
        import_module(f"alembic.{name}")  # once, and not in each of them: this is about what they do to the database
    trials = world.number(5, 1) if world.server is None else 1
    told, wrong = Lines(), list[str]()
    for trial in range(trials):
        home = world.home / str(trial)
        at_once([start] * STARTS, home, told)
        heard = Counter[str](told.new())
        if heard.pop(MIGRATED, 0) != 1:
            wrong.append("the tables were not made once")
        wrong += [f"{n} times: {trouble}" for trouble, n in heard.items()]
    with Store.open(home) as store:
        states = Counter(r.state for r in store.runs_of(store.study("start").id))
    note = f"trials: processes, {STARTS} at once, on a new database: one migration each time, nothing was locked"
    missing = trials and STARTS - states[RunState.SUCCEEDED]
    return Verdict(trials=trials * STARTS, faults=0, lost=missing, wrong=tuple(wrong), note=note)


def start(home: Path, told: Lines, gate: Any) -> None:
    """Open the store, submit, claim, finish; tell who made the tables, and what went wrong."""

    def look(*arguments: Any) -> None:
        if arguments[2].lstrip().startswith("CREATE TABLE run "):
            told.put(MIGRATED)

    sa.event.listen(sa.Engine, "before_cursor_execute", look)
    gate.wait()
    try:
        with Store.open(home) as store:
            finish_one(store, store.add_study(small_plan("start", arms=STARTS, seeds=1)).id)
    except Exception as error:  # whatever it is, the parent tells it
        told.put(f"{type(error).__name__}: {error}")


def finish_one(store: Store, study: int) -> None:
    """Take a run and record a result."""
    claim = store.claim(study, engine="test", worker="here")
    assert claim is not None
    store.start(claim.run_id, claim.token)
    store.finish(claim.run_id, claim.token, {"status": "succeeded"})


# ---- F17 ---------------------------------------------------------------------------------------------


def cancellations(world: World) -> Verdict:
    """A run is finished and cancelled at the same moment: one of both happens."""
    rounds, told = world.number(100, 2), Lines()
    world.store().close()
    at_once([finishes, cancels], world.home, rounds, told)
    won = defaultdict[int, list[RunState]](list)
    for run, state in told.new():
        won[run].append(state)
    s = world.snapshot(folders=False)
    wrong = [
        f"run {r.id} is {r.state}, and those who were told that they had won: {', '.join(won[r.id]) or 'nobody'}"
        for r in s.runs
        if won[r.id] != [r.state]
    ]
    counts = Counter(r.state for r in s.runs)
    note = f"{counts[RunState.SUCCEEDED]} finished, {counts[RunState.CANCELLED]} cancelled"
    return judge.judge(s, trials=len(s.runs), faults=0, expected=tuple(counts), wrong=wrong, note=note)


def finishes(home: Path, rounds: int, told: Lines, gate: Any) -> None:
    """Take the runs of a study, and finish each when the gate opens, so late that it wins every second time."""
    wait = 0.001
    with Store.open(home) as store:
        for number in range(rounds):
            study = store.add_study(small_plan(f"race{number}", arms=TOGETHER, seeds=1, steps=number + 2))
            claims = [c for _ in range(TOGETHER) if (c := store.claim(study.id, engine="test", worker="here"))]
            for claim in claims:
                store.start(claim.run_id, claim.token)
            for claim in claims:
                gate.wait()
                time.sleep(wait)
                wait /= NUDGE
                with suppress(LostLease):
                    store.finish(claim.run_id, claim.token, {"status": "succeeded"})
                    told.put((claim.run_id, RunState.SUCCEEDED))
                    wait *= NUDGE**2


def cancels(home: Path, rounds: int, told: Lines, gate: Any) -> None:
    """Cancel each arm when the gate opens, and let its attempt obey at once."""
    with Store.open(home) as store:
        for number in range(rounds):
            for arm in range(TOGETHER):
                gate.wait()
                run = number * TOGETHER + arm + 1
                store.cancel(f"race{number}", f"arm{arm}")
                with suppress(LostLease):
                    store.cancelled(run, 1)
                    told.put((run, RunState.CANCELLED))


# ---- F18 ---------------------------------------------------------------------------------------------


def twins(world: World) -> Verdict:
    """Two studies submit the same runs at the same moment, and one is cancelled at once: each run is there once."""
    trials = world.number(500, 25)
    world.store().close()
    at_once([cancelled_twins, lasting_twins], world.home, trials)
    finish_all(world, "lasting")
    s = world.snapshot(folders=False)
    wrong = [] if len(s.runs) == 2 * trials else [f"{len(s.runs)} runs of {2 * trials} that were asked for twice"]
    return judge.judge(s, trials=trials, faults=0, wrong=wrong, note="trials: pairs of studies with two runs in common")


def cancelled_twins(home: Path, trials: int, gate: Any) -> None:
    """Submit one of the two studies and cancel it."""
    with Store.open(home) as store:
        for number in range(trials):
            gate.wait()
            store.add_study(small_plan(f"cancelled{number}", arms=2, seeds=1, steps=number + 2))
            store.cancel(f"cancelled{number}")


def lasting_twins(home: Path, trials: int, gate: Any) -> None:
    """Submit the other study."""
    with Store.open(home) as store:
        for number in range(trials):
            gate.wait()
            store.add_study(small_plan(f"lasting{number}", arms=2, seeds=1, steps=number + 2))
