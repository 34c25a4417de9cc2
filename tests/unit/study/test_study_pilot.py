"""What a few steps say about a whole run: hand values, and which kinds of runs are probed at all."""

from __future__ import annotations

import pytest

from paribus.contract import Evaluate
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus.study.pilot import PRETRAINING, STEPS, cost_of, kinds_without, pilot_times, shortened
from support.plans import small_plan

ENDS = (5.0, 9.0, 10.0, 12.0, 13.0, 14.0, 18.0)  # begun after 5 s; steps of 4 (warms up), 1, 2, 1, 1, and 1 with 3 more


def recipe(**schedule: int) -> Recipe:
    """The default recipe with another schedule."""
    whole = Recipe()
    return whole.model_copy(update={"schedule": whole.schedule.model_copy(update=schedule)})


def test_the_first_step_warms_up_and_the_last_holds_an_evaluation() -> None:
    """Neither is timed as a step; an evaluation that is not told takes what the last step took more."""
    times = pilot_times(ENDS)
    assert (times.start, times.steps, times.step, times.evaluation) == (5.0, (1.0, 2.0, 1.0, 1.0), 1.25, 2.75)
    assert pilot_times(ENDS, evaluation=3.0).evaluation == 3.0
    assert pilot_times((5.0, 9.0)).steps == (4.0,)
    assert pilot_times((5.0, 9.0)).evaluation == 0.0


def test_a_whole_run_by_hand() -> None:
    """Start, 40 steps, evaluations after 15, 30 and 40; high has the slowest step and responses four times as long."""
    whole, evaluate = recipe(steps=40, max_new_tokens=80), Evaluate(every=15)
    cost = cost_of(pilot_times(ENDS, evaluation=3.0, length=20.0), whole, evaluate)
    want = (5 + 40 * 1 + 3 * 3, 5 + 40 * 1.25 + 3 * 3, 5 + 4 * (40 * 2 + 3 * 3))
    assert [3600 * x for x in (cost.low, cost.expected, cost.high)] == pytest.approx(want)
    assert (cost.unit, cost.sources) == ("CPU run-hours", (f"a probe of {STEPS} steps",))
    on_gpus = cost_of(pilot_times(ENDS, evaluation=3.0, length=20.0, gpus=2.0), whole, evaluate)
    assert (on_gpus.unit, on_gpus.expected) == ("GPU-hours", pytest.approx(2 * cost.expected))


def test_a_probe_is_short_and_pretrains_little() -> None:
    """Only steps differ from the recipe; the pretraining that a probe leaves out is counted as steps."""
    plain = recipe(steps=40)
    assert shortened(plain) == recipe(steps=STEPS)
    assert shortened(recipe(steps=2)) == recipe(steps=2)
    critic = load_preset("vapo").recipe
    whole, short = critic.auxiliary.value, shortened(critic).auxiliary.value
    assert whole is not None
    assert short is not None
    assert (whole.pretrain_steps, short.pretrain_steps) == (50, PRETRAINING)
    little = critic.model_copy(update={"auxiliary": shortened(critic).auxiliary})
    times = pilot_times(ENDS)
    more = cost_of(times, critic, Evaluate()).expected - cost_of(times, little, Evaluate()).expected
    assert more == pytest.approx((50 - PRETRAINING) * times.step / 3600)


def test_only_kinds_without_history_and_with_something_left_are_probed() -> None:
    """Arms of one kind share a probe; an arm whose runs are all recorded, or whose cost is known, needs none."""
    plan = small_plan(arms=3)
    keys = [arm.key for arm in plan.arms]
    assert [[a.key for a in kind] for kind in kinds_without(plan, (), ())] == [keys]
    assert [[a.key for a in kind] for kind in kinds_without(plan, (), keys[:1])] == [keys[1:]]
    done = [run.fingerprint for run in plan.runs if run.arm == keys[0]]
    assert [[a.key for a in kind] for kind in kinds_without(plan, done, ())] == [keys[1:]]
    assert kinds_without(plan, [run.fingerprint for run in plan.runs], ()) == ()
