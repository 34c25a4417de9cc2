"""OPO's baseline, Kimi's mirror descent and GFPO's choice of responses, each against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.experience import weigh
from paribus_runners.native.objective import baseline, length
from paribus_runners.native.objective.filter import good_groups, present

LENGTHS = [3, 1, 7, 2, 5, 5, 4, 6]
CORRECT = [[True, False, True, False], [False, False, True, False]]


def _opo(reward: list[float], lengths: list[int], groups: int = 1) -> Tensor:
    group = torch.arange(groups).repeat_interleave(len(reward) // groups)
    R, L = torch.tensor(reward, dtype=torch.float64), torch.tensor(lengths)
    return baseline.centre(f.GroupLengthWeighted(), R, group, groups, L)


def test_opo_subtracts_the_mean_over_tokens() -> None:
    """The baseline is sum L R / sum L of each group (arXiv 2505.23585)."""
    got = _opo([1.0, 0.0, 2.0, 0.0, 3.0, 3.0], [1, 2, 3, 4, 5, 6], 2)
    b = [(1 + 6) / 6, (15 + 18) / 15]
    assert got.tolist() == pytest.approx([1 - b[0], -b[0], 2 - b[0], -b[1], 3 - b[1], 3 - b[1]])


@given(st.lists(st.integers(1, 9), min_size=4, max_size=4), st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=4))
def test_opo_has_the_least_weighted_square(lengths: list[int], reward: list[float]) -> None:
    """No other number b makes sum L (R - b)^2 smaller, which is the variance that OPO minimises."""
    R, L = torch.tensor(reward[:4], dtype=torch.float64), torch.tensor(lengths)
    best = float((L * _opo(reward[:4], lengths) ** 2).sum())
    assert all(best <= float((L * (R - b) ** 2).sum()) + 1e-12 for b in torch.linspace(0, 2.5, 26))


def test_opo_is_the_group_mean_at_equal_lengths_and_nothing_without_spread() -> None:
    """Weights that are equal drop out; equal rewards give exactly 0."""
    R, group = torch.tensor([1.0, 0.3, -2.0]).double(), torch.zeros(3).long()
    torch.testing.assert_close(_opo(R.tolist(), [4, 4, 4]), baseline.centre(f.GroupMean(), R, group, 1))
    assert _opo([0.1, 0.1, 0.1], [1, 2, 7]).tolist() == [0.0] * 3


def _mirror(unit: Any, aggregation: f.Aggregation, tau: float = 0.7) -> Recipe:
    return Recipe(
        loss=f.MirrorDescent(tau=tau, unit=unit), ratio=f.NoRatio(), clip=f.NoClip(), scale=f.NoScale(),
        aggregation=aggregation,
    )  # fmt: skip


@pytest.mark.parametrize("aggregation", [f.SequenceSum(), f.SequenceMean(), f.TokenBatch()], ids=lambda x: x.kind)
def test_mirror_descent_is_the_regression_of_its_paper(aggregation: f.Aggregation, made: Any, outcome: Any) -> None:
    """The gradient is that of (A - tau l)^2 / (2 tau), l = sum of log new/old (Kimi k1.5, Eq. 3)."""
    recipe = _mirror("sequence", aggregation)
    rollouts = made(recipe, CORRECT, lengths=LENGTHS)
    old, row = rollouts.responses.logp, rollouts.responses.row
    new = (old + 0.2 * (rollouts.responses.entropy - 1.1)).requires_grad_()
    got = outcome(recipe, rollouts, new.detach())
    L = torch.tensor(LENGTHS, dtype=torch.float64)
    weight = {"seq_sum": torch.full((8,), 1 / 8), "seq_mean": 1 / (8 * L), "token_batch": torch.full((8,), 1 / 33)}
    R = rollouts.scored.score.view(2, 4)
    A = (R - R.mean(1, keepdim=True)).flatten()
    moved = torch.zeros(8, dtype=torch.float64).index_add(0, row, new - old)
    value = (weight[aggregation.kind] * (A - 0.7 * moved) ** 2 / (2 * 0.7)).sum()
    torch.testing.assert_close(got.gradient, torch.autograd.grad(value, new)[0], rtol=1e-5, atol=1e-8)


def test_mirror_descent_by_token_pulls_each_token_back(made: Any, outcome: Any) -> None:
    """With unit token the coefficient of a token is A - tau (log new - log old)."""
    recipe = _mirror("token", f.SequenceSum())
    rollouts = made(recipe, CORRECT, lengths=LENGTHS)
    old = rollouts.responses.logp
    new = old + 0.2 * (rollouts.responses.entropy - 1.1)
    got = outcome(recipe, rollouts, new)
    torch.testing.assert_close(-8 * got.gradient, got.experience.advantage - 0.7 * (new - old), rtol=1e-5, atol=1e-7)


def test_mirror_descent_at_the_old_policy_is_reinforce_with_a_baseline(made: Any, outcome: Any) -> None:
    """Nothing pulls where nothing has moved."""
    recipe = _mirror("sequence", f.SequenceSum())
    plain = recipe.model_copy(update={"loss": f.PolicyGradient()})
    rollouts = made(recipe, CORRECT, lengths=LENGTHS)
    torch.testing.assert_close(outcome(recipe, rollouts).gradient, outcome(plain, rollouts).gradient)


def _kept(keep: Any, made: Any, truncated: list[bool] | None = None, how: str = "as_scored") -> list[bool]:
    recipe = Recipe.model_validate({"length": {"keep": keep, "truncated": how}, "schedule": {"group_size": 4}})
    rollouts = made(recipe, CORRECT, lengths=LENGTHS, truncated=truncated)
    found: list[bool] = present(recipe, rollouts.scored).tolist()
    return found


def test_gfpo_keeps_the_shortest(made: Any) -> None:
    """Two of four, of equal lengths the first; truncated responses that are dropped take no place."""
    keep = {"kind": "shortest", "count": 2}
    assert _kept(keep, made) == [False, True, False, True, True, False, True, False]
    ends = [False, True, False, False, False, False, False, False]
    assert _kept(keep, made, ends, "drop") == [True, False, False, True, True, False, True, False]
    assert _kept(keep, made, ends) == _kept(keep, made)


def test_gfpo_keeps_the_largest_reward_per_token(made: Any) -> None:
    """Scores are 2 and -1: right answers by ascending length, then wrong ones by descending length."""
    assert _kept({"kind": "efficient", "count": 3}, made) == [True, False, True, True, True, False, True, True]
    assert _kept({"kind": "efficient", "count": 2}, made) == [True, False, True, False, False, False, True, True]


def test_gfpo_trains_as_if_nothing_else_had_been_sampled(made: Any, outcome: Any) -> None:
    """Advantages, denominators and gradients are those of a step with the kept responses alone."""
    plain = Recipe.model_validate({"schedule": {"group_size": 2}})
    recipe = Recipe.model_validate(
        {"length": {"keep": {"kind": "shortest", "count": 2}}, "schedule": {"group_size": 4}}
    )
    rollouts = made(recipe, CORRECT, lengths=[3, 1, 2, 4, 5, 2, 2, 4], seed=3)
    inside = present(recipe, rollouts.scored)
    at = rollouts.responses.places(inside)
    alone = made(
        plain, [[False, True], [False, True]], lengths=rollouts.responses.length[inside].tolist(),
        logp=rollouts.responses.logp[at],
    )  # fmt: skip
    got, want = outcome(recipe, rollouts).gradient, outcome(plain, alone).gradient
    torch.testing.assert_close(got[at], want)
    assert float(got.abs().sum()) == pytest.approx(float(want.abs().sum()))
    assert weigh(recipe, rollouts).advantage[rollouts.responses.places(~inside)].abs().max() == 0


def test_a_filter_asks_the_responses_that_gfpo_keeps(made: Any) -> None:
    """A group whose kept responses are all alike has no spread, whatever was sampled beside them."""
    recipe = Recipe.model_validate(
        {
            "length": {"keep": {"kind": "shortest", "count": 2}},
            "filter": {"kind": "drop"},
            "schedule": {"group_size": 4},
        }
    )
    rollouts = made(recipe, [[True, True, False, False], [True, False, True, True]], lengths=[1, 2, 3, 4, 1, 2, 3, 4])
    assert good_groups(recipe, rollouts.scored).tolist() == [False, True]


def test_keeping_all_is_the_mask_that_was_given() -> None:
    """Without a choice nothing is sorted and nothing is lost."""
    there = torch.tensor([True, False])
    assert length.chosen(f.Length(), there, torch.ones(2), torch.ones(2), torch.zeros(2).long()) is there
