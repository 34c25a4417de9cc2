"""What must not change the gradient of a preset: padding, the order of prompts, the cut into parts; and edge cases."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, part, tokens_of
from paribus_runners.native.experience import Before, weigh
from paribus_runners.native.objective.loss import loss
from paribus_runners.native.rollout.rollouts import Rollouts

CORRECT = [[True, False, False], [True, True, False], [True] * 3, [False] * 3]
CPU = torch.device("cpu")


def _recipe(preset: str, **changes: Any) -> Recipe:
    values = dict(load_preset(preset).recipe)
    if values["length"].rule.kind == "soft_overlong":
        values["length"] = f.Length(rule=f.SoftOverlong(soft_start=3, hard_cap=7))
    if values["token_weight"].kind == "router_shift":
        values["token_weight"] = f.UniformWeight()
    values["schedule"] = values["schedule"].model_copy(update={"max_new_tokens": 7})
    return Recipe.model_validate({**values, **changes})


def _before(recipe: Recipe, rollouts: Rollouts) -> Before:
    """Return old probabilities and values away from those of the sampler and from 0."""
    old = rollouts.responses.logp + 0.2 * (rollouts.responses.entropy - 1.1)
    return Before(
        logp=old if recipe.correction.kind != "off" else None,
        value=rollouts.responses.entropy if recipe.baseline.kind == "critic_gae" else None,
    )


def _near(rollouts: Rollouts) -> Tensor:
    return rollouts.responses.logp + 0.6 * (rollouts.responses.entropy - 1.1)


@pytest.mark.parametrize("preset", preset_names())
def test_the_order_of_prompts_does_not_matter(preset: str, made: Any, outcome: Any) -> None:
    """U3: groups in another order have the same gradients, in that order."""
    recipe, order = _recipe(preset), [2, 0, 3, 1]
    plain = made(recipe, CORRECT)
    moved = plain.groups(order)
    rows = torch.tensor(order).mul(3)[:, None].add(torch.arange(3)).flatten()
    one = outcome(recipe, plain, _near(plain), before=_before(recipe, plain))
    two = outcome(recipe, moved, _near(moved), before=_before(recipe, moved))
    assert one.loss == pytest.approx(two.loss, rel=1e-6)
    torch.testing.assert_close(two.gradient, one.gradient[plain.responses.places(rows)], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("preset", preset_names())
def test_shards_add_up(preset: str, made: Any) -> None:
    """U5: with global denominators, loss and gradient of two shards of an optimizer batch are parts of the whole's."""
    recipe = _recipe(preset, aggregation=f.TokenMicro()) if preset == "grpo" else _recipe(preset)
    rollouts = made(recipe, CORRECT)
    experience = weigh(recipe, rollouts, _before(recipe, rollouts))
    (batch,) = minibatches(recipe, experience, Random(0))
    tokens, at = tokens_of(recipe, experience, batch), rollouts.responses.places(batch.rows)
    new = _near(rollouts)[at].requires_grad_()
    entropy = rollouts.responses.entropy[at]
    whole = loss(recipe, new, tokens, entropy).value
    shares = []
    for first, end in ((0, 2), (2, len(batch.rows))):
        here = (tokens.row >= first) & (tokens.row < end)
        shares.append(loss(recipe, new[here], part(tokens, first, end, CPU), entropy[here]).value)
    torch.testing.assert_close(sum(shares), whole)
    one, two = (torch.autograd.grad(x, new, retain_graph=True)[0] for x in (whole, sum(shares)))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("case", ["all truncated", "all wrong", "all right", "one token each", "one response each"])
def test_edge_cases_are_finite(preset: str, case: str, made: Any, outcome: Any) -> None:
    """U8: groups without spread, a batch without a response in it, single tokens and G = 1 give finite gradients."""
    how = {"as_scored": {}, "mask_loss": {}, "drop": {}} if case == "all truncated" else {"as_scored": {}}
    for truncated in how:
        recipe = _recipe(preset)
        recipe = recipe.model_copy(update={"length": recipe.length.model_copy(update={"truncated": truncated})})
        correct = {"all wrong": [[False] * 3] * 2, "all right": [[True] * 3] * 2}.get(case, CORRECT)
        if case == "one response each":
            correct = [[True], [False], [True]]
        n = sum(map(len, correct))
        lengths = [1] * n if case == "one token each" else None
        rollouts = made(recipe, correct, lengths=lengths, truncated=[case == "all truncated"] * n)
        got = outcome(recipe, rollouts, _near(rollouts), before=_before(recipe, rollouts))
        assert math.isfinite(got.loss)
        assert bool(got.gradient.isfinite().all())
        nothing = truncated == "drop" or (truncated == "mask_loss" and recipe.loss.kind != "pair_dpo")
        if case == "all truncated" and nothing:
            assert not got.gradient.any()


@pytest.mark.parametrize("correct", [True, False])
def test_groups_without_spread_train_nothing_under_group_statistics(correct: bool, made: Any, outcome: Any) -> None:
    """U8, T-B4: all right or all wrong, GRPO without KL has no gradient, and a filter leaves no optimizer batch."""
    for changes in ({}, {"filter": f.Drop()}, {"scale": f.NoScale()}, {"baseline": f.GroupLeaveOneOut()}):
        recipe = _recipe("grpo", kl=f.NoKl(), **changes)
        rollouts = made(recipe, [[correct] * 4] * 2)
        assert not outcome(recipe, rollouts, _near(rollouts)).gradient.any()
        if "filter" in changes:
            assert list(minibatches(recipe, weigh(recipe, rollouts), Random(0))) == []


def test_a_group_of_one_keeps_its_reward_without_a_baseline_only(made: Any, outcome: Any) -> None:
    """U8: G = 1 gives A = R under none, R minus the batch mean under batch_mean, and 0 under group_mean."""
    want = {"none": [2.0, -1.0], "batch_mean": [1.5, -1.5], "group_mean": [0.0, 0.0]}
    for kind, A in want.items():
        recipe = Recipe.model_validate({"baseline": {"kind": kind}, "scale": {"kind": "none"}})
        found = outcome(recipe, made(recipe, [[True], [False]])).experience
        assert found.advantage[found.rollouts.responses.first].tolist() == pytest.approx(A)
