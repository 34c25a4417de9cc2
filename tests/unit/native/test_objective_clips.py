"""Gradients of every clip rule by finite differences, GMPO's identities, and ratios beyond all bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import CAPS
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import clip, kl, ratio
from paribus_runners.native.objective.loss import Tokens, loss

RATIOS_AT = [0.3, 0.79, 0.81, 1.0, 1.19, 1.21, 1.29, 2.0, 5.0]
SMOOTH: list[f.Clip] = [
    f.NoClip(),
    f.PpoMin(high=0.28),
    f.PpoDual(),
    f.TwoSided(),
    f.SoftGate(),
    f.DynamicBand(),
]
"""Rules without a stopped gradient."""
RATIOS: list[f.Ratio] = [
    f.NoRatio(),
    f.TokenRatio(),
    f.SequenceGeometric(),
    f.SequenceGeometricToken(),
    f.SequenceProduct(),
]
GMPO = Recipe(ratio=f.GeometricClipped(), clip=f.LogClip(low=0.4, high=0.3))


def _tokens(old: Tensor, advantage: Tensor, row: Tensor | None = None) -> Tokens:
    row = torch.zeros(len(old), dtype=torch.long) if row is None else row
    one = torch.ones_like(old)
    lengths = row.bincount().double()[row]
    return Tokens(row, int(row.max()) + 1, old, advantage.expand_as(old), 1 / lengths, one, one, 0 * one)


def _value(recipe: Recipe, tokens: Tokens) -> Callable[[Tensor], Tensor]:
    return lambda d: loss(recipe, tokens.old + d, tokens).value


def _gradient(recipe: Recipe, tokens: Tokens, d: Tensor) -> Tensor:
    leaf = d.clone().requires_grad_()
    return torch.autograd.grad(_value(recipe, tokens)(leaf), leaf)[0]


def _differences(value: Callable[[Tensor], Tensor], d: Tensor, h: float = 1e-6) -> Tensor:
    steps = h * torch.eye(len(d), dtype=d.dtype)
    return torch.stack([(value(d + e) - value(d - e)) / (2 * h) for e in steps])


@pytest.mark.parametrize("a", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("rule", SMOOTH, ids=lambda x: x.kind)
@pytest.mark.parametrize("how", [f.TokenRatio(), f.SequenceGeometric(), f.SequenceProduct()], ids=lambda x: x.kind)
def test_gradients_by_finite_differences(rule: f.Clip, how: f.Ratio, a: float) -> None:
    """U1: for each rule, on tokens and on whole responses, the gradient is that of the value."""
    recipe, A = Recipe(clip=rule, ratio=how), torch.tensor([a]).double()
    for r in RATIOS_AT:
        d = torch.tensor([math.log(r), 0.05, -0.02]).double()
        tokens = _tokens(torch.tensor([-1.0, -0.4, -2.0]).double(), A)
        torch.testing.assert_close(
            _gradient(recipe, tokens, d), _differences(_value(recipe, tokens), d), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("a", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("r", RATIOS_AT)
def test_gradient_of_clipped_logs_by_finite_differences(r: float, a: float) -> None:
    """U1: GMPO's gradient is that of its value, wherever a token stands."""
    tokens = _tokens(torch.tensor([-1.0, -0.4, -2.0]).double(), torch.tensor([a]).double())
    d = torch.tensor([math.log(r), 0.2, -0.1]).double()
    torch.testing.assert_close(_gradient(GMPO, tokens, d), _differences(_value(GMPO, tokens), d), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("a", [-1.0, 1.0])
@pytest.mark.parametrize("r", RATIOS_AT)
def test_capped_weight_never_stops_a_token(r: float, a: float) -> None:
    """U1: CISPO's coefficient is min(r, cap) A, and max(r, floor) A with a floor: its weight has no gradient."""
    old = torch.tensor([-1.0]).double()
    tokens, d = _tokens(old, torch.tensor([a]).double()), torch.tensor([math.log(r)]).double()
    got = _gradient(Recipe(clip=f.CappedWeight(cap=1.2, floor=0.5)), tokens, d)
    assert -float(got) == pytest.approx(min(max(r, 0.5), 1.2) * a)


@given(st.integers(0, 10**6))
def test_gmpo_without_clipped_tokens_is_gspo_without_a_clip(seed: int) -> None:
    """One value and one gradient while every log ratio stays within the bounds."""
    g = torch.Generator().manual_seed(seed)
    row = torch.tensor([0, 0, 0, 1, 2, 2])
    d = 0.29 * (2 * torch.rand(6, generator=g, dtype=torch.float64) - 1)
    A = torch.randn(3, generator=g, dtype=torch.float64)[row]
    tokens = _tokens(torch.full((6,), -1.0).double(), A, row)
    gspo = Recipe(ratio=f.SequenceGeometric(), clip=f.NoClip())
    torch.testing.assert_close(_value(GMPO, tokens)(d), _value(gspo, tokens)(d))
    torch.testing.assert_close(_gradient(GMPO, tokens, d), _gradient(gspo, tokens, d))


@pytest.mark.parametrize(("a", "d"), [(1.0, [1.0, 0.1, -1.0]), (-1.0, [-1.0, 0.1, 1.0])])
def test_a_clipped_log_has_no_gradient_but_scales_the_others(a: float, d: list[float]) -> None:
    """A geo / L on unclipped tokens, 0 on a clipped one, whose bound stays in geo; one side by sign."""
    tokens = _tokens(torch.full((3,), -1.0).double(), torch.tensor([a]).double())
    bound = 0.3 if a > 0 else -0.4
    geo = math.exp((bound + d[1] + d[2]) / 3)
    got = _gradient(GMPO, tokens, torch.tensor(d).double())
    torch.testing.assert_close(got, -torch.tensor([0.0, a * geo / 3, a * geo / 3]).double())


@pytest.mark.parametrize("target", ["ratio", "token"])
def test_router_shift_by_hand(target: Any) -> None:
    """RSPO: gamma multiplies the ratio of a token before its log is clipped, or else the token's advantage."""
    gamma = torch.tensor([1.0, 0.9, 0.8]).double()
    d = torch.tensor([0.5, 0.35, 0.1]).double()
    tokens = _tokens(torch.full((3,), -1.0).double(), torch.tensor([2.0]).double())
    recipe = Recipe.model_validate({**dict(GMPO), "token_weight": f.RouterShift(target=target)})
    leaf = d.clone().requires_grad_()
    found = loss(recipe, tokens.old + leaf, tokens, shift=gamma)
    (gradient,) = torch.autograd.grad(found.value, leaf)
    if target == "ratio":
        moved = d + gamma.log()
        geo = float(torch.tensor([0.3, *moved[1:].tolist()]).mean().exp())  # the first is clipped, the second no more
        want = -torch.tensor([0.0, 2 * geo / 3, 2 * geo / 3]).double()
    else:
        moved = d
        geo = math.exp((0.3 + 0.3 + 0.1) / 3)
        want = -torch.tensor([0.0, 0.0, 2 * geo / 3]).double() * gamma.mean()
    torch.testing.assert_close(gradient, want, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.ratio, moved.exp())


@given(st.floats(0.001, 0.999), st.floats(0.01, 0.99), st.floats(0.01, 1.0))
def test_dynamic_bounds_are_where_their_equations_hold(q: float, low: float, high: float) -> None:
    """T-C5: r (r - 1) q = high at the upper bound, r (1 - r) q = low at the lower one, or that is 0.5."""
    least, most = clip.bounds(f.DynamicBand(low=low, high=high, cap=1e9), torch.tensor([q]).double().log())
    assert float(most * (most - 1) * q) == pytest.approx(high)
    if 4 * low <= q:
        assert float(least * (1 - least) * q) == pytest.approx(low)
    else:
        assert float(least) == 0.5


def test_bounds_that_metrics_count_against_are_those_that_act() -> None:
    """Clip fractions look at the same edges as the rule: GMPO's as ratios of a token, no clip at infinity."""
    old = torch.tensor([-1.0]).double()
    edges = {
        f.PpoMin(low=0.1, high=0.3): (0.9, 1.3),
        f.LogClip(low=0.4, high=0.3): (math.exp(-0.4), math.exp(0.3)),
        f.CappedWeight(cap=1.5, floor=0.2): (0.2, 1.5),
        f.NoClip(): (-math.inf, math.inf),
    }
    for rule, want in edges.items():
        assert tuple(map(float, clip.bounds(rule, old))) == pytest.approx(want)


CLIPS: list[f.Clip] = [
    *SMOOTH,
    f.PpoDual(high=0.28, c=1.5),
    f.PpoDual(high=1.0, c=1.5),
    f.TwoSided(high=0.28, delta=1.6),
    f.TwoSided(high=0.28, delta=1.1),
    f.CappedWeight(),
    f.CappedWeight(cap=1.2, floor=0.5),
    f.DynamicBand(cap=1.3),
    f.DppoTotalVariation(low=0.1, high=0.05, cap=1.1),
    f.DppoBinaryKl(low=0.02, high=0.01, cap=1.1),
    f.GradientPreserving(high=0.28, beta_low=0.5, beta_high=0.9),
    f.FlippedRatio(high=0.28, c_positive=1.5, c_negative=1.6),
    f.GammaWeight(),
]


@pytest.mark.parametrize("how", RATIOS, ids=lambda x: x.kind)
@pytest.mark.parametrize("rule", CLIPS, ids=str)
def test_what_metrics_count_is_what_autograd_cuts(rule: f.Clip, how: f.Ratio) -> None:
    """A token with an advantage has no gradient where it is counted low, high or dual; capped: not r times A."""
    if rule.kind == "dynamic" and how.kind in ("seq_geo", "seq_product"):
        pytest.skip("tokens of one response have bounds of their own, and gradient through each other")
    recipe, g = Recipe(clip=rule, ratio=how), torch.Generator().manual_seed(0)
    row = torch.arange(60).repeat_interleave(2)
    old, d = (x * torch.rand(120, generator=g).double() for x in (-3.0, 2.0))
    d, A = d - 1, torch.tensor([-1.0, 0.0, 1.0]).double()[torch.randint(3, (60,), generator=g)][row]
    tokens = _tokens(old, A, row)
    found = loss(recipe, old + d, tokens)
    cut = clip.cut(rule, found.ratio, A, old + d, old)
    gradient = _gradient(recipe, tokens, d)
    share = 1.0 if how.kind == "seq_product" and rule.kind in ("ce_gppo", "aspo") else 0.5  # two tokens through r
    if isinstance(rule, f.CappedWeight | f.GradientPreserving):
        assert not ((gradient == 0) & (A != 0)).any()
        torch.testing.assert_close(cut.capped, (gradient + share * found.ratio * A).abs() > 1e-9)
        assert not ((cut.low | cut.high) & ~cut.capped).any()
    else:
        torch.testing.assert_close(cut.low | cut.high | cut.dual, (gradient == 0) & (A != 0))
        assert not (cut.low & cut.dual).any()
        weight = torch.where(A > 0, 1 / found.ratio, found.ratio) if rule.kind == "aspo" else found.ratio
        weighs_less = (gradient != 0) & ((gradient + share * weight * A).abs() > 1e-9)
        torch.testing.assert_close(cut.capped, weighs_less if rule.kind in CAPS else torch.zeros_like(cut.capped))
    assert not (cut.low & (A >= 0)).any()
    assert not (cut.high & (A <= 0)).any()
    assert not (cut.dual & (A >= 0)).any()


def test_soft_gate_is_bounded_and_leans_on_the_sign() -> None:
    """The value never exceeds 4 / tau A, and tau is that of the sign of A; A = 0 counts as negative."""
    rule, old = f.SoftGate(tau_positive=0.5, tau_negative=2.0), torch.zeros(2).double()
    A = torch.tensor([1.0, -1.0]).double()
    far = clip.surrogate(rule, torch.full((2,), 1e8).double(), A, old, old)
    assert far.tolist() == pytest.approx([8.0, -2.0])


@pytest.mark.parametrize("how", RATIOS, ids=lambda x: x.kind)
@pytest.mark.parametrize(
    "rule",
    [
        *SMOOTH,
        f.CappedWeight(),
        f.DppoTotalVariation(),
        f.DppoBinaryKl(),
        f.GradientPreserving(),
        f.FlippedRatio(),
        f.GammaWeight(),
    ],
    ids=lambda x: x.kind,
)
def test_ratios_beyond_all_bounds_stay_finite(rule: f.Clip, how: f.Ratio) -> None:
    """U8: a log ratio is kept within 20 nats before exp, so neither value nor gradient overflows in float32."""
    recipe = Recipe(clip=rule, ratio=how)
    for a, d in product((-1.0, 1.0), (-1000.0, -50.0, 50.0, 1000.0)):
        tokens, shift = _tokens(torch.tensor([-1.0, -0.4]), torch.tensor([a])), torch.tensor([d, 0.0])
        assert math.isfinite(float(_value(recipe, tokens)(shift)))
        assert bool(_gradient(recipe, tokens, shift).isfinite().all())


def test_the_guard_stands_at_twenty_nats() -> None:
    """U8: 19 nats pass, 21 become 20, for a token and for a response."""
    row, d = torch.tensor([0, 0, 1]), torch.tensor([10.5, 10.5, 19.0]).double()
    product = ratio.ratio(f.SequenceProduct(), d, row, 2)
    torch.testing.assert_close(product.log(), torch.tensor([20.0, 20.0, 19.0]).double())
    tokens = ratio.ratio(f.TokenRatio(), torch.tensor([21.0, -21.0, 19.0]).double(), row, 2)
    torch.testing.assert_close(tokens.log(), torch.tensor([20.0, -20.0, 19.0]).double())


def test_the_weight_of_kl_has_the_same_guard() -> None:
    """U8: the ratio in front of KL in the loss is kept within 20 nats, too."""
    old, new = torch.tensor([-1000.0, -1.0]), torch.tensor([-1.0, -1.0], requires_grad=True)
    term = kl.in_loss(f.KlInLossWeighted(estimator="k1", beta=0.1), new, old, torch.tensor([-2.0, -2.0]))
    assert bool(term.isfinite().all())
    assert bool(torch.autograd.grad(term.sum(), new)[0].isfinite().all())
