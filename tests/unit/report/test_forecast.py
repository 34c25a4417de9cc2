"""When a study on paper can be judged: the report's own rule, and hours that come from a stated source."""

from dataclasses import replace
from math import inf

import pytest

from paribus.contract import Resources
from paribus.errors import ParibusError
from paribus.report.analysis.analysis import Analysis
from paribus.report.forecast import FAILURE_H, forecast, usual_rates, verdicts
from paribus.scheduler.simulated_cluster import ClusterShape, Rates
from paribus.scheduler.simulation import play
from paribus.study.costs import Cost, PastRun
from support.plans import small_plan
from support.studies import Shape, made_up_study

GPUS = ClusterShape.read("1x2xH100")
CORES = ClusterShape.read("1x2xCPU")


def cost(hours, unit="GPU-hours", source="`budget.prior`"):
    """Return a cost without a spread."""
    return Cost(low=hours, expected=hours, high=hours, unit=unit, sources=(source,))


def past(plan, *, gpus=1.0, waited_s=0.0):
    """Return a recorded run of the plan's base."""
    recipe, evaluate = plan.arm(plan.base).recipe.model_dump(mode="json"), plan.evaluate.model_dump(mode="json")
    return PastRun(runner=plan.runner, recipe=recipe, evaluate=evaluate, seconds=60, gpus=gpus, waited_s=waited_s)


@pytest.mark.parametrize("paired", [True, False])
def test_a_verdict_is_there_exactly_when_the_report_tests_the_arm(paired):
    """At the end of each run, the arms that the report of the runs so far tests are those whose verdict is there."""
    data = made_up_study(Shape(seeds=4, designs=("add_one",), paired=paired))
    plan = replace(data.plan, resources=Resources(gpus=1))
    found = play(plan, [ClusterShape.read("1x3xH100")], {a.key: 1.0 + i for i, a in enumerate(plan.arms)})
    expected = verdicts(plan, found)
    assert expected.never == ()
    times = sorted({run.at_s for run in found.ended})
    for now in times:
        had = {(run.arm, run.seed) for run in found.ended if run.at_s <= now}
        runs = tuple(r if (r.arm, r.seed) in had else replace(r, outcome="pending") for r in data.runs)
        effects = Analysis(replace(data, runs=runs)).to_base
        assert {arm for arm, e in effects.items() if e and e.supported} == {
            arm for arm, at in expected.at_s.items() if at <= now
        }
    assert expected.first[1] < expected.all_s <= times[-1]


def test_recorded_runs_count_at_once_and_too_few_seeds_never():
    """With two of three seeds recorded, the third gives the verdict; with two seeds none comes."""
    plan = small_plan(arms=2, seeds=3, resources=Resources(gpus=1))
    had = [run.fingerprint for run in plan.runs if run.seed < 2]
    found = play(plan, [GPUS], {"arm0": 1.0, "arm1": 2.0}, recorded=had)
    assert verdicts(plan, found, had).first == ("arm1", pytest.approx(7200, abs=1))
    two = small_plan(arms=2, seeds=2, resources=Resources(gpus=1))
    none = verdicts(two, play(two, [GPUS], {"arm0": 1.0, "arm1": 1.0}))
    assert (none.first, none.all_s, none.never) == (None, None, ("arm 1",))


def test_hours_of_devices_become_wall_time_by_the_gpus_of_a_run():
    """A run of 4 GPU-hours on two GPUs takes two hours; the spread of its cost is that of the wall time."""
    plan = small_plan(arms=2, seeds=1, resources=Resources(gpus=2))
    spread = Cost(low=2.0, expected=4.0, high=8.0, unit="GPU-hours", sources=("`budget.prior`",))
    found = forecast(plan, {"arm0": spread, "arm1": spread}, (), GPUS, rates=Rates())
    walls = [each.seconds / 3600 for each in (found.low, found.expected, found.high, found.twice)]
    assert walls == pytest.approx([2.0, 4.0, 8.0, 2.0], abs=1e-3)
    assert found.sources == ("`budget.prior`",)


def test_the_start_of_an_attempt_is_the_median_of_recorded_ones_of_such_devices():
    """Runs on cores say nothing of GPUs; without a record the start counts as 0, which is said."""
    plan = small_plan(arms=2, seeds=1, resources=Resources(gpus=1))
    costs = {"arm0": cost(1.0), "arm1": cost(1.0)}
    runs = [past(plan, waited_s=s) for s in (20.0, 30.0, 100.0)] + [past(plan, gpus=0.0, waited_s=1.0)]
    found = forecast(plan, costs, runs, GPUS, rates=Rates())
    assert (found.start_s, found.starts) == (30.0, 3)
    assert found.expected.seconds == pytest.approx(3630, abs=1)
    assert forecast(plan, costs, (), GPUS, rates=Rates()).starts == 0


def test_hours_that_nobody_has_stated_or_measured_are_refused():
    """The message names the arm and three ways to a source; hours of other devices are no source."""
    plan = small_plan(arms=2, seeds=1)
    with pytest.raises(ParibusError, match=r"a run of `arm 1` takes is not known.*--probe.*prior"):
        forecast(plan, {"arm0": cost(1.0)}, (), GPUS, rates=Rates())
    on_cores = {arm: cost(1.0, "CPU run-hours", "recorded runs") for arm in ("arm0", "arm1")}
    with pytest.raises(ParibusError, match="CPU run-hours by recorded runs, which say nothing of GPUs"):
        forecast(plan, on_cores, (), GPUS, rates=Rates())
    with pytest.raises(ParibusError, match=r"GPU-hours by `budget\.prior`, which say nothing of CPU cores"):
        forecast(plan, {"arm0": cost(1.0), "arm1": cost(1.0)}, (), CORES, rates=Rates())


def test_what_is_left_out_is_said():
    """Another number of GPUs than the recorded runs had is an assumption, and the speed of a GPU's kind is unknown."""
    plan = small_plan(arms=2, seeds=1, resources=Resources(gpus=2))
    found = forecast(plan, {"arm0": cost(1.0), "arm1": cost(1.0)}, [past(plan)], GPUS, rates=Rates())
    assert any("recorded runs held 1 GPU, these hold 2: perfect scaling" in note for note in found.notes)
    assert any("how fast H100 is" in note for note in found.notes)
    cores = {"arm0": cost(1.0, "CPU run-hours"), "arm1": cost(1.0, "CPU run-hours")}
    assert len(forecast(small_plan(arms=2, seeds=1), cores, (), CORES, rates=Rates()).notes) == 1


def test_failures_that_nobody_states_are_the_published_ones_of_gpus():
    """None on cores; 0 means none."""
    assert usual_rates(GPUS, None, None, 1) == Rates(failure_h=FAILURE_H, seed=1)
    assert usual_rates(CORES, None, None, 0) == Rates()
    assert usual_rates(GPUS, 0.0, 0.0, 0) == Rates(failure_h=inf, preemption_h=inf)
    assert usual_rates(CORES, 5.0, 6.0, 0) == Rates(failure_h=5.0, preemption_h=6.0)
