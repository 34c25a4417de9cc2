"""Identities of ratios, clip rules, aggregations and KL, with log-probabilities as the autograd leaf."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import OWN_GRADIENT
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import aggregation, clip, kl, ratio, token_weight
from paribus_runners.native.objective.loss import Tokens, loss

LENGTHS = torch.tensor([2, 5, 1, 4])
GROUP = torch.tensor([0, 0, 1, 1])
ROW = torch.arange(4).repeat_interleave(LENGTHS)
T = int(LENGTHS.sum())
RATIOS: list[f.Ratio] = [
    f.NoRatio(),
    f.TokenRatio(),
    f.SequenceGeometric(),
    f.SequenceGeometricToken(),
    f.SequenceProduct(),
]
CLIPS: list[f.Clip] = [
    f.NoClip(),
    f.PpoMin(),
    f.PpoDual(),
    f.TwoSided(),
    f.CappedWeight(),
    f.SoftGate(),
    f.DynamicBand(),
    f.DppoTotalVariation(),
    f.DppoBinaryKl(),
    f.GradientPreserving(),
    f.FlippedRatio(),
    f.GammaWeight(),
]
AGGREGATIONS: list[f.Aggregation] = [
    f.SequenceMean(),
    f.TokenGroup(),
    f.TokenBatch(),
    f.ConstantLength(length=7),
    f.SequenceSum(),
    f.SequenceMeanSum(),
]
seeds = st.integers(0, 10**6)


def _weights(level: f.Aggregation, lengths: Tensor = LENGTHS, rows: int = 4) -> Tensor:
    return aggregation.token_weight(level, lengths, GROUP, rows, 37)


def _tokens(seed: int, level: f.Aggregation | None = None) -> Tokens:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(4, generator=g, dtype=torch.float64)
    return Tokens(
        row=ROW,
        rows=4,
        old=-3 * torch.rand(T, generator=g, dtype=torch.float64) - 0.1,
        advantage=A[ROW],
        weight=_weights(level or f.SequenceMean())[ROW],
        correction=torch.ones(T, dtype=torch.float64),
        entropy_weight=torch.full((T,), 1 / T, dtype=torch.float64),
        nll_weight=torch.zeros(T, dtype=torch.float64),
    )


def _near(tokens: Tokens, seed: int, by: float) -> Tensor:
    g = torch.Generator().manual_seed(seed + 1)
    return (tokens.old + by * torch.randn(T, generator=g, dtype=torch.float64)).requires_grad_()


def _gradient(recipe: Recipe, new: Tensor, tokens: Tokens) -> Tensor:
    return torch.autograd.grad(loss(recipe, new, tokens).value, new)[0]


@pytest.mark.parametrize("level", RATIOS, ids=lambda x: x.kind)
@pytest.mark.parametrize("rule", CLIPS, ids=lambda x: x.kind)
def test_on_policy_every_rule_has_the_policy_gradient(level: f.Ratio, rule: f.Clip) -> None:
    """T-Q1 and T-C1: at r = 1 the coefficient of each token is A times its weight; only sequence ratios spread it."""
    tokens = _tokens(0)
    new = tokens.old.clone().requires_grad_()
    r = ratio.ratio(level, new - tokens.old, ROW, 4)
    torch.testing.assert_close(r, torch.ones_like(r))
    want = -tokens.weight * tokens.advantage
    if level.kind == "seq_product" and rule.kind not in OWN_GRADIENT:  # d r / d log pi is 1 for each token: times L
        want = want * LENGTHS[ROW]
    torch.testing.assert_close(_gradient(Recipe(ratio=level, clip=rule), new, tokens), want)


@given(seeds)
def test_constant_log_ratio_makes_gspo_and_grpo_equal(seed: int) -> None:
    """T-Q2: with one log ratio in a response, sequence and token ratios have one gradient, clipped or not."""
    tokens = _tokens(seed)
    shift = 0.4 * torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    new = (tokens.old + shift[ROW]).requires_grad_()
    one, two = (_gradient(Recipe(ratio=level), new, tokens) for level in (f.TokenRatio(), f.SequenceGeometric()))
    torch.testing.assert_close(one, two)


@given(seeds)
def test_gspo_token_equals_gspo_at_constant_advantage(seed: int) -> None:
    """T-Q3: the token form has the value and the gradient of the sequence form if A is constant in the response."""
    tokens = _tokens(seed)
    new = _near(tokens, seed, 0.3)
    levels = (f.SequenceGeometric(), f.SequenceGeometricToken())
    values = [loss(Recipe(ratio=level), new, tokens)[0] for level in levels]
    torch.testing.assert_close(values[0], values[1])
    gradients = [_gradient(Recipe(ratio=level), new, tokens) for level in levels]
    torch.testing.assert_close(gradients[0], gradients[1])


@given(seeds)
def test_wide_bounds_never_act(seed: int) -> None:
    """T-C2: ppo_min with bounds that nothing reaches is none, and a dual clip far away is ppo_min."""
    tokens = _tokens(seed)
    new = _near(tokens, seed, 0.5)
    wide = _gradient(Recipe(clip=f.PpoMin(low=1.0, high=1e9)), new, tokens)
    torch.testing.assert_close(wide, _gradient(Recipe(clip=f.NoClip()), new, tokens))
    far = _gradient(Recipe(clip=f.PpoDual(c=1e9)), new, tokens)
    torch.testing.assert_close(far, _gradient(Recipe(clip=f.PpoMin()), new, tokens))


@pytest.mark.parametrize(
    ("r", "a", "coefficient"),
    [
        (0.3, 1.0, 0.3), (1.19, 1.0, 1.19), (1.21, 1.0, 0.0), (5.0, 1.0, 0.0),
        (0.79, -1.0, 0.0), (0.81, -1.0, -0.81), (1.29, -1.0, -1.29), (5.0, -1.0, -5.0), (2.0, 0.0, 0.0),
    ],
)  # fmt: skip
def test_ppo_truth_table(r: float, a: float, coefficient: float) -> None:
    """For A > 0 only the upper bound cuts the gradient, for A < 0 only the lower one."""
    assert _coefficient(f.PpoMin(), r, a) == pytest.approx(coefficient)


def test_clip_higher_is_asymmetric() -> None:
    """T-C3: raising the upper bound frees rare tokens with A > 0 and nothing else."""
    assert _coefficient(f.PpoMin(), 1.25, 1.0) == 0
    assert _coefficient(f.PpoMin(high=0.28), 1.25, 1.0) == pytest.approx(1.25)
    assert _coefficient(f.PpoMin(high=0.28), 0.75, -1.0) == 0


@pytest.mark.parametrize(
    ("rule", "r", "a", "coefficient"),
    [
        (f.PpoDual(c=3.0), 4.0, -1.0, 0.0),
        (f.PpoDual(c=3.0), 2.0, -1.0, -2.0),
        (f.TwoSided(delta=4.0), 5.0, -1.0, 0.0),
        (f.TwoSided(delta=4.0), 3.0, -1.0, -3.0),
        (f.CappedWeight(cap=1.28), 5.0, 1.0, 1.28),
        (f.CappedWeight(cap=1.28), 0.5, -1.0, -0.5),
        (f.GradientPreserving(), 5.0, 1.0, 1.2),
        (f.GradientPreserving(high=0.3, beta_high=0.5), 5.0, 1.0, 0.65),
        (f.GradientPreserving(), 0.5, -1.0, -0.6),
        (f.GradientPreserving(), 0.5, 1.0, 0.5),
        (f.GradientPreserving(), 5.0, -1.0, -5.0),
        (f.FlippedRatio(), 0.5, 1.0, 2.0),
        (f.FlippedRatio(), 0.2, 1.0, 3.0),
        (f.FlippedRatio(), 1.19, 1.0, 1 / 1.19),
        (f.FlippedRatio(), 1.21, 1.0, 0.0),
        (f.FlippedRatio(), 0.79, -1.0, 0.0),
        (f.FlippedRatio(), 2.0, -1.0, -2.0),
        (f.FlippedRatio(c_negative=1.5), 2.0, -1.0, -1.5),
        (f.GammaWeight(), 2.0, 1.0, 0.199),  # 2^2 e^-3
        (f.GammaWeight(), 0.5, 1.0, 1.120),
        (f.GammaWeight(), 2.0, -1.0, -1.083),  # 2^3 e^-2
        (f.GammaWeight(), 0.5, -1.0, -0.340),
        (f.DppoTotalVariation(high=0.1), 1.3, 1.0, 0.0),  # p - p_old is 0.110
        (f.DppoTotalVariation(high=0.12), 1.3, 1.0, 1.3),
        (f.DppoTotalVariation(high=0.1), 1.3, -1.0, -1.3),
        (f.DppoTotalVariation(low=0.1), 0.7, -1.0, 0.0),
        (f.DppoTotalVariation(low=0.12, high=0.1), 0.7, -1.0, -0.7),
        (f.DppoTotalVariation(low=0.1), 0.7, 1.0, 0.7),
        (f.DppoTotalVariation(high=0.05), 0.7, 1.0, 0.7),  # far away, and on the way back
        (f.DppoTotalVariation(low=0.05), 1.3, -1.0, -1.3),
        (f.DppoTotalVariation(high=1.0, cap=1.25), 1.3, 1.0, 1.25),
        (f.DppoTotalVariation(high=1.0, cap=1.25), 1.3, -1.0, -1.25),
        (f.DppoBinaryKl(high=0.024), 1.3, 1.0, 0.0),  # the KL is 0.0247
        (f.DppoBinaryKl(high=0.025), 1.3, 1.0, 1.3),
        (f.DppoBinaryKl(low=0.024), 1.3, -1.0, -1.3),
        (f.DppoBinaryKl(low=0.029), 0.7, -1.0, 0.0),  # the KL is 0.0295
        (f.DppoBinaryKl(low=0.03, high=0.029), 0.7, -1.0, -0.7),
        (f.SoftGate(tau_positive=1.0), 0.5, 1.0, 0.470),
        (f.SoftGate(tau_positive=1.0), 2.0, 1.0, 1.573),
        (f.SoftGate(tau_positive=1.0), 5.0, 1.0, 0.353),
    ],
)
def test_other_clip_rules(rule: f.Clip, r: float, a: float, coefficient: float) -> None:
    """Each rule has the coefficient of its paper at hand-computed points (SAPO: T-C4)."""
    assert _coefficient(rule, r, a) == pytest.approx(coefficient, abs=1e-3)


def test_dynamic_bounds() -> None:
    """T-C5: DCPO's bounds at rare and at frequent tokens, capped at 10."""
    old = torch.tensor([0.01, 0.9, 1e-6]).log()
    low, high = clip.bounds(f.DynamicBand(low=0.16, high=0.2), old)
    assert high.tolist() == pytest.approx([5.0, 1.187, 10.0], abs=1e-3)
    assert low.tolist() == pytest.approx([0.5, 0.769, 0.5], abs=1e-3)


def _coefficient(rule: f.Clip, r: float, a: float) -> float:
    old = torch.tensor([-1.0], dtype=torch.float64)
    new = (old + math.log(r)).requires_grad_()
    value = clip.surrogate(rule, (new - old).exp(), torch.tensor([a], dtype=torch.float64), new, old)
    return float(torch.autograd.grad(value.sum(), new)[0])


@pytest.mark.parametrize("a", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("r", [0.3, 0.79, 0.81, 1.0, 1.19, 1.21, 1.29, 2.0, 5.0])
def test_ppo_gradient_by_finite_differences(r: float, a: float) -> None:
    """U1: autograd agrees with central differences away from the bounds."""
    old, h = torch.tensor([-1.0], dtype=torch.float64), 1e-6

    def value(d: float) -> float:
        new = old + d
        return float(clip.surrogate(f.PpoMin(), (new - old).exp(), torch.tensor([a]).double(), new, old))

    difference = (value(math.log(r) + h) - value(math.log(r) - h)) / (2 * h)
    assert _coefficient(f.PpoMin(), r, a) == pytest.approx(difference, abs=1e-6)


def test_equal_lengths_make_aggregations_equal() -> None:
    """T-A1: with one length, the means agree, and const is L / C of them."""
    lengths = torch.full((4,), 3)
    means = [_weights(level, lengths) for level in (f.SequenceMean(), f.TokenGroup(), f.TokenBatch())]
    for other in means[1:]:
        torch.testing.assert_close(other, means[0])
    torch.testing.assert_close(_weights(f.ConstantLength(length=7), lengths), means[0] * 3 / 7)


def test_token_weights_of_each_aggregation() -> None:
    """T-A2 and T-A3: the weight of one token of each response."""
    L = LENGTHS.double()
    want = {
        "seq_mean": 1 / (4 * L),
        "token_group": 1 / (2 * torch.tensor([7, 7, 5, 5]).double()),
        "token_batch": torch.full((4,), 1 / 12).double(),
        "const": torch.full((4,), 1 / 28).double(),
        "seq_sum": torch.full((4,), 1 / 4).double(),
        "seq_meansum": 1 / L,
    }
    for level in AGGREGATIONS:
        torch.testing.assert_close(_weights(level), want[level.kind])
    torch.testing.assert_close(_weights(f.ConstantLength()), torch.full((4,), 1 / (4 * 37)).double())


def test_masked_rows_count_where_asked() -> None:
    """With six rows counted, seq_mean divides by six."""
    torch.testing.assert_close(_weights(f.SequenceMean(), rows=6), _weights(f.SequenceMean()) * 4 / 6)


@given(seeds, st.sampled_from(AGGREGATIONS), st.sampled_from(RATIOS))
def test_permuting_responses_permutes_the_gradient(seed: int, level: f.Aggregation, how: f.Ratio) -> None:
    """T-A4: the order of responses does not matter."""
    tokens = _tokens(seed, level)
    new = _near(tokens, seed, 0.3)
    recipe = Recipe(ratio=how)
    gradient = _gradient(recipe, new, tokens)
    order = torch.cat([(i == ROW).nonzero().squeeze(1) for i in (3, 1, 0, 2)])
    place = torch.tensor([2, 1, 3, 0])
    moved = dataclasses.replace(
        tokens,
        row=place[ROW[order]],
        old=tokens.old[order],
        advantage=tokens.advantage[order],
        weight=tokens.weight[order],
        nll_weight=tokens.nll_weight[order],
    )
    torch.testing.assert_close(_gradient(recipe, new.detach()[order].requires_grad_(), moved), gradient[order])


@given(st.integers(-500, 500))
def test_k2_and_k3_are_not_negative(hundredths: int) -> None:
    """T-K1: k2 and k3 are at least 0, and 0 at u = 0."""
    u = hundredths / 100
    value = torch.tensor([u, 0.0], dtype=torch.float64)
    for name in ("k2", "k3"):
        estimate = kl.estimate(name, value)
        assert estimate[0] >= 0
        assert estimate[1] == 0
    assert kl.estimate("k1", value)[0] == u


@pytest.mark.parametrize(("estimator", "expected"), [("k2", "reverse"), ("k3", "forward")])
def test_kl_gradients_by_enumeration(estimator: str, expected: str) -> None:
    """T-K2: on-policy, k2 in the loss has the gradient of KL(pi||ref), k3 that of KL(ref||pi)."""
    logits = torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.1, 0.4, -0.5, 0.2], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    p = logp.detach().exp()
    got = torch.autograd.grad((p * kl.estimate(estimator, logp - ref)).sum(), logits, retain_graph=True)[0]
    reverse = (logp.exp() * (logp - ref)).sum()
    forward = (ref.exp() * (ref - logp)).sum()
    torch.testing.assert_close(got, torch.autograd.grad(reverse if expected == "reverse" else forward, logits)[0])


def test_kl_in_reward_charges_each_token() -> None:
    """Each token pays beta k1; without KL in the reward none pays."""
    old, ref = torch.arange(T).double(), torch.ones(T).double()
    torch.testing.assert_close(kl.charge(f.KlInReward(beta=0.5), old, ref), 0.5 * (old - ref))
    assert kl.charge(f.KlInLoss(), old, ref).tolist() == [0.0] * T


def test_kl_in_the_loss_adds_its_gradient() -> None:
    """Each token's KL enters with the aggregation's weight and beta."""
    tokens = dataclasses.replace(_tokens(0), advantage=torch.zeros(T, dtype=torch.float64))
    tokens = dataclasses.replace(tokens, reference=tokens.old + 0.3)
    new = tokens.old.clone().requires_grad_()
    gradient = _gradient(Recipe(kl=f.KlInLoss(estimator="k2", beta=0.1)), new, tokens)
    torch.testing.assert_close(gradient, 0.1 * tokens.weight * -0.3)


def test_top_entropy_keeps_the_share_with_the_highest_entropy() -> None:
    """A fifth of ten tokens are the two with the highest entropy."""
    entropy = torch.arange(10.0)
    weight = token_weight.weight(f.TopEntropy(fraction=0.2), entropy, -entropy)
    assert weight.tolist() == [0.0] * 8 + [1.0] * 2


def test_advantage_reweight_lifts_likely_tokens() -> None:
    """The weight is alpha p + 1 - alpha."""
    old = torch.tensor([1.0, 0.5]).log()
    assert token_weight.weight(f.AdvantageReweight(alpha=0.3), old, old).tolist() == pytest.approx([1.0, 0.85])


def test_auxiliary_terms_add_their_gradients() -> None:
    """The NLL of correct responses and the entropy bonus enter with their coefficients and global denominators."""
    tokens = dataclasses.replace(_tokens(0), advantage=torch.zeros(T, dtype=torch.float64))
    tokens = dataclasses.replace(tokens, nll_weight=(ROW == 1).double() / 5)
    new = tokens.old.clone().requires_grad_()
    entropy = torch.ones(T, dtype=torch.float64, requires_grad=True)
    recipe = Recipe(auxiliary=f.Auxiliary(entropy=0.01, positive_nll=0.1))
    value, _ = loss(recipe, new, tokens, entropy)
    got = torch.autograd.grad(value, (new, entropy))
    torch.testing.assert_close(got[0], -0.1 * (ROW == 1).double() / 5)
    torch.testing.assert_close(got[1], torch.full((T,), -0.01 / T, dtype=torch.float64))
