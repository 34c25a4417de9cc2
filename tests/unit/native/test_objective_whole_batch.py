"""Clip rules that look at a whole optimizer batch: which tokens they choose, and which bounds they find."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective.loss import Tokens, loss
from paribus_runners.native.objective.whole_batch import EPS, Prepared, balanced, prepared

OLD = torch.tensor([-2.0, -0.1, -1.0, -3.0, -0.5, -1.5, -0.2, -2.5]).double()
D = torch.tensor([0.5, 0.05, -0.1, -0.6, 0.1, 0.0, -0.05, 0.3]).double()
A = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 2.0, 2.0]).double()
NEW = OLD + D
COV = (A - A.mean()) * (NEW - NEW.mean())
"""-0.09, 0.64, 0.11, 3.41, -1.39, 0.26, 1.61, -1.31 to two digits; ppo_min clips the tokens 0, 3 and 7."""


def _tokens(weight: Tensor | None = None) -> Tokens:
    row, one = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]), torch.ones(8).double()
    return Tokens(row, 3, OLD, A, one if weight is None else weight, one, one, 0 * one)


def _ready(rule: f.Clip, weight: Tensor | None = None, seed: int = 0, **changes: Any) -> Prepared:
    return prepared(Recipe(clip=rule, **changes), _tokens(weight), NEW, Random(seed))


def _coefficients(ready: Prepared) -> Tensor:
    leaf = NEW.clone().requires_grad_()
    return -torch.autograd.grad(loss(ready.recipe, leaf, ready.tokens).value, leaf)[0]


def _clipped() -> Tensor:
    """Return the coefficients of ppo_min by hand."""
    r = D.exp()
    return torch.where(((A > 0) & (r > 1.2)) | ((A < 0) & (r < 0.8)), 0.0, r * A)


def test_the_covariances_are_those_of_the_docstring() -> None:
    """So that the cases below are readable."""
    assert COV.tolist() == pytest.approx([-0.09, 0.64, 0.11, 3.41, -1.39, 0.26, 1.61, -1.31], abs=5e-3)
    assert (_clipped() == 0).nonzero().flatten().tolist() == [0, 3, 7]


@pytest.mark.parametrize(
    ("low", "high", "fraction", "out"),
    [
        (0.5, 5.0, 1.0, {1, 6}),  # 3 is clipped anyway
        (1.0, 5.0, 1.0, {6}),
        (0.04, 1.0, 1.0, {1, 2, 5}),
        (3.0, 5.0, 1.0, set()),
        (-2.0, 0.0, 1.0, {4}),  # 0 and 7 are clipped anyway
    ],
)
def test_clip_cov_takes_out_what_lies_in_the_range_and_is_not_clipped(
    low: float, high: float, fraction: float, out: set[int]
) -> None:
    """Where the range has fewer tokens than may be drawn, all of them go, and the others are clipped as ever."""
    ready = _ready(f.ClipCov(fraction=fraction, cov_low=low, cov_high=high))
    gone = torch.tensor([t in out for t in range(8)])
    assert ready.found is not None
    assert ready.found.chosen == len(out)
    torch.testing.assert_close(_coefficients(ready), torch.where(gone, 0.0, _clipped()))


def test_clip_cov_draws_a_share_of_all_tokens_and_at_least_one() -> None:
    """The share counts all tokens of the update; each one in the range is drawn sometimes, and seeds repeat."""
    rule = f.ClipCov(fraction=0.3, cov_low=0.04, cov_high=2.0)  # 1, 2, 5 and 6 lie in the range
    seen = set()
    for seed in range(30):
        ready = _ready(rule, seed=seed)
        assert ready.found is not None
        assert ready.found.chosen == int(0.3 * 8)
        gone = ((_coefficients(ready) == 0) & (_clipped() != 0)).nonzero().flatten().tolist()
        assert len(gone) == 2
        assert gone == ((_coefficients(_ready(rule, seed=seed)) == 0) & (_clipped() != 0)).nonzero().flatten().tolist()
        seen |= set(gone)
    assert seen == {1, 2, 5, 6}
    least = _ready(f.ClipCov(fraction=1e-4, cov_low=0.04, cov_high=2.0)).found
    assert least is not None
    assert least.chosen == 1


@pytest.mark.parametrize(("fraction", "charged"), [(0.1, {3}), (0.25, {3, 6}), (0.4, {3, 6, 1}), (1.0, set(range(8)))])
def test_kl_cov_charges_the_tokens_with_the_largest_covariance(fraction: float, charged: set[int]) -> None:
    """Nothing is clipped: r A everywhere, less beta times the sign of log r on the tokens that are charged."""
    ready = _ready(f.KlCov(fraction=fraction, beta=0.7))
    pays = torch.tensor([t in charged for t in range(8)])
    torch.testing.assert_close(_coefficients(ready), D.exp() * A - 0.7 * D.sign() * pays)
    assert ready.found is not None
    assert ready.found.chosen == len(charged)


def test_the_penalty_of_kl_cov_has_the_weight_of_the_correction() -> None:
    """As in verl, the weight between sampler and learner multiplies surrogate and penalty; KL stays without it."""
    ready = _ready(f.KlCov(fraction=0.25))
    weighed = Prepared(ready.recipe, replace(ready.tokens, correction=3 * ready.tokens.correction), None)
    torch.testing.assert_close(_coefficients(weighed), 3 * _coefficients(ready))


@pytest.mark.parametrize(
    "rule",
    [
        f.ClipCov(fraction=1.0, cov_low=0.1, cov_high=9.0),
        f.ClipCov(fraction=1.0, cov_low=0.78, cov_high=9.0),  # token 1, by the mean over those that take part
        f.ClipCov(fraction=1.0, cov_low=-9.0, cov_high=0.0),
        f.KlCov(fraction=0.5),
        f.KlCov(fraction=1.0),
        f.AdaptiveBand(),
    ],
    ids=str,
)
def test_tokens_without_a_weight_take_no_part(rule: f.Clip) -> None:
    """In a pass of Lopti the others count neither in the means nor among those that are drawn."""
    there = torch.tensor([1, 1, 0, 1, 0, 1, 1, 0]).double()
    chosen = there.bool()
    all_, tokens = _ready(rule, there), _tokens()
    few = replace(tokens, old=OLD[chosen], advantage=A[chosen], weight=there[chosen], row=tokens.row[chosen])
    alone = prepared(Recipe(clip=rule), few, NEW[chosen], Random(0))
    assert all_.found is not None
    assert alone.found is not None
    assert all_.found.chosen == alone.found.chosen
    assert all_.recipe == alone.recipe
    torch.testing.assert_close(all_.tokens.advantage[chosen], alone.tokens.advantage)
    if isinstance(rule, f.KlCov):
        assert all_.tokens.penalty is not None
        torch.testing.assert_close(all_.tokens.penalty[chosen], alone.tokens.penalty)
        assert not all_.tokens.penalty[~chosen].any()


def _share(low: float, high: float, r: Tensor, advantage: Tensor) -> float:
    positive = sum(min(x, high) * a for x, a in zip(r.tolist(), advantage.tolist(), strict=True) if a > 0)
    negative = -sum(max(x, low) * a for x, a in zip(r.tolist(), advantage.tolist(), strict=True) if a < 0)
    return positive / (positive + negative + EPS) if negative else 1.0


@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.45, 0.5, 0.55, 0.9]))
def test_bapo_stops_at_the_first_bounds_with_the_share(seed: int, target: float) -> None:
    """All steps of the lower bound come first, then those of the upper one; the first pair that suffices is taken."""
    g = torch.Generator().manual_seed(seed)
    r = (0.6 * torch.randn(20, generator=g, dtype=torch.float64)).exp()
    advantage = torch.randn(20, generator=g, dtype=torch.float64)
    level = f.AdaptiveBand(low_step=0.1, high_step=0.6, target=target)
    lows, highs = [0.6, 0.7, 0.8, 0.9], [1.2, 1.8, 2.4, 3.0]
    ways = [(low, 1.2) for low in lows] + [(0.9, high) for high in highs[1:]]
    want = next((way for way in ways if _share(*way, r, advantage) >= target), ways[-1])
    found = balanced(level, r, advantage)
    assert (found.low, found.high) == pytest.approx(want)
    assert found.positive == pytest.approx(_share(*want, r, advantage))


def test_bapo_clips_at_the_bounds_that_it_found() -> None:
    """The update is ppo_min within them; without wrong responses the first bounds stay."""
    ready = _ready(f.AdaptiveBand(target=1.0))
    assert isinstance(ready.recipe.clip, f.PpoMin)
    assert (1 - ready.recipe.clip.low, 1 + ready.recipe.clip.high) == pytest.approx((0.9, 3.0))
    right = balanced(f.AdaptiveBand(target=1.0), D.exp(), A.abs())
    assert (right.low, right.high, right.positive) == (0.6, 1.2, 1.0)


def test_other_rules_come_back_as_they_are() -> None:
    """A rule that needs no more than a token costs nothing."""
    tokens, recipe = _tokens(), Recipe()
    found = prepared(recipe, tokens, NEW, Random(0))
    assert found.recipe is recipe
    assert found.tokens is tokens
    assert found.found is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: f.ClipCov(cov_low=2.0, cov_high=1.0), "cov_low .2.0. must lie below cov_high .1.0."),
        (lambda: f.AdaptiveBand(low_start=0.95), "low_start .0.95. must not lie above low_end .0.9."),
        (lambda: f.AdaptiveBand(high_end=1.1), "high_start .1.2. must not lie above high_end .1.1."),
        (lambda: Recipe(clip=f.KlCov(), token_weight=f.RouterShift()), "before it is routed"),
    ],
)
def test_bounds_in_the_wrong_order_are_refused(make: Any, message: str) -> None:
    """With what is wrong and where."""
    with pytest.raises(ValueError, match=message):
        make()


def test_the_gradient_on_a_bandit_with_one_high_covariance_arm() -> None:
    """Of all arms of a softmax, each once, KL-Cov pulls the most covariant one back to its old probability."""
    logits = torch.tensor([0.3, -0.2, 0.9, 0.0]).double().requires_grad_()
    logp = logits.log_softmax(0)
    old = torch.tensor([-0.4, 0.6, 0.3, 0.1]).double().log_softmax(0)
    advantage, one = torch.tensor([1.0, -1.0, 2.0, -1.0]).double(), torch.ones(4).double()
    tokens = Tokens(torch.arange(4), 4, old, advantage, one, one, one, 0 * one)
    found = prepared(Recipe(clip=f.KlCov(fraction=0.25, beta=0.5)), tokens, logp.detach(), Random(0))
    (got,) = torch.autograd.grad(-loss(found.recipe, logp, found.tokens).value, logits, retain_graph=True)
    r = (logp.detach() - old).exp()
    most = int(((advantage - advantage.mean()) * (logp.detach() - logp.detach().mean())).argmax())
    assert most == 2
    c = (r * advantage).index_add(0, torch.tensor([2]), torch.tensor([-0.5 * math.copysign(1, r[2] - 1)]).double())
    (want,) = torch.autograd.grad((c * logp).sum(), logits)
    torch.testing.assert_close(got, want)
