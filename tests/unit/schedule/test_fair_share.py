"""The choice of the study that begins a run next: shares, newcomers, those that cannot go on, priorities."""

from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.schedule.fair_share import Demand, Shares, choose

TINY = 1e-6
WEIGHTS = st.sampled_from([0.1, 0.5, 1.0, 1.0, 2.0, 3.0, 10.0])


class Queue:
    """Studies whose runs all take a second; counts who was chosen."""

    def __init__(self, weights, priorities=None):
        self.weights = dict(enumerate(weights))
        self.priorities = priorities or dict.fromkeys(self.weights, 0)
        self.used = dict.fromkeys(self.weights, 0)
        self.shares = Shares()

    def go(self, asking, rounds=1):
        """Let some studies ask so many times; return how often each was chosen."""
        before = dict(self.used)
        for _ in range(rounds):
            demands = [
                Demand(study=i, priority=self.priorities[i], weight=self.weights[i], used=self.used[i], cost=1.0)
                for i in asking
            ]
            chosen, self.shares = choose(self.shares, demands)
            self.used[chosen] += 1
        return {i: self.used[i] - before[i] for i in asking}


@settings(max_examples=60)
@given(st.lists(WEIGHTS, min_size=1, max_size=6))
def test_busy_studies_are_never_a_run_away_from_their_shares(weights):
    """After every single choice: less than one run ahead of the share by weight, and less than one behind."""
    queue = Queue(weights)
    for count in range(1, 60):
        queue.go(queue.weights)
        due = {i: count * w / sum(weights) for i, w in queue.weights.items()}
        assert all(abs(queue.used[i] - due[i]) < 1 + TINY for i in due)


@settings(max_examples=60)
@given(st.lists(WEIGHTS, min_size=2, max_size=5), st.integers(0, 200), st.integers(1, 40))
def test_a_newcomer_gets_its_share_from_now_on_and_nothing_of_what_it_missed(weights, before, after):
    """However long the others have been busy, it gets its share of what follows; so does who comes back."""
    queue = Queue(weights)
    newcomer = max(queue.weights)
    queue.go([i for i in queue.weights if i != newcomer], before)
    for _ in range(2):
        got = queue.go(queue.weights, after)[newcomer]
        assert abs(got - after * weights[newcomer] / sum(weights)) < 2 + TINY
        queue.go([i for i in queue.weights if i != newcomer], before)


@settings(max_examples=60)
@given(st.lists(WEIGHTS, min_size=3, max_size=5), st.integers(0, 30), st.integers(1, 60))
def test_a_study_that_cannot_go_on_costs_the_others_nothing(weights, before, after):
    """Paused, broke or out of runs: what follows is shared by the others alone, by their weights."""
    queue = Queue(weights)
    queue.go(queue.weights, before)
    others = [i for i in queue.weights if i != 0]
    got, total = queue.go(others, after), sum(weights[i] for i in others)
    assert all(abs(got[i] - after * weights[i] / total) < 3 + TINY for i in others)


def test_a_higher_priority_goes_first_whatever_the_weights():
    """It takes all as long as it asks; afterwards the others share as if it had never been there."""
    queue = Queue([10.0, 1.0, 1.0], {0: 0, 1: 0, 2: 7})
    assert queue.go(queue.weights, 20) == {0: 0, 1: 0, 2: 20}
    assert queue.go([0, 1], 11) == {0: 10, 1: 1}


def test_shares_are_of_time_and_not_of_runs():
    """A study whose runs take ten times as long begins one for ten of the other's."""
    shares, used, begun = Shares(), {0: 0.0, 1: 0.0}, [0, 0]
    costs = {0: 10.0, 1: 1.0}
    for _ in range(110):
        demands = [Demand(study=i, priority=0, weight=1.0, used=used[i], cost=costs[i]) for i in used]
        chosen, shares = choose(shares, demands)
        begun[chosen] += 1
        used[chosen] += costs[chosen]
    assert begun == [10, 100]


def test_who_is_ahead_does_not_gain_by_leaving_and_coming_back():
    """A study that asks only now and then gets no more than one that always asks."""
    queue = Queue([1.0, 1.0])
    for _ in range(30):
        queue.go([0])
        queue.go([0, 1], 2)
    assert abs(queue.used[0] - queue.used[1]) <= 31
    queue = Queue([1.0, 1.0])
    for _ in range(30):
        queue.go([1])
        queue.go([0, 1])
    assert queue.used[0] <= 30
