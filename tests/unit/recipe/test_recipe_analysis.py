"""Analysis before a run: what is said is certain, and nothing is said where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.recipe.analysis import inert, never_clips, rescaled, same_responses
from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe

SEVERAL = {"schedule.minibatches": 4}


def recipe(*patches: dict[str, Any]) -> Recipe:
    """Return the default recipe with patches."""
    values: dict[str, Any] = Recipe().model_dump()
    for patch in patches:
        patched = apply(values, patch)
        assert patched.faults == ()
        values = patched.values
    return Recipe.model_validate(values)


@pytest.mark.parametrize(
    ("patch", "acts_not"),
    [
        ({"clip.high": 0.28}, True),
        ({"clip": "none"}, True),
        ({"clip": "soft_gate"}, True),
        ({"clip": {"kind": "is_cap_sg", "cap": 1.28}}, True),
        ({"clip": {"kind": "is_cap_sg", "cap": 0.2}}, False),  # caps the ratio 1 itself
        ({"clip": {"kind": "is_cap_sg", "cap": 2.0, "floor": 1.5}}, False),
        ({"clip.high": 0.0}, False),  # 1 lies on the bound
        ({"ratio": "seq_geo", "clip.high": 4e-4}, True),
        ({"ratio": "seq_product"}, False),  # sums over tokens where the others average
        ({"clip.high": 0.28, "scale": "none"}, False),
        ({}, False),
    ],
)
def test_ratio_and_clip_cannot_act_with_one_update_per_rollout(patch: dict[str, Any], acts_not: bool) -> None:
    """The ratio is 1 where old and new policy are the same, so rules that leave 1 alone are all one."""
    reason = inert(recipe(), recipe(patch))
    assert (reason is not None) == acts_not
    assert inert(recipe(SEVERAL), recipe(SEVERAL, patch)) is None
    stale = {"schedule.staleness": 1}
    assert inert(recipe(stale), recipe(stale, patch)) is None
    lopti = {"schedule.update": "lopti"}
    assert inert(recipe(lopti), recipe(lopti, patch)) is None


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"aggregation": "seq_sum"}, {"aggregation": "const"}, True),
        ({"aggregation": {"kind": "const", "length": 10}}, {"aggregation": {"kind": "const", "length": 99}}, True),
        ({"aggregation": "seq_mean"}, {"aggregation": "const"}, False),
        ({"aggregation": "seq_sum", "auxiliary.entropy": 0.1},
         {"aggregation": "const", "auxiliary.entropy": 0.1}, False),
        ({"scale": "none"}, {"scale": "none", "baseline": "group_loo"}, True),
        ({"scale": "group_std"}, {"scale": "group_std", "baseline": "group_loo"}, False),
        ({"scale": "none", "kl": "loss"}, {"scale": "none", "kl": "loss", "baseline": "group_loo"}, False),
        ({"reward.map": "binary01"}, {"reward.map": "pm1"}, True),
        ({"reward.map": "binary01", "scale": "none"}, {"reward.map": "pm1", "scale": "none"}, True),
        ({"reward.map": "binary01", "baseline": "none"}, {"reward.map": "pm1", "baseline": "none"}, False),
        ({"reward.map": "binary01", "kl": {"kind": "reward", "beta": 0.1}},
         {"reward.map": "pm1", "kl": {"kind": "reward", "beta": 0.1}}, False),
        ({"reward.factor": 1.0}, {"reward.factor": 10.0}, True),
        ({}, {}, False),
    ],
)  # fmt: skip
def test_changes_that_only_rescale_the_loss(before: dict[str, Any], after: dict[str, Any], told: bool) -> None:
    """Constant factors of the whole loss, or of rewards that are divided by their spread, are told; others are not."""
    assert (rescaled(recipe(before), recipe(after)) is not None) == told


def test_a_reward_map_matters_beside_a_length_rule() -> None:
    """Under +-1 the punishment weighs half of what it does under 0 and 1."""
    soft = {"length.rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}}
    assert rescaled(recipe(soft, {"reward.map": "binary01"}), recipe(soft, {"reward.map": "pm1"})) is None


def test_the_reason_names_what_undoes_the_rescaling() -> None:
    """AdamW takes a constant out; clipping the gradient's norm does not."""
    before, after = {"aggregation": "seq_sum"}, {"aggregation": "const"}
    assert "optimizer.max_grad_norm (1.0)" in str(rescaled(recipe(before), recipe(after)))
    off = {"optimizer.max_grad_norm": None}
    assert "max_grad_norm" not in str(rescaled(recipe(before, off), recipe(after, off)))


@pytest.mark.parametrize(("truncated", "told"), [("mask_loss", True), ("drop", True), ("as_scored", False)])
def test_filter_and_punishment_of_overlong_responses_meet(truncated: str, told: bool) -> None:
    """Masking or dropping truncated responses takes away what soft punishment would act on."""
    soft = {"length.rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}}
    assert (same_responses(recipe(soft, {"length.truncated": truncated})) is not None) == told
    assert same_responses(recipe({"length.truncated": truncated})) is None


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ({"ratio": "seq_geo"}, True),
        ({"ratio": "seq_geo_token"}, True),
        ({"ratio": "seq_geo", "clip": {"kind": "ppo_min", "low": 3e-4, "high": 4e-4}}, False),
        ({"ratio": "seq_geo", "clip": "none"}, False),
        ({"ratio": "token"}, False),
    ],
)
def test_bounds_that_a_mean_over_a_response_never_reaches(patch: dict[str, Any], told: bool) -> None:
    """The usual 0.2 around a sequence's mean ratio is told; GSPO's own bounds are not."""
    assert (never_clips(recipe(patch)) is not None) == told
