"""A round is taken as its groups end, ends where there are enough, and favours no group for being short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.rollout.sampler import Finished, Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.rewards.verifiers import Verdict
from paribus_runners.tasks import Chain, Problem


class _Some(Chain):
    """The groups of the given prompts have spread, all others are right."""

    def __init__(self, mixed: set[str]) -> None:
        super().__init__()
        self._mixed, self._seen = mixed, 0

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Every other response of a mixed group is wrong."""
        self._seen += 1
        correct = problem.prompt not in self._mixed or self._seen % 2 == 0
        return Verdict(float(correct), correct, "a")


class _OneByOne:
    """Hands out one group at a time, in a given order, and counts them."""

    def __init__(self, policy: Policy, order: list[int], *, all_at_once: bool = False) -> None:
        self._inner, self._order = TorchSampler(policy), order
        self.all_at_once = all_at_once
        self.handed_out = 0

    def sample(self, requests: Requests) -> Iterator[Finished]:
        whole, n = complete(self._inner, requests), requests.copies
        for i in self._order:
            self.handed_out += 1
            yield Finished([i], whole.select(torch.arange(i * n, (i + 1) * n)))

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        raise NotImplementedError

    def rest(self) -> None:
        raise NotImplementedError


def _collected(
    recipe: Recipe, policy: Policy, filter_: f.Filter, order: list[int], mixed: set[int]
) -> tuple[Rollouts, _OneByOne]:
    schedule = recipe.schedule.model_copy(update={"prompts_per_step": 6})
    recipe = Recipe.model_validate({**dict(recipe), "schedule": schedule, "filter": filter_})
    sampler = _OneByOne(policy, order)
    problems = Chain().training(0, 1, 0, 6)
    task = _Some({problems[i].prompt for i in mixed})
    return collect(recipe, Source(policy, None, task, 0, sampler), 1).rollouts, sampler


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 5, 0, 1, 4, 3]])
def test_the_order_in_which_groups_end_changes_nothing(order: list[int], recipe: Recipe, policy: Policy) -> None:
    """Without a filter that refills, all groups of a round are taken, and stand in the order of their prompts."""
    got, sampler = _collected(recipe, policy, f.Drop(), order, {1, 4})
    want, _ = _collected(recipe, policy, f.Drop(), [0, 1, 2, 3, 4, 5], {1, 4})
    assert sampler.handed_out == 6
    assert got.prompts == want.prompts
    assert got.problems == want.problems
    assert torch.equal(got.responses.ids, want.responses.ids)
    assert torch.equal(got.responses.logp, want.responses.logp)
    assert got.kept.view(6, 8)[:, 0].tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("all_at_once", [False, True])
def test_a_round_ends_where_it_has_enough_groups(recipe: Recipe, policy: Policy, all_at_once: bool) -> None:
    """Two groups with spread are missing after the first round: the second one ends with the second of them.

    A sampler that has worked on the others meanwhile goes on to the end of the round: what is generated is counted.
    """
    first = Chain().training(0, 1, 0, 6)
    second = Chain().training(0, 1, 1, 6)
    task = _Some({p.prompt for p in [*first[:4], *second]})
    sampler = _OneByOne(policy, [0, 2, 1, 3, 4, 5], all_at_once=all_at_once)
    schedule = recipe.schedule.model_copy(update={"prompts_per_step": 6})
    level = f.Refill(max_generation_batches=3)
    changed = Recipe.model_validate({**dict(recipe), "schedule": schedule, "filter": level})
    rollouts = collect(changed, Source(policy, None, task, 0, sampler), 1).rollouts
    assert rollouts.rounds == 2
    # of the second round 0, 2 and 1: group 2 does not count before group 1 is there
    count = 6 + (6 if all_at_once else 3)
    assert sampler.handed_out == len(rollouts.prompts) == count
    groups = rollouts.kept.view(count, 8)[:, 0].tolist()
    assert groups == [True] * 4 + [False] * 2 + [True, True] + [False] * (count - 8)


def test_surplus_is_bounded_and_rounds_that_are_used_up_end_the_search(recipe: Recipe, policy: Policy) -> None:
    """A step without enough groups trains on what it has, whatever the filter."""
    for level in (f.Refill(max_generation_batches=2), f.RefillAsync(metric="correct", max_generation_batches=2)):
        rollouts, sampler = _collected(recipe, policy, level, [0, 1, 2, 3, 4, 5], {3})
        assert rollouts.rounds == 2
        assert sampler.handed_out == 12
        assert int(rollouts.kept.sum()) == 8
