"""Studies on paper: the scheduler's own decisions on a virtual clock, with arithmetic that can be checked by hand."""

import pytest

from paribus.contract import Checkpoints, Resources
from paribus.errors import ParibusError, TooLarge
from paribus.scheduler.scheduler import Ending, Scheduler
from paribus.scheduler.simulated_cluster import ClusterShape, Rates
from paribus.scheduler.simulation import lost_runs, play
from support.plans import small_plan

GPU = Resources(gpus=1)


def shape(text):
    """Return a cluster."""
    return ClusterShape.read(text)


def played(cluster="1x8xH100", *, clusters=1, hours=10.0, resources=GPU, rates=None, start_s=0.0, recorded=(), **plan):
    """Play a plan whose runs all take as long."""
    made = small_plan(resources=resources, **plan)
    each = {arm.key: hours for arm in made.arms}
    return play(made, [shape(cluster)] * clusters, each, rates=rates, start_s=start_s, recorded=recorded)


def looks(count):
    """Return the seconds that so many waits for the scheduler's next look take at most."""
    return count * Scheduler.period_s + 1e-6


@pytest.mark.parametrize(
    ("cluster", "resources", "waves"),
    [
        ("1x8xH100", {"gpus": 1}, 3),
        ("2x8xH100", {"gpus": 1}, 2),
        ("3x8xH100", {"gpus": 1}, 1),
        ("1x8xH100", {"gpus": 0.5}, 2),
        ("2x8xH100", {"gpus": 3}, 5),
        ("1x8xH100", {"gpus": 8}, 20),
        ("4x8xH100", {"gpus": 16, "nodes": 2}, 10),
        ("3x8xH100", {"gpus": 16, "nodes": 2}, 20),
        ("3x8xH100", {"gpus": 8, "nodes": 2}, 7),
        ("1x4xCPU", {}, 5),
        ("1x4xCPU", {"cpus": 2}, 10),
    ],
)
def test_equal_runs_take_as_many_waves_as_fit(cluster, resources, waves):
    """20 runs of 10 hours: wall time, devices held and hours follow from how many fit on the nodes at a time."""
    found = played(cluster, resources=Resources(**resources), arms=4, seeds=5)
    amount = resources.get("gpus") or resources.get("cpus") or 1
    assert 0 <= found.seconds - waves * 36000 <= looks(waves)
    assert found.held_h == pytest.approx(200 * amount)
    assert found.utilisation == pytest.approx(200 * amount / (found.devices * 10 * waves), rel=1e-4)
    assert (found.attempts, found.ending, found.open, found.lost_h) == (20, Ending.COMPLETE, 0, 0)


def test_runs_end_in_queue_order_and_every_start_takes_its_time():
    """On one device the plan's runs come one after the other, the base first within each seed, 90 s apart from work."""
    found = played("1x1xH100", hours=1.0, start_s=90.0, arms=2, seeds=3)
    plan = small_plan(arms=2, seeds=3)
    assert [(run.arm, run.seed) for run in found.ended] == [(run.arm, run.seed) for run in plan.runs]
    for number, run in enumerate(found.ended, 1):
        assert 0 <= run.at_s - number * 3690 <= looks(number)


def test_the_longer_arm_ends_later():
    """Each arm has its own hours."""
    plan = small_plan(arms=2, seeds=1, resources=GPU)
    found = play(plan, [shape("1x2xH100")], {"arm0": 1.0, "arm1": 3.0})
    assert [run.at_s for run in found.ended] == pytest.approx([3600, 10800], abs=looks(1))


def test_recorded_runs_are_not_played():
    """What has a result costs nothing more; with all results there is nothing to wait for."""
    plan = small_plan(arms=2, seeds=4)
    had = [run.fingerprint for run in plan.runs]
    assert played("1x1xH100", arms=2, seeds=4, recorded=had[:5]).attempts == 3
    nothing = played("1x1xH100", arms=2, seeds=4, recorded=had)
    assert (nothing.seconds, nothing.utilisation, nothing.ending) == (0, 0, Ending.COMPLETE)


def test_a_second_cluster_shares_the_store():
    """Two schedulers on one store halve 16 runs on eight GPUs, and no run is started twice."""
    found = played(clusters=2, arms=4, seeds=4)
    assert 0 <= found.seconds - 36000 <= looks(1)
    assert (found.attempts, found.devices, found.open) == (16, 16, 0)


def test_preemptions_cost_starts_and_failures_what_came_after_the_last_checkpoint():
    """Held time is the work, what was lost, and the starts; a failure loses less than a checkpoint's interval."""
    rates = Rates(failure_h=40.0, preemption_h=30.0, seed=3)
    found = played(rates=rates, start_s=60.0, arms=4, seeds=8, steps=40, checkpoint=Checkpoints(every=8))
    assert found.preemptions > 5
    assert found.failures > 2
    assert found.attempts == 32 + found.preemptions + found.failures
    assert 0 < found.lost_h < 2 * found.failures
    assert found.held_h == pytest.approx(320 + found.lost_h + found.attempts / 60, rel=1e-6)
    often = played(rates=rates, start_s=60.0, arms=4, seeds=8, steps=40, checkpoint=Checkpoints(every=1))
    assert often.lost_h / often.failures < found.lost_h / found.failures


def test_the_seed_decides_what_is_drawn_and_nothing_else_does():
    """The same seed gives the same history, another seed another one."""
    one, same, other = (played(rates=Rates(preemption_h=8.0, seed=s), arms=2, seeds=4) for s in (1, 1, 2))
    assert one == same != other


def test_runs_that_never_get_anywhere_use_up_their_tries():
    """A failure every few minutes ends runs without a result, by the store's own rule; the rest is complete."""
    found = played(rates=Rates(failure_h=0.5), hours=2.0, arms=2, seeds=2, checkpoint=Checkpoints(every=4))
    assert found.ending is Ending.COMPLETE
    assert sum(lost_runs(found).values()) > 0
    assert sum(lost_runs(found).values()) + sum(run.recorded for run in found.ended) == 4


def test_a_budget_ends_the_study_as_it_would_in_earnest():
    """With 45 GPU-hours, no attempt starts that the estimate does not cover, and runs are left."""
    found = played("1x2xH100", arms=2, seeds=4, gpu_hours=45.0)
    assert found.ending is Ending.BUDGET
    assert found.open == 4
    assert found.held_h == pytest.approx(40.0)


@pytest.mark.parametrize(
    "text", ["8xH100", "0x8xH100", "64x8", "64x8x", "ax8xH100", "64x 8xH100", "9999x9999xH100", ""]
)
def test_what_is_no_cluster_is_refused_with_an_example(text):
    """The message names the form, or the limit."""
    with pytest.raises(ParibusError, match=r"NODESxGPUSxKIND|at most 65,536"):
        shape(text)


@pytest.mark.parametrize(
    ("cluster", "resources"),
    [("64x8xH100", {"gpus": 16}), ("64x8xH100", {"gpus": 0}), ("1x8xCPU", {"gpus": 1}), ("1x8xCPU", {"cpus": 9})],
)
def test_a_run_that_no_node_can_hold_is_refused(cluster, resources):
    """The message says what is there."""
    with pytest.raises(TooLarge, match=r"nodes? with"):
        played(cluster, resources=Resources(**resources))


def test_clusters_are_shown_in_words():
    """One of a thing has no plural."""
    assert str(shape("64x8xH100")) == "64 nodes with 8 H100 GPUs each"
    assert str(shape("1x1xcpu")) == "1 node with 1 CPU core"
