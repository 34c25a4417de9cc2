"""Rewards of several parts, denominators of micro-batches, and Lopti's two passes."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, passes, tokens_of
from paribus_runners.native.experience import weigh
from paribus_runners.native.objective import aggregation, token_weight
from paribus_runners.native.objective.loss import Tokens
from paribus_runners.native.objective.reward import reward

CORRECT = [[True, False, False], [True, True, False], [False] * 3]
LOPTI = f.Schedule(update=f.Lopti(eta=0.5))


def _std(values: list[float]) -> float:
    return float(torch.tensor(values).double().std())


@pytest.mark.parametrize(
    ("map_", "want"),
    [("binary01", [10.0, 6.0, 4.0, 0.0]), ("pm1", [10.0, 2.0, -2.0, -10.0]), ("scalar", [7.0, 2, -2, -7])],
)
def test_two_rewards_add_up(map_: Any, want: list[float]) -> None:
    """The weighted sum of verdict and form, each through the map, times the factor."""
    level = f.Reward(map=map_, factor=10.0, weights=f.Weights(correct=0.6, format=0.4))
    score = torch.tensor([0.5, 1.0, -1.0, -0.5]).double()
    correct, formatted = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert reward(level, score, correct, formatted).tolist() == pytest.approx(want)


def test_normalised_then_summed_by_hand(made: Any) -> None:
    """Each reward standardised in its group, their weighted sum whitened over the batch (arXiv 2601.05242)."""
    recipe = Recipe(
        reward=f.Reward(map="binary01", combine="norm_then_sum", weights=f.Weights(correct=1.0, format=0.5)),
        scale=f.BatchWhiten(ddof=1, eps=0.0),
    )
    formatted = [True, True, False, True, True, True, True, False, False]
    rollouts = made(recipe, CORRECT, formatted=formatted)
    A = weigh(recipe, rollouts).advantage[rollouts.responses.first]
    one, two = 2 / 3 / _std([1, 0, 0]), 1 / 3 / _std([1, 0, 0])
    total = [one + two / 2, -two + two / 2, -two - one / 2, two, two, -one, one / 2, -two / 2, -two / 2]
    mean = sum(total) / 9
    assert A.tolist() == pytest.approx([(x - mean) / _std(total) for x in total])


def test_one_micro_batch_is_the_whole_batch() -> None:
    """``token_micro`` with one micro-batch is ``token_batch``; with as many as responses it is ``seq_mean``."""
    lengths, group = torch.tensor([2, 5, 1, 4]), torch.tensor([0, 0, 1, 1])

    def weights(level: f.Aggregation) -> Tensor:
        return aggregation.token_weight(level, lengths, group, 4, 9)

    torch.testing.assert_close(weights(f.TokenMicro(microbatches=1)), weights(f.TokenBatch()))
    for many in (4, 9):
        torch.testing.assert_close(weights(f.TokenMicro(microbatches=many)), weights(f.SequenceMean()))
    want = torch.tensor([1 / 14, 1 / 14, 1 / 10, 1 / 10]).double()
    torch.testing.assert_close(weights(f.TokenMicro(microbatches=2)), want)


def test_token_micro_depends_on_the_cut() -> None:
    """T-A4: another order of the responses has other weights, alone among the aggregations."""
    group = torch.tensor([0, 0, 1, 1])
    one, two = (
        aggregation.token_weight(f.TokenMicro(), torch.tensor(x), group, 4, 9)[0] for x in ([2, 5, 1, 4], [2, 1, 5, 4])
    )
    assert float(one) != float(two)


def _tokens(recipe: Recipe, made: Any, groups: int = 3) -> Tokens:
    rollouts = made(recipe, CORRECT[:groups])
    experience = weigh(recipe, rollouts)
    (batch,) = minibatches(recipe, experience, Random(0))
    return tokens_of(recipe, experience, batch)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_lopti_with_one_empty_pass_is_the_plain_update(eta: float, made: Any) -> None:
    """Where all tokens are on one side there is one pass, and it is that of ``joint``."""
    tokens = _tokens(Recipe(schedule=f.Schedule(update=f.Lopti(eta=eta))), made)
    assert passes(Recipe(), tokens) == [tokens]
    (only,) = passes(Recipe(schedule=f.Schedule(update=f.Lopti(eta=eta))), tokens)
    for field in dataclasses.fields(Tokens):
        one, two = getattr(only, field.name), getattr(tokens, field.name)
        assert torch.equal(one, two) if isinstance(one, Tensor) else one == two


def test_lopti_takes_improbable_tokens_first(made: Any) -> None:
    """Each token has its weights in one pass and none in the other; the denominators are those of the whole."""
    recipe = Recipe(schedule=LOPTI, aggregation=f.TokenBatch())
    tokens = _tokens(recipe, made)
    first, second = passes(recipe, tokens)
    improbable = tokens.old.exp() < 0.5
    assert improbable.any()
    assert not improbable.all()
    for name in ("weight", "entropy_weight", "nll_weight"):
        whole, low, high = (getattr(x, name) for x in (tokens, first, second))
        torch.testing.assert_close(low, whole * improbable)
        torch.testing.assert_close(high, whole * ~improbable)
    assert float((first.weight + second.weight).sum()) == pytest.approx(1)


def test_auxiliary_denominators_are_those_of_the_batch(made: Any) -> None:
    """The entropy bonus is a mean over tokens, the NLL one over the tokens of correct responses."""
    tokens = _tokens(Recipe(), made)
    assert float(tokens.entropy_weight.sum()) == pytest.approx(1)
    assert float(tokens.nll_weight.sum()) == pytest.approx(1)
    assert (tokens.nll_weight > 0).tolist() == torch.isin(tokens.row, torch.tensor([0, 3, 4])).tolist()


def test_token_weights_multiply_the_advantage(made: Any) -> None:
    """F11 acts on A in the optimizer batch: kept tokens keep theirs, and the denominators count all."""
    plain, half, lifted = (
        _tokens(Recipe(token_weight=level), made, groups=2)
        for level in (f.UniformWeight(), f.TopEntropy(fraction=0.5), f.AdvantageReweight(alpha=0.3))
    )
    kept = half.advantage != 0
    torch.testing.assert_close(half.advantage[kept], plain.advantage[kept])
    assert int(kept.sum()) == round(0.5 * len(kept))
    torch.testing.assert_close(half.weight, plain.weight)
    torch.testing.assert_close(lifted.advantage.double(), plain.advantage * (0.3 * plain.old.exp() + 0.7))


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 1.0])
def test_exactly_the_fraction_of_tokens_is_kept_where_entropies_are_equal(fraction: float) -> None:
    """With one token of 40 above 0, and with all equal, the count is that of the fraction; the earlier tokens stay."""
    sure = torch.zeros(40)
    sure[17] = 0.4
    for entropy in (sure, torch.zeros(40)):
        kept = token_weight.weight(f.TopEntropy(fraction=fraction), entropy, torch.zeros(40))
        assert int(kept.sum()) == 40 * fraction
        assert kept[17] == 1 or not entropy.any()
        assert kept[: int(40 * fraction) - 1].all()


@pytest.mark.parametrize("level", [f.SequenceMean(), f.ConstantLength(length=5)], ids=lambda x: x.kind)
def test_masked_responses_count_where_asked(level: f.Aggregation, made: Any) -> None:
    """Masked responses are in the statistics of their group, and in the denominator only with count_masked_rows."""
    weights = []
    for count in (False, True):
        recipe = Recipe(length=f.Length(truncated="mask_loss", count_masked_rows=count), aggregation=level)
        experience = weigh(recipe, made(recipe, CORRECT, truncated=[False, False, True] * 3))
        (batch,) = minibatches(recipe, experience, Random(0))
        assert batch.rows.tolist() == [0, 1, 3, 4, 6, 7]
        weights.append(tokens_of(recipe, experience, batch).weight)
        torch.testing.assert_close(experience.advantage, weigh(Recipe(), made(Recipe(), CORRECT)).advantage)
    torch.testing.assert_close(weights[0] * 6, weights[1] * 9)


def test_dropped_responses_count_nowhere(made: Any) -> None:
    """With ``drop``, truncated responses are neither in the statistics of their group nor in any denominator."""
    recipe = Recipe(length=f.Length(truncated="drop", count_masked_rows=True), aggregation=f.TokenBatch())
    rollouts = made(recipe, CORRECT, truncated=[False, False, True] * 3)
    experience = weigh(recipe, rollouts)
    (batch,) = minibatches(recipe, experience, Random(0))
    assert batch.rows.tolist() == [0, 1, 3, 4, 6, 7]
    assert batch.counted == 6
    assert float(tokens_of(recipe, experience, batch).weight.sum()) == pytest.approx(1)
    A = experience.advantage[rollouts.responses.first]
    assert A[:3].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 0], rel=1e-5)
    assert not A[3:].any()


def test_the_filter_sees_what_the_baseline_sees(made: Any) -> None:
    """Spread counts among the responses that exist, and for ``reward_std`` after shaping."""
    truncated = [False, False, True]
    for how, kept in (("as_scored", 3), ("drop", 0)):
        recipe = Recipe(length=f.Length(truncated=how), filter=f.Drop())
        assert int(made(recipe, [[True, True, False]], truncated=truncated).kept.sum()) == kept
    shaped = f.Length(rule=f.SoftOverlong(soft_start=3, hard_cap=7))
    for metric, kept in (("correct", 0), ("reward_std", 3)):
        recipe = Recipe(length=shaped, filter=f.Drop(metric=metric))
        assert int(made(recipe, [[True] * 3], lengths=[2, 3, 5]).kept.sum()) == kept
