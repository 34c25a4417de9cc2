"""What a plan will cost: recorded runs of the same recipe, else of the same kind, else the prior; never a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paribus.study.costs import PastRun, kind_of, run_costs, total
from paribus.study.plan import Plan
from paribus.study.spec import RunHours
from support.plans import small_plan

PRIOR = RunHours(low=1.0, expected=2.0, high=4.0)


def past(plan: Plan, arm: int, seconds: float, gpus: float = 0.0, **changes: Any) -> PastRun:
    """A run of this arm that cost so much; ``changes`` replace parts of its recipe."""
    recipe = plan.arms[arm].recipe.model_dump(mode="json") | changes
    evaluate = plan.evaluate.model_dump(mode="json")
    return PastRun(runner=plan.runner, recipe=recipe, evaluate=evaluate, seconds=seconds, gpus=gpus)


def test_the_same_recipe_then_the_same_kind_then_the_prior() -> None:
    """Another clip bound is the same kind; another number of steps, filter, runner or device is not."""
    plan = small_plan(arms=2)
    found = run_costs(plan, PRIOR, [past(plan, 0, 3600), past(plan, 0, 7200)])
    assert (found["arm0"].low, found["arm0"].expected, found["arm0"].high) == (1, 1.5, 2)
    assert found["arm0"].sources == ("recorded runs of the same recipe",)
    assert found["arm1"].sources == ("recorded runs of the same kind",)
    assert found["arm1"].unit == "CPU run-hours"
    longer = {"schedule": plan.arms[0].recipe.schedule.model_dump(mode="json") | {"steps": 99}}
    refill = {"filter": {"kind": "refill"}}
    others = [past(plan, 0, 9, **longer), past(plan, 0, 9, **refill), replace(past(plan, 0, 9), runner="trl")]
    assert {c.sources for c in run_costs(plan, PRIOR, others).values()} == {("`budget.prior`",)}
    assert run_costs(plan, None, others) == {}
    newest = [past(plan, 0, 3600, gpus=8.0), past(plan, 0, 9)]
    assert run_costs(plan, None, newest)["arm0"].expected == 1
    assert run_costs(plan, None, newest)["arm0"].unit == "GPU-hours"


def test_a_tenth_at_each_end_is_left_out() -> None:
    """One run that hung does not make the high estimate."""
    plan = small_plan(arms=1)
    found = run_costs(plan, None, [past(plan, 0, 3600.0 * h) for h in (*range(1, 20), 1000)])["arm0"]
    assert (found.low, found.high) == (3, 18)


def test_a_total_needs_all_arms() -> None:
    """Runs add up; with one arm unknown nothing is said, and two units are called neither."""
    plan = small_plan(arms=2, seeds=3)
    costs = run_costs(plan, PRIOR)
    whole = total(costs, plan.runs)
    assert whole is not None
    assert (whole.low, whole.expected, whole.high, whole.unit) == (6, 12, 24, "GPU-hours")
    assert total({"arm0": costs["arm0"]}, plan.runs) is None
    assert total(costs, ()) is None
    mixed = total({**costs, "arm1": replace(costs["arm1"], unit="CPU run-hours")}, plan.runs)
    assert mixed is not None
    assert mixed.unit == "device-hours"


@pytest.mark.parametrize(("path", "same"), [("checkpoint", True), ("problems", False), ("every", False)])
def test_what_an_evaluation_costs_is_part_of_the_kind(path: str, same: bool) -> None:
    """Which evaluations make the score costs nothing; how many there are does."""
    run = past(small_plan(), 0, 1.0)
    changed = {**run.evaluate, path: 7}
    assert (kind_of(run.recipe, changed) == kind_of(run.recipe, run.evaluate)) is same
