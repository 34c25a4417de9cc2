"""What a plan claims of objectives holds for the objective that trains: gradients equal, or equal up to one number."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe.analysis import inert, rescaled
from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import token_weight
from paribus_runners.native.objective.advantage import Scored, advantages
from paribus_runners.native.objective.aggregation import token_weight as aggregation_weight
from paribus_runners.native.objective.loss import Tokens, loss
from paribus_runners.native.objective.whole_batch import prepared

G = 4
Patch = dict[str, Any]
groups = st.lists(st.lists(st.booleans(), min_size=G, max_size=G), min_size=2, max_size=5)
seeds = st.integers(0, 10**6)


def _recipe(*patches: Patch) -> Recipe:
    values: dict[str, Any] = Recipe().model_dump()
    for patch in patches:
        done = apply(values, patch)
        assert done.faults == ()
        values = done.values
    return Recipe.model_validate(values)


def _gradient(recipe: Recipe, correct: list[list[bool]], seed: int, drift: float) -> Tensor:
    """Return d loss / d log pi [T] of one optimizer batch with all tokens, 0 on responses that are not kept."""
    flat = torch.tensor([c for g in correct for c in g])
    g = torch.Generator().manual_seed(seed)
    n, group = len(flat), torch.arange(len(correct)).repeat_interleave(G)
    L = torch.randint(1, 7, (n,), generator=g)
    scored = Scored(
        group=group, groups=len(correct), score=2 * flat.double() - 1, correct=flat, formatted=torch.ones_like(flat),
        length=L, truncated=torch.zeros_like(flat), kl=torch.zeros(n, dtype=torch.float64),
    )  # fmt: skip
    mixed = torch.tensor([0 < sum(g) < G for g in correct])[group]
    kept = mixed if recipe.filter.kind == "drop" else torch.ones_like(mixed)
    A = advantages(recipe, scored, kept)
    weight = torch.zeros(n, dtype=torch.float64)
    _, places = torch.unique(group[kept], return_inverse=True)
    weight[kept] = aggregation_weight(recipe.aggregation, L[kept], places, int(kept.sum()), 37)
    row = torch.arange(n).repeat_interleave(L)
    old = -3 * torch.rand(len(row), generator=g, dtype=torch.float64) - 0.1
    new = (old + drift * torch.randn(len(row), generator=g, dtype=torch.float64)).requires_grad_()
    one = torch.ones_like(old)
    tokens = Tokens(
        row=row, rows=n, old=old, weight=weight[row], correction=one, entropy_weight=one, nll_weight=0 * one,
        advantage=A[row] * token_weight.weight(recipe.token_weight, torch.rand(len(row), generator=g).double(), old),
    )  # fmt: skip
    recipe, tokens, _ = prepared(recipe, tokens, new.detach(), Random(0))
    return torch.autograd.grad(loss(recipe, new, tokens).value, new)[0]


def _factor(one: Tensor, other: Tensor) -> float:
    """Return the number that makes the second gradient of the first; fail if there is none.

    Where every token with an advantage was clipped, both must be 0, and the example shows no number.
    """
    if not one.any():
        assert not other.any()
        reject()
    c = float((one * other).sum() / (one * one).sum())
    torch.testing.assert_close(c * one, other, rtol=1e-4, atol=1e-12)
    return c


@pytest.mark.parametrize(
    ("base", "patch"),
    [
        ({"aggregation": "seq_sum"}, {"aggregation": "const"}),
        ({}, {"aggregation": "seq_meansum"}),
        ({}, {"scale.ddof": 0}),
        ({"reward.map": "binary01", "baseline": "batch_mean", "scale": "none"}, {"reward.map": "pm1"}),
        ({"reward.map": "binary01", "baseline": "none", "scale": "batch_whiten"}, {"reward.map": "pm1"}),
        ({"reward.map": "binary01", "baseline": {"kind": "pass_at_k", "k": 2}, "scale": "none"},
         {"reward.map": "pm1"}),
        *[({"scale": s}, {"baseline": "group_loo"})
          for s in ("none", "group_std", "batch_std_raw", "batch_std_centred", "batch_whiten")],
    ],
)  # fmt: skip
@settings(max_examples=10)
@given(correct=groups, seed=seeds)
def test_what_is_told_to_rescale_does_nothing_else(
    base: Patch, patch: Patch, correct: list[list[bool]], seed: int
) -> None:
    """One number that depends on the recipe alone, not on the batch, takes one gradient to the other."""
    assume(any(0 < sum(g) < G for g in correct))
    several = {"schedule.minibatches": 2, "schedule.prompts_per_step": 2 * len(correct), "schedule.group_size": G}
    before, after = _recipe(several, base), _recipe(several, base, patch)
    assert rescaled(before, after) is not None
    factor = _factor(_gradient(before, correct, seed, 0.3), _gradient(after, correct, seed, 0.3))
    sure = [[True, False, False, False]] * len(correct)
    same = _factor(_gradient(before, sure, 1, 0.3), _gradient(after, sure, 1, 0.3))
    assert factor == pytest.approx(same, rel=1e-4)


@pytest.mark.parametrize("aggregation", ["seq_mean", "token_group", "token_batch", "const", "seq_sum", "seq_meansum"])
@pytest.mark.parametrize("clip", ["ppo_min", "is_cap_sg", "soft_gate"])
@pytest.mark.parametrize(
    "scale", [{"scale": "none"}, {"scale": "group_std"}, {"scale": "none", "baseline": {"kind": "pass_at_k", "k": 2}}]
)
@settings(max_examples=10)
@given(correct=groups, seed=seeds)
@example(correct=[[False] * 4, [False, False, False, True]], seed=10878)
def test_dropping_groups_without_spread_is_a_change_of_the_denominator(
    aggregation: str, clip: str, scale: Patch, correct: list[list[bool]], seed: int
) -> None:
    """T-F1: the gradient is multiplied by sampled over kept, and is the same to the bit without a denominator."""
    mixed = sum(0 < sum(g) < G for g in correct)
    assume(mixed)
    base = {"aggregation": aggregation, "clip": clip, **scale, "schedule.group_size": G}
    before, after = _recipe(base), _recipe(base, {"filter": "drop"})
    assert rescaled(before, after) is not None
    one, other = _gradient(before, correct, seed, 0.3), _gradient(after, correct, seed, 0.3)
    factor = _factor(one, other)
    if aggregation == "seq_meansum":
        assert torch.equal(one, other)
    elif aggregation != "token_batch":
        assert factor == pytest.approx(len(correct) / mixed)
    else:
        assert factor > 1 - 1e-9


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"kind": "ce_gppo", "low": 0.1, "high": 0.3, "beta_low": 0.0, "beta_high": 0.0},
         {"kind": "ppo_min", "low": 0.1, "high": 0.3}),
        ({"kind": "bapo", "low_start": 0.9, "low_end": 0.9, "high_start": 1.3, "high_end": 1.3},
         {"kind": "ppo_min", "low": 0.1, "high": 0.3}),
        ({"kind": "dppo_tv", "low": 1.0, "high": 1.0, "cap": 1.1}, {"kind": "is_cap_sg", "cap": 1.1}),
    ],
)  # fmt: skip
def test_rules_that_are_told_to_be_another_have_its_gradient(one: Patch, other: Patch) -> None:
    """Off-policy too, and with a bit of another parameter nothing is told any more."""
    several = {"schedule.minibatches": 2}
    before, after = (_recipe(several, {"clip": clip}) for clip in (one, other))
    assert inert(before, after) is not None
    correct = [[True, False, False, True], [False, True, False, False]]
    torch.testing.assert_close(*(_gradient(recipe, correct, 0, 0.3) for recipe in (before, after)))
    name = {"ce_gppo": "beta_low", "bapo": "low_start", "dppo_tv": "low"}[one["kind"]]
    assert inert(_recipe(several, {"clip": one | {name: 0.5}}), after) is None


RATIOS = ("none", "token", "seq_geo", "seq_geo_token", "seq_product")
CLIPS: tuple[Any, ...] = ("none", "ppo_min", "ppo_dual", "two_sided", "is_cap_sg", "soft_gate", "dynamic",
                          "dppo_tv", "dppo_kl", "ce_gppo", "aspo", "vespo", "bapo", "clip_cov", "kl_cov",
                          {"kind": "is_cap_sg", "cap": 0.5})  # fmt: skip
LEVELS: list[Patch] = [
    *({"ratio": r, "clip": c} for r, c in product(RATIOS, CLIPS)),
    {"ratio": "geo_clipped", "clip": "log_clip"},
]


@pytest.mark.parametrize("aggregation", ["seq_mean", "token_batch"])
@pytest.mark.parametrize("weight", ["uniform", "advantage_reweight"])
def test_what_is_told_to_be_inert_has_the_same_gradient(aggregation: str, weight: str) -> None:
    """With one update, every pair of ratio and clip levels that the plan calls one is one."""
    correct = [[True, False, False, True], [False, True, False, False]]
    recipes = [_recipe({"aggregation": aggregation, "token_weight": weight}, level) for level in LEVELS]
    gradients = [_gradient(recipe, correct, 0, 0.0) for recipe in recipes]
    reference = recipes.index(_recipe({"aggregation": aggregation, "token_weight": weight}))
    told = [k for k, recipe in enumerate(recipes) if inert(recipes[reference], recipe)]
    for k in told:
        torch.testing.assert_close(gradients[k], gradients[reference])
    neutral = len(CLIPS) - 3  # all but the cap below 1 and the two that choose by covariance
    spread = neutral * (weight == "uniform")  # seq_geo, which has the gradient of the token where advantages are one
    assert len(told) == 3 * neutral - 1 + spread + (weight == "uniform" and aggregation == "seq_mean")
    for one, other in product(range(len(recipes)), repeat=2):
        if LEVELS[one]["ratio"] == "seq_product" and inert(recipes[one], recipes[other]):
            torch.testing.assert_close(gradients[one], gradients[other])
