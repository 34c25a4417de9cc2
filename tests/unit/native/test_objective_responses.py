"""Identities of rewards, baselines and scales, as the papers and their algebra give them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import baseline, length, scale
from paribus_runners.native.objective import filter as group_filter
from paribus_runners.native.objective.advantage import Scored, advantages
from paribus_runners.native.objective.reward import reward

groups_of_4 = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=5)


def _scored(correct: list[list[bool]], lengths: Tensor | None = None, truncated: Tensor | None = None) -> Scored:
    flat = torch.tensor([c for g in correct for c in g])
    return Scored(
        group=torch.arange(len(correct)).repeat_interleave(len(correct[0])),
        groups=len(correct),
        score=2 * flat.double() - 1,
        correct=flat,
        formatted=flat,
        length=torch.full_like(flat, 5, dtype=torch.long) if lengths is None else lengths,
        truncated=torch.zeros_like(flat) if truncated is None else truncated,
        kl=torch.zeros(len(flat), dtype=torch.float64),
    )


def _all(scored: Scored) -> Tensor:
    return torch.ones_like(scored.correct)


@given(groups_of_4, st.sampled_from([f.GroupStd(eps=0.0), f.BatchStdRaw(eps=0.0), f.BatchStdCentred(eps=0.0)]))
def test_reward_maps_are_equal_under_a_std(correct: list[list[bool]], level: f.Scale) -> None:
    """T-R1: 0/1 and -1/+1 rewards have the same advantages after division by a standard deviation."""
    scored = _scored(correct)
    A = [advantages(Recipe(reward=f.Reward(map=m), scale=level), scored, _all(scored)) for m in ("binary01", "pm1")]
    torch.testing.assert_close(A[0], A[1], rtol=1e-9, atol=1e-9)


@given(groups_of_4)
def test_plus_minus_one_doubles_without_a_std(correct: list[list[bool]]) -> None:
    """T-R1: without division, -1/+1 rewards double the advantages."""
    scored = _scored(correct)
    A = [
        advantages(Recipe(reward=f.Reward(map=m), scale=f.NoScale()), scored, _all(scored)) for m in ("binary01", "pm1")
    ]
    torch.testing.assert_close(2 * A[0], A[1])


def test_reward_factor_multiplies() -> None:
    """The factor multiplies the mapped reward."""
    R = reward(
        f.Reward(map="binary01", factor=10.0),
        torch.tensor([-1.0, 1.0]),
        torch.tensor([False, True]),
        torch.tensor([True, True]),
    )
    assert R.tolist() == [0.0, 10.0]


def test_soft_overlong_punishment_at_its_knots() -> None:
    """T-L1: the values of DAPO's Eq. 13 at both knots, between and beyond."""
    level = f.Length(rule=f.SoftOverlong(soft_start=16384, hard_cap=20480))
    lengths = torch.tensor([1, 16384, 18432, 20480, 20481])
    assert length.punishment(level, lengths, torch.float64).tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]


@given(groups_of_4, st.sampled_from([f.GroupMean(), f.GroupLeaveOneOut()]))
def test_group_baselines_sum_to_zero(correct: list[list[bool]], level: f.Baseline) -> None:
    """T-B3: advantages of a group sum to zero under both group baselines."""
    scored = _scored(correct)
    centred = baseline.centre(level, scored.score, scored.group, scored.groups)
    assert centred.view(scored.groups, -1).sum(1).abs().max() < 1e-12


@given(groups_of_4)
def test_leave_one_out_is_a_multiple_of_the_group_mean(correct: list[list[bool]]) -> None:
    """T-B1: R - loo = G / (G - 1) (R - mean)."""
    scored = _scored(correct)
    mean, loo = (
        baseline.centre(level, scored.score, scored.group, scored.groups)
        for level in (f.GroupMean(), f.GroupLeaveOneOut())
    )
    torch.testing.assert_close(loo, mean * 4 / 3)
    direct = [(scored.score[:4].sum() - scored.score[i]) / 3 for i in range(4)]
    torch.testing.assert_close(loo[:4], scored.score[:4] - torch.stack(direct))


@pytest.mark.parametrize("value", [1.0, -1.0, 0.1, 1 / 3])
def test_groups_without_spread_have_no_advantage(value: float) -> None:
    """T-B4: equal rewards give exactly zero under group baselines, and not under none and batch_mean."""
    R = torch.tensor([value] * 3 + [5.0, 6.0, 7.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    for level in (f.GroupMean(), f.GroupLeaveOneOut()):
        centred = baseline.centre(level, R, group, 2)
        A = scale.scale(f.GroupStd(eps=0.0), centred, R, torch.ones(6), group, 2)
        assert A[:3].tolist() == [0.0] * 3
        assert A[3:].abs().max() > 0
    for other in (f.NoBaseline(), f.BatchMean()):
        assert baseline.centre(other, R, group, 2)[:3].abs().min() > 0


@given(groups_of_4, st.integers(1, 50))
def test_token_unit_equals_sequence_unit_at_equal_lengths(correct: list[list[bool]], tokens: int) -> None:
    """T-S1: with equal lengths (and ddof 0) weighing by tokens changes nothing."""
    scored = _scored(correct, lengths=torch.full((4 * len(correct),), tokens))
    for kind in (f.BatchStdRaw, f.BatchStdCentred, f.BatchWhiten):
        A = [advantages(Recipe(scale=kind(ddof=0, unit=unit)), scored, _all(scored)) for unit in ("sequence", "token")]
        torch.testing.assert_close(A[0], A[1])


def test_token_unit_weighs_by_length() -> None:
    """Whitening by tokens subtracts the token mean: -0.4 for rewards 1 (10 tokens) and 0 (90 tokens)."""
    centred, R = torch.tensor([0.5, -0.5]).double(), torch.tensor([1.0, 0.0]).double()
    level = f.BatchWhiten(unit="token", ddof=0, eps=0.0)
    A = scale.scale(level, centred, R, torch.tensor([10, 90]), torch.tensor([0, 0]), 1)
    torch.testing.assert_close(A, torch.tensor([0.9, -0.1]).double() / 0.3)


@given(groups_of_4)
def test_raw_batch_std_is_never_smaller_than_centred(correct: list[list[bool]]) -> None:
    """T-S2: the raw batch standard deviation holds the spread between groups, too."""
    scored = _scored(correct)
    raw, centred = (
        advantages(Recipe(scale=level), scored, _all(scored)).abs()
        for level in (f.BatchStdRaw(ddof=0, eps=0.0), f.BatchStdCentred(ddof=0, eps=0.0))
    )
    assert bool((raw <= centred + 1e-12).all())


@given(groups_of_4)
def test_ddof_is_a_constant_factor(correct: list[list[bool]]) -> None:
    """T-S3: ddof 0 instead of 1 multiplies advantages by sqrt(G / (G - 1))."""
    scored = _scored(correct)
    zero, one = (advantages(Recipe(scale=f.GroupStd(ddof=d, eps=0.0)), scored, _all(scored)) for d in (0, 1))
    torch.testing.assert_close(zero, one * (4 / 3) ** 0.5)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_divisors_by_hand(ddof: int, eps: float) -> None:
    """Each divisor is a standard deviation with its ddof, plus eps: beside the root, not under it."""
    R = torch.tensor([1.0, 0.0, 0.0, 4.0, 1.0, 1.0]).double()
    group, L = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([1, 2, 3, 4, 5, 6])
    centred = R - R.view(2, 3).mean(1).repeat_interleave(3)
    stds = {
        f.GroupStd: R.view(2, 3).std(1, correction=ddof).repeat_interleave(3),
        f.BatchStdRaw: R.std(correction=ddof),
        f.BatchStdCentred: centred.std(correction=ddof),
        f.BatchWhiten: centred.std(correction=ddof),
    }
    for level, std in stds.items():
        A = scale.scale(level(ddof=ddof, eps=eps), centred, R, L, group, 2)
        torch.testing.assert_close(A, centred / (std + eps))
    each = centred.repeat_interleave(L)
    A = scale.scale(f.BatchWhiten(ddof=ddof, eps=eps, unit="token"), centred, R, L, group, 2)
    torch.testing.assert_close(A, (centred - each.mean()) / (each.std(correction=ddof) + eps))


@pytest.mark.parametrize("right", [1, 2, 3])
def test_binary_rewards_under_group_std(right: int) -> None:
    """T-S4: c of G right gives sqrt((G - c) / c) and -sqrt(c / (G - c)) with ddof 0."""
    scored = _scored([[i < right for i in range(4)]])
    A = advantages(Recipe(scale=f.GroupStd(ddof=0, eps=0.0)), scored, _all(scored))
    assert A[0].item() == pytest.approx(((4 - right) / right) ** 0.5)
    assert A[3].item() == pytest.approx(-((right / (4 - right)) ** 0.5))


def test_filter_keeps_groups_with_both_outcomes() -> None:
    """With metric correct, all-right and all-wrong groups go, whatever shaping did to their rewards."""
    correct = torch.tensor([True, True, False, False, True, False])
    shaped = torch.tensor([1.0, 0.5, -1.0, -1.0, 1.0, -1.0])
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    assert group_filter.keep(f.Drop(), correct, shaped, group, 3).tolist() == [False, False, True]
    assert group_filter.keep(f.Drop(metric="reward_std"), correct, shaped, group, 3).tolist() == [True, False, True]
    assert group_filter.keep(f.NoFilter(), correct, shaped, group, 3).all()


def test_dropped_responses_leave_the_statistics_and_masked_ones_stay() -> None:
    """A truncated response is out of the group's mean with drop, and in it with mask_loss."""
    truncated = torch.tensor([False, False, True])
    scored = _scored([[True, False, False]], truncated=truncated)
    A = {}
    for how in ("drop", "mask_loss"):
        recipe = Recipe(length=f.Length(truncated=how), scale=f.NoScale(), reward=f.Reward(map="binary01"))
        A[how] = advantages(recipe, scored, length.present(recipe.length, truncated)).tolist()
        assert length.in_loss(recipe.length, truncated).tolist() == [True, True, how == "drop"]
    assert A["drop"] == [0.5, -0.5, 0.0]
    assert A["mask_loss"] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_one_response_alone_has_no_advantage_under_leave_one_out() -> None:
    """A group that shrank to one response has nothing to compare with."""
    R, group = torch.tensor([1.0]).double(), torch.tensor([0])
    assert baseline.centre(f.GroupLeaveOneOut(), R, group, 1).tolist() == [0.0]
