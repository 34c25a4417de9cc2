"""The study that starts the next run: shares by weight, newcomers, studies that cannot go on, priorities, GPUs."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.scheduler.fair_share import Demand, FairShare

TINY = 1e-6
WEIGHTS = st.sampled_from([0.1, 0.5, 1.0, 1.0, 2.0, 3.0, 10.0])


class Queue:
    """Studies and how many runs each has started."""

    def __init__(self, weights, priorities=(), slots=()):
        self.demands = {
            i: Demand(study=i, priority=dict(priorities).get(i, 0), weight=weight, slots=dict(slots).get(i, 1.0))
            for i, weight in enumerate(weights)
        }
        self.started = dict.fromkeys(self.demands, 0)
        self.shares = FairShare()

    def go(self, asking, rounds=1, most=1):
        """Let some studies ask so many times; return how many runs each has started."""
        before = dict(self.started)
        for _ in range(rounds):
            demand, count = self.shares.choose([self.demands[i] for i in asking], most)
            self.shares.start(demand, count)
            self.started[demand.study] += count
        return {i: self.started[i] - before[i] for i in asking}

    def used(self, started):
        """Return what studies have used over their weights: what must be equal."""
        return {i: n * self.demands[i].stride for i, n in started.items()}


@settings(max_examples=60)
@given(st.lists(WEIGHTS, min_size=1, max_size=6), st.data())
def test_busy_studies_are_never_more_than_one_run_ahead_of_another(weights, data):
    """After every single choice, for every pair: the one ahead is ahead by at most one of its own runs."""
    slots = {i: data.draw(st.sampled_from([0.5, 1.0, 4.0])) for i in range(len(weights))}
    queue = Queue(weights, slots=slots)
    for _ in range(60):
        queue.go(queue.demands)
        used = queue.used(queue.started)
        assert all(used[i] - used[j] <= queue.demands[i].stride + TINY for i, j in permutations(used, 2))


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.25, 1.0, 2.0, 8.0]), min_size=1, max_size=4), st.integers(2, 8), st.integers(1, 20))
def test_runs_that_start_together_are_those_that_would_have_started_one_by_one(weights, most, rounds):
    """Claiming several at once saves transactions, and changes no share."""
    queue, single = Queue(weights), Queue(weights)
    queue.go(queue.demands, rounds, most)
    single.go(single.demands, sum(queue.started.values()))
    assert queue.started == single.started


@settings(max_examples=60)
@given(st.lists(WEIGHTS, min_size=2, max_size=5), st.integers(0, 200), st.integers(1, 40))
def test_a_newcomer_gets_its_share_from_now_on_and_nothing_of_what_it_missed(weights, before, after):
    """However long the others have been busy; the same holds for a study that comes back."""
    queue = Queue(weights)
    newcomer = max(queue.demands)
    queue.go([i for i in queue.demands if i != newcomer], before)
    for _ in range(2):
        used = queue.used(queue.go(queue.demands, after))
        for other in set(used) - {newcomer}:
            one_run_each = queue.demands[newcomer].stride + queue.demands[other].stride
            assert abs(used[newcomer] - used[other]) <= one_run_each + TINY
        queue.go([i for i in queue.demands if i != newcomer], before)


@settings(max_examples=60)
@given(st.lists(WEIGHTS, min_size=3, max_size=5), st.integers(0, 30), st.integers(1, 60))
def test_a_study_that_cannot_go_on_costs_the_others_nothing(weights, before, after):
    """Paused, out of budget or out of runs: what follows is shared by the others alone, by their weights."""
    queue = Queue(weights)
    queue.go(queue.demands, before)
    used = queue.used(queue.go([i for i in queue.demands if i != 0], after))
    for i, j in permutations(used, 2):
        assert used[i] - used[j] <= queue.demands[i].stride + queue.demands[j].stride + TINY


def test_a_higher_priority_goes_first_whatever_the_weights():
    """It takes all as long as it asks; afterwards the others share as if it had never been there."""
    queue = Queue([10.0, 1.0, 1.0], {0: 0, 1: 0, 2: 7})
    assert queue.go(queue.demands, 20) == {0: 0, 1: 0, 2: 20}
    assert queue.go([0, 1], 11) == {0: 10, 1: 1}


def test_runs_count_by_their_gpus():
    """A study whose runs hold four GPUs starts one for four of the other's."""
    queue = Queue([1.0, 1.0], slots={0: 4.0})
    assert queue.go(queue.demands, 50) == {0: 10, 1: 40}


def test_a_study_that_is_ahead_does_not_gain_by_leaving_and_coming_back():
    """A study that asks only now and then gets no more than one that always asks."""
    queue = Queue([1.0, 1.0])
    for _ in range(30):
        queue.go([0])
        queue.go([0, 1], 2)
    assert abs(queue.started[0] - queue.started[1]) <= 31
    queue = Queue([1.0, 1.0])
    for _ in range(30):
        queue.go([1])
        queue.go([0, 1])
    assert queue.started[0] <= 30
