"""F12: runs that always fail, among others that do not."""

from __future__ import annotations

import json

from faults import judge
from faults.judge import Verdict
from faults.sessions import HastyEngine, work
from faults.world import World, ended, process
from paribus.store import attempts
from paribus.store.states import RunState
from support.plans import small_plan

TRIES = 5
POISON = {
    "arm 1": ("import", RunState.QUARANTINED, attempts.PROGRAM_TRIES),
    "arm 2": ("segfault", RunState.QUARANTINED, attempts.PROGRAM_TRIES),
    "arm 3": ("memory", RunState.QUARANTINED, attempts.PROGRAM_TRIES),
    "arm 4": ("kill", RunState.FAILED, TRIES),  # as the kernel does when the machine's memory is used up
    "arm 5": ("hang", RunState.QUARANTINED, attempts.PROGRAM_TRIES),
    "arm 6": ("exit", RunState.QUARANTINED, attempts.PROGRAM_TRIES),
}
"""What the runs of an arm do, how they end, and after how many failures."""


def runs(world: World) -> Verdict:
    """Every poisoned run is given up after its tries, each for its own reason; the others finish."""
    seeds = world.number(4, 1)
    rules = [{"do": do, "at": 2, "arm": arm} for arm, (do, _, _) in POISON.items()]
    world.orders(json.dumps({"step_s": 0.05, "rules": rules}))
    plan = small_plan("poison", arms=8, seeds=seeds, steps=6, stop_on=("dead_run",))
    with process(work, world.home, plan, 8, prepare, HastyEngine) as running:
        ended(running)
    s = world.snapshot()
    with world.store() as opened:
        records = opened.runs_of(opened.study(plan.study).id)
    wrong = []
    for run in records:
        _, state, tries = POISON.get(run.label, ("", RunState.SUCCEEDED, 0))
        # a short lease that is lost on a busy machine is a failure of the infrastructure, and no other
        failures = run.infrastructure_failures if state is RunState.FAILED else run.program_failures
        if (run.state, failures) != (state, tries):
            wrong.append(f"{run.label}: {run.state} after {failures} failures, not {state} after {tries}: {run.reason}")
            wrong += [f"  {a.outcome}: {a.reason}" for a in s.attempts if a.run_id == run.id]
    signatures = {a.signature for a in s.attempts if a.outcome == "quarantine"}
    if len(signatures) != sum(state is RunState.QUARANTINED for _, state, _ in POISON.values()):
        wrong.append(f"the signatures of five different failures are {sorted(signatures)}")
    return judge.judge(
        s, trials=len(s.runs), faults=len(s.attempts) - 2 * seeds, home=world.home, expected=tuple(RunState),
        wrong=[*wrong, *judge.broken_records(s, world.home)],
        note="faults: failures (import, segfault, memory, kill, hang, exit 0 without a result); the others finished",
    )  # fmt: skip


def prepare() -> None:
    """Give attempts as many tries as they have otherwise."""
    attempts.INFRASTRUCTURE_TRIES = TRIES  # type: ignore[misc]
