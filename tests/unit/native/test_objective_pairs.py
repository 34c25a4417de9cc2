"""Identities of the loss of pairs: the best against the worst response of a group."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, tokens_of
from paribus_runners.native.experience import weigh
from paribus_runners.native.objective.pair import extremes
from paribus_runners.native.rollout.rollouts import Rollouts

PAIR = load_preset("pair_dpo_extremes").recipe


def _at_the_reference(rollouts: Rollouts) -> Tensor:
    assert rollouts.reference is not None
    return rollouts.reference


def test_the_first_of_equals_counts_and_groups_without_spread_have_no_pair() -> None:
    """One best and one worst response of each group with spread; nothing for the others."""
    R = torch.tensor([1.0, 3.0, 3.0, 0.0, 0.0, 2.0, 2.0, 2.0, 5.0, 4.0]).double()
    group = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
    assert extremes(R, group, 4).tolist() == [0, 1, 0, -1, 0, 0, 0, 0, 1, -1]


def test_a_masked_response_is_in_no_pair(made: Any, outcome: Any) -> None:
    """With `mask_loss` the pair is made of the responses that enter the loss, never torn."""
    recipe = Recipe.model_validate({**dict(PAIR), "length": f.Length(truncated="mask_loss")})
    ends = [False, True, False, False, False, True]
    rollouts = made(recipe, [[True, False, False], [True, True, False]], truncated=ends)
    gradient = outcome(recipe, rollouts, _at_the_reference(rollouts)).gradient
    assert rollouts.responses.padded(gradient.abs()).sum(1).bool().tolist() == [True, False, True, False, False, False]


def test_at_the_reference_the_coefficient_is_half_beta(made: Any, outcome: Any) -> None:
    """Beta / 2 on the better response, -beta / 2 on the worse one, 0 on all others, mean over pairs."""
    rollouts = made(PAIR, [[False, True, False], [True] * 3, [True, True, False]])
    got = outcome(PAIR, rollouts, _at_the_reference(rollouts))
    side = torch.tensor([-1, 1, 0, 0, 0, 0, 1, 0, -1]).double()
    want = -side[rollouts.responses.row] * PAIR.loss.beta / 2 / 2
    torch.testing.assert_close(got.gradient, want)
    assert got.loss == pytest.approx(float(torch.tensor(2.0).log()))


def test_two_responses_are_grpo_up_to_a_constant(made: Any, outcome: Any) -> None:
    """With G = 2 and a sum over tokens the gradient at the reference is proportional to GRPO's."""
    grpo = Recipe(aggregation=f.SequenceSum(), scale=f.GroupStd(ddof=0, eps=0))
    correct = [[True, False], [False, True]]
    pairs = made(PAIR, correct)
    one = outcome(PAIR, pairs, _at_the_reference(pairs)).gradient
    two = outcome(grpo, made(grpo, correct)).gradient
    torch.testing.assert_close(one, two * PAIR.loss.beta)


def test_the_loss_of_a_pair_by_hand(made: Any, outcome: Any) -> None:
    """-log sigmoid(beta margin) (DPO, arXiv 2305.18290, Eq. 7), the margin from sums over the tokens of each."""
    recipe = Recipe.model_validate({**dict(PAIR), "loss": f.PairDpo(beta=0.7)})
    rollouts = made(recipe, [[False, True]], lengths=[2, 3], reference=torch.full((5,), -1.0).double())
    new = torch.tensor([-1.5, -0.7, -0.4, -0.9, -1.0]).double()
    margin = 0.7 * (0.6 + 0.1 + 0.0 - (-0.5 + 0.3))
    want = torch.nn.functional.softplus(torch.tensor(-margin)).item()
    assert outcome(recipe, rollouts, new).loss == pytest.approx(want)


def test_batches_of_pairs_have_the_two_responses_alone(made: Any) -> None:
    """A batch has pairs next to each other, weighs each by their number, and is left out where there is none."""
    rollouts = made(PAIR, [[False, True, False], [True] * 3, [True, True, False]])
    experience = weigh(PAIR, rollouts)
    (batch,) = minibatches(PAIR, experience, Random(0))
    assert batch.rows.tolist() == [0, 1, 6, 8]
    tokens = tokens_of(PAIR, experience, batch)
    assert tokens.weight.unique().tolist() == [0.5]
    assert tokens.advantage[tokens.row == 0].unique().tolist() == [-1.0]
    uniform = made(PAIR, [[True] * 3])
    assert list(minibatches(PAIR, weigh(PAIR, uniform), Random(0))) == []
