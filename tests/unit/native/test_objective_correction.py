"""Identities of the importance correction between sampler and learner, and its place behind the clip."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, tokens_of
from paribus_runners.native.experience import Before, weigh
from paribus_runners.native.objective import correction
from paribus_runners.native.objective.loss import Tokens, loss

LEVELS: list[f.Correction] = [
    f.NoCorrection(),
    f.TokenTruncate(),
    f.TokenMask(),
    f.SequenceTruncate(),
    f.SequenceMask(),
    f.GeometricMask(),
    f.OffPolicyMask(),
    f.Chain(),
    f.Chain(mask=f.GeometricMask(), weight=f.SequenceTruncate()),
]
ROW = torch.tensor([0, 0, 1, 1, 1])
W = torch.tensor([4.0, 0.5, 1.5, 1.5, 0.4]).double()
"""w of the tokens of two responses: their products are 2 and 0.9, their geometric means 1.414 and 0.965."""


def _weights(level: f.Correction) -> list[float]:
    sampler = torch.full((5,), -3.0).double()
    return correction.weight(level, sampler + W.log(), sampler, ROW, 2).tolist()


@pytest.mark.parametrize("level", LEVELS, ids=lambda x: x.kind)
def test_equal_policies_need_no_correction(level: f.Correction) -> None:
    """T-I1: where learner and sampler agree, every level weighs 1."""
    logp = torch.tensor([-0.1, -5.0, -1.0, -2.0, -0.3])
    assert correction.weight(level, logp, logp, ROW, 2).tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("level", "want"),
    [
        (f.NoCorrection(), [1, 1, 1, 1, 1]),
        (f.TokenTruncate(cap=1.4), [1.4, 0.5, 1.4, 1.4, 0.4]),
        (f.TokenTruncate(cap=1e9), [4, 0.5, 1.5, 1.5, 0.4]),
        (f.TokenMask(low=0.45, high=3.0), [0, 0.5, 1.5, 1.5, 0]),
        (f.SequenceTruncate(cap=1.8), [1.8, 1.8, 0.9, 0.9, 0.9]),
        (f.SequenceTruncate(cap=1e9), [2, 2, 0.9, 0.9, 0.9]),
        (f.SequenceMask(low=0.5, high=1.9), [0, 0, 0.9, 0.9, 0.9]),
        (f.SequenceMask(low=0.95, high=2.1), [2, 2, 0, 0, 0]),
        (f.GeometricMask(low=0.5, high=1.5), [1, 1, 1, 1, 1]),
        (f.GeometricMask(low=0.97, high=1.5), [1, 1, 0, 0, 0]),
        (f.GeometricMask(low=0.5, high=1.4), [0, 0, 1, 1, 1]),
        (f.OffPolicyMask(delta=0.01), [1, 1, 1, 1, 1]),
        (f.Chain(mask=f.OffPolicyMask(delta=0.01), weight=f.TokenTruncate(cap=1.4)), [1.4, 0.5, 1.4, 1.4, 0.4]),
        (f.Chain(mask=f.GeometricMask(low=0.97, high=1.5), weight=f.TokenTruncate(cap=1.4)), [1.4, 0.5, 0, 0, 0]),
        (f.Chain(mask=f.GeometricMask(high=1.4), weight=f.TokenMask(low=0.45, high=3.0)), [0, 0, 1.5, 1.5, 0]),
    ],
    ids=lambda x: getattr(x, "kind", None),
)
def test_weights_by_hand(level: f.Correction, want: list[float]) -> None:
    """T-I2: a cap beyond reach gives the full weight, of a token or of the response; masks keep it or give 0."""
    assert _weights(level) == pytest.approx(want)


@given(st.integers(0, 10**6), st.sampled_from([f.TokenTruncate(cap=1.3), f.SequenceTruncate(cap=1.3)]))
def test_truncation_only_reduces(seed: int, level: f.Correction) -> None:
    """T-I3: E[w] under the sampler is 1, and at most 1 with a cap, over all responses of two tokens."""
    g = torch.Generator().manual_seed(seed)
    learner, sampler = (torch.randn(2, 3, generator=g, dtype=torch.float64).log_softmax(1) for _ in range(2))
    pairs = torch.tensor(list(product(range(3), repeat=2)))
    old, drawn = (x[torch.arange(2), pairs].flatten() for x in (learner, sampler))
    row = torch.arange(9).repeat_interleave(2)
    chance = drawn.view(9, 2).sum(1).exp()

    def mean(cap: float) -> Tensor:
        weight = correction.weight(level.model_copy(update={"cap": cap}), old, drawn, row, 9)
        return (chance[:, None] * weight.view(9, 2)).sum(0)

    torch.testing.assert_close(mean(1e9), torch.ones(2).double())
    assert bool((mean(1.3) <= 1 + 1e-12).all())
    assert bool((mean(1.3) <= mean(1.6) + 1e-12).all())


def test_only_the_product_is_unbiased_for_whole_responses() -> None:
    """T-I2: of two tokens, E[W f] under the sampler is E[f] under the learner; token weights miss it."""
    g = torch.Generator().manual_seed(0)
    learner, sampler = (torch.randn(2, 3, generator=g, dtype=torch.float64).log_softmax(1) for _ in range(2))
    value = torch.randn(3, 3, generator=g, dtype=torch.float64)
    pairs = torch.tensor(list(product(range(3), repeat=2)))
    old, drawn = (x[torch.arange(2), pairs] for x in (learner, sampler))
    row = torch.arange(9).repeat_interleave(2)
    want = float((old.sum(1).exp() * value.flatten()).sum())
    errors = {}
    for level in (f.SequenceTruncate(cap=1e9), f.TokenTruncate(cap=1e9)):
        weight = correction.weight(level, old.flatten(), drawn.flatten(), row, 9).view(9, 2)[:, 1]
        errors[level.kind] = abs(float((drawn.sum(1).exp() * weight * value.flatten()).sum()) - want)
    assert errors["seq_truncate"] < 1e-12
    assert errors["token_truncate"] > 0.01


def _tokens(weight: float) -> Tokens:
    one = torch.ones(3).double()
    return Tokens(torch.zeros(3, dtype=torch.long), 1, -one, one, one, weight * one, one, one, reference=-1.2 * one)


def test_the_weight_multiplies_the_clipped_surrogate_and_nothing_else() -> None:
    """The clip sees r, not w r; KL, entropy and NLL go without the weight."""
    new = (torch.tensor([-1.0, -1.0, -1.0]).double() + torch.tensor([1.1, 1.3, 0.5]).double().log()).requires_grad_()

    def gradient(recipe: Recipe, weight: float) -> Tensor:
        entropy = torch.zeros(3).double()
        return torch.autograd.grad(loss(recipe, new, _tokens(weight), entropy).value, new)[0]

    plain = Recipe()
    torch.testing.assert_close(gradient(plain, 0.5), torch.tensor([-0.55, 0.0, -0.25]).double())
    torch.testing.assert_close(gradient(plain, 0.5), 0.5 * gradient(plain, 1.0))
    rest = Recipe(kl=f.KlInLoss(beta=0.3), auxiliary=f.Auxiliary(entropy=0.1, positive_nll=0.2))
    torch.testing.assert_close(gradient(rest, 0.0), gradient(rest, 1.0) - gradient(plain, 1.0))


def test_the_learner_before_the_updates_is_the_centre_of_the_clip(made: Any, outcome: Any) -> None:
    """With a correction, old is the learner's own probability, and w leads from the sampler to it."""
    recipe = Recipe(correction=f.TokenTruncate(cap=1.2))
    rollouts = made(recipe, [[True, False, False]])
    responses = rollouts.responses
    learner = responses.logp + 0.4 * (responses.entropy - 1.1)
    got = weigh(recipe, rollouts, Before(logp=learner))
    torch.testing.assert_close(got.old, learner)
    torch.testing.assert_close(got.correction, (learner - responses.logp).exp().clamp_max(1.2))
    at = outcome(recipe, rollouts, before=Before(logp=learner))
    plain = outcome(recipe.model_copy(update={"correction": f.NoCorrection()}), rollouts)
    torch.testing.assert_close(at.gradient, got.correction * plain.gradient, rtol=1e-5, atol=1e-8)


def test_what_a_level_changes_is_counted() -> None:
    """Metrics count the weights that are cut, or dropped on either side."""
    raw = torch.tensor([6.0, 0.6, 1.5, 0.4, 2.1]).double()
    alone = torch.arange(5)  # five responses of one token: product and mean are w
    counts = [int(correction.changed(level, raw.log(), 0 * raw, alone, 5).sum()) for level in LEVELS]
    assert counts == [0, 2, 2, 2, 3, 3, 0, 2, 3]


OFF = f.OffPolicyMask(delta=0.1)
SAMPLER = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0]).double()
LEFT = torch.tensor([-1.3, -0.9, -1.2, -1.05, -1.04]).double()
"""Means of log(pi_sampler / pi): 0.1 in the first response but for rounding, 0.0967 in the second."""


@pytest.mark.parametrize(
    ("advantage", "moved", "want"),
    [
        ([-1, -1, -1, -1, -1], 0.001, [True, True, False, False, False]),
        ([-1, -1, -1, -1, -1], 0.01, [True, True, True, True, True]),
        ([-1, -1, -1, -1, -1], -0.001, [False, False, False, False, False]),
        ([1, 1, 1, 1, 1], 1.0, [False, False, False, False, False]),
        ([0, 0, -1, -1, -1], 1.0, [False, False, True, True, True]),
        ([1, -1, 1, -1, 1], 1.0, [False, True, False, True, False]),
    ],
)
def test_only_wrong_responses_that_the_policy_has_left_are_out(
    advantage: list[int], moved: float, want: list[bool]
) -> None:
    """Off-policy mask: A < 0 and the mean of log(pi_sampler / pi) over the response above delta, both at once."""
    found = correction.off_policy(OFF, torch.tensor(advantage).double(), LEFT - moved, SAMPLER, ROW, 2)
    assert found.tolist() == want


@pytest.mark.parametrize("level", [OFF, f.Chain(mask=OFF, weight=f.TokenTruncate(cap=1.1))], ids=lambda x: x.kind)
def test_a_response_that_is_out_has_no_surrogate_and_keeps_its_kl(level: f.Correction) -> None:
    """The mask multiplies the clipped surrogate, whatever the weight of the correction; the rest stays."""
    one = torch.ones(5).double()
    A = torch.tensor([-1.0, -1.0, 1.0, 1.0, 1.0]).double()
    tokens = Tokens(ROW, 2, SAMPLER + 0.05, A, one, 1.05 * one, one, one, reference=-1.2 * one, sampler=SAMPLER)

    def gradient(recipe: Recipe) -> Tensor:
        new = (LEFT - 0.01).requires_grad_()
        return torch.autograd.grad(loss(recipe, new, tokens).value, new)[0]

    kl, alone = f.KlInLoss(beta=0.3), Recipe(clip=f.NoClip())
    plain = gradient(alone)
    masked = gradient(alone.model_copy(update={"correction": level}))
    torch.testing.assert_close(masked, torch.where(A < 0, 0.0, plain))
    assert bool((plain != 0).all())
    with_kl = gradient(alone.model_copy(update={"correction": level, "kl": kl}))
    torch.testing.assert_close(with_kl - masked, gradient(alone.model_copy(update={"kl": kl})) - plain)


def test_the_mask_looks_at_the_sampler_and_the_ratio_at_the_learner(made: Any) -> None:
    """Alone, the mask has the sampler as its old policy, as DeepSeek's; in a chain, the learner is the old policy."""
    for level, learner_is_old in ((OFF, False), (f.Chain(mask=OFF), True)):
        recipe = Recipe(correction=level)
        rollouts = made(recipe, [[True, False, False]])
        logp = rollouts.responses.logp
        before = Before(logp=logp + 0.3) if learner_is_old else Before()
        experience = weigh(recipe, rollouts, before)
        (batch,) = minibatches(recipe, experience, Random(0))
        tokens = tokens_of(recipe, experience, batch)
        at = rollouts.responses.places(batch.rows)
        torch.testing.assert_close(tokens.sampler, logp[at])
        torch.testing.assert_close(tokens.old, logp[at] + 0.3 * learner_is_old)
