"""F19: the budget of a study is used up while eight of its runs train."""

from __future__ import annotations

import json

from faults import judge
from faults.judge import Verdict
from faults.sessions import work
from faults.world import World, ended, process
from paribus.scheduler import scheduler
from paribus.store.budget import OVERRUN_S
from paribus.store.states import RunState
from support.plans import small_plan

SLOTS = 8
STEP_S = 0.1


def budgets(world: World) -> Verdict:
    """No study spends more than its cap and what was said to come on top; a raised one goes on to the end."""
    trials, wrong, most = world.number(5, 1), list[str](), 0.0
    world.orders(json.dumps({"step_s": STEP_S}))
    for number in range(trials):
        steps = 60 + number
        hours = world.random.uniform(0.3, 0.7) * SLOTS * steps * STEP_S / 3600
        plan = small_plan(f"budget{number}", arms=4, seeds=4, steps=steps, cpu_hours=hours, run_hours=1e-6)
        with process(work, world.home, plan, SLOTS, often) as session:
            ended(session)
        with world.store() as store:
            spent = store.budget(plan.study, "cpu").spent / 3600
            counts = store.counts(store.study(plan.study).id)
        over, bound = spent - hours, SLOTS * OVERRUN_S / 3600
        most = max(most, over * 3600)
        wrong += [f"{plan.study} spent {over:.4f} h over its cap, more than {bound:.4f}"] if over > bound else []
        wrong += [] if RunState.QUEUED in counts else [f"{plan.study} never came to its cap"]
        raised = small_plan(plan.study, arms=4, seeds=4, steps=steps, cpu_hours=hours + 1, run_hours=1e-6)
        with process(work, world.home, raised, SLOTS, often) as session:
            ended(session)
    s = world.snapshot()
    return judge.judge(
        s, trials=len(s.runs), faults=trials, home=world.home, wrong=[*wrong, *judge.broken_records(s, world.home)],
        note=f"caps used up; at most {most:.1f} slot-seconds over, allowed are {OVERRUN_S * SLOTS:g}",
    )  # fmt: skip


def often() -> None:
    """Look at the budget as often as short runs need it."""
    scheduler.CHECK_S = 0.1  # type: ignore[misc]
