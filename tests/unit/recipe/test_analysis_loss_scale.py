"""Changes of the scale of the loss, alone and beside what is studied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paribus.recipe.analysis import confounded, rescaled
from paribus.recipe.recipe import Recipe

Make = Callable[..., Recipe]
Patch = dict[str, Any]
SOFT = {"length.rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}}
IN_REWARD = {"kl": {"kind": "reward", "beta": 0.1}}
DROPS = {"length.truncated": "drop"}
LOO, ENTROPY, PM1 = {"baseline": "group_loo"}, {"auxiliary.entropy": 0.1}, {"reward.map": "pm1"}
BINARY = {"reward.map": "binary01"}
PASS: Patch = {"baseline": "pass_at_k"}
UNCLIPPED = {"optimizer.max_grad_norm": None}


@pytest.mark.parametrize(
    ("base", "patch", "told"),
    [
        ({"aggregation": "seq_sum"}, {"aggregation": "const"}, True),
        ({"aggregation": {"kind": "const", "length": 10}}, {"aggregation.length": 99}, True),
        ({"aggregation": "seq_mean"}, {"aggregation": "const"}, False),
        ({"aggregation": "seq_sum", **ENTROPY}, {"aggregation": "const"}, False),
        ({"aggregation": "seq_sum", "kl": "loss"}, {"aggregation": "const"}, True),  # both are aggregated
        ({}, {"aggregation": "seq_meansum"}, True),
        ({"schedule.minibatches": 4}, {"aggregation": "seq_meansum"}, True),
        ({"schedule.minibatches": 5}, {"aggregation": "seq_meansum"}, False),  # 16 prompts: updates differ in size
        ({"filter": "refill"}, {"aggregation": "seq_meansum"}, False),
        ({"length.truncated": "mask_loss"}, {"aggregation": "seq_meansum"}, False),
        ({"scale": "none"}, LOO, True),
        ({"scale": "group_std"}, LOO, True),
        ({"scale": "batch_std_raw"}, LOO, True),
        ({"scale": "batch_std_centred"}, LOO, True),
        ({"scale": "batch_whiten", **ENTROPY}, LOO, True),  # the same advantages
        ({"scale": {"kind": "batch_whiten", "eps": 1.0}}, LOO, False),
        ({"scale": "none", "kl": "loss"}, LOO, False),
        ({"scale": "none", **ENTROPY}, LOO, False),
        ({"scale": "none", **DROPS}, LOO, False),  # G differs from group to group
        ({"loss": "pair_dpo", "baseline": "none"}, {"aggregation": "seq_meansum"}, False),
        (BINARY, PM1, True),
        ({**BINARY, "scale": "batch_std_raw"}, PM1, True),
        ({**BINARY, "scale": {"kind": "group_std", "eps": 1.0}}, PM1, False),
        ({**BINARY, "scale": "none"}, PM1, True),
        ({**BINARY, "scale": "none", "kl": "loss"}, PM1, False),
        ({**BINARY, "baseline": "batch_mean", "scale": "none"}, PM1, True),
        ({**BINARY, "baseline": "none", "scale": "batch_whiten"}, PM1, True),
        ({**BINARY, "baseline": "none"}, PM1, False),
        ({**BINARY, **IN_REWARD}, PM1, False),
        ({**BINARY, **SOFT}, PM1, False),  # the punishment weighs half of what it does under 0 and 1
        ({**BINARY, "reward.weights.format": 0.5}, PM1, False),
        ({**BINARY, **PASS, "scale": "none"}, PM1, True),
        ({**BINARY, **PASS, "baseline.control": "none", "scale": "none"}, PM1, False),
        ({**BINARY, **PASS, "baseline.control": "mean", "scale": "pass_at_k_std"}, PM1, True),
        ({**BINARY, "baseline": "group_length_weighted", "scale": "none"}, PM1, True),
        ({**BINARY, "length.keep": "shortest"}, PM1, True),
        ({**BINARY, "length.keep": "efficient"}, PM1, False),  # of wrong answers the longest are kept, or the shortest
        ({"loss": "opmd", "ratio": "none", "clip": "none", "scale": "none"}, LOO, False),  # the distance stays
        ({}, {"reward.factor": 10.0}, True),
        ({}, {"scale.ddof": 0}, True),
        (DROPS, {"scale.ddof": 0}, False),
        ({"kl": "loss"}, {"scale.ddof": 0}, False),
        ({}, {"scale.ddof": 0, "scale.eps": 1e-4}, False),
        ({"scale.eps": 0.1}, {"scale.ddof": 0}, False),
        ({}, {}, False),
        ({}, {"scale.ddof": 0, **PM1}, False),  # two changes are not analysed
    ],
)  # fmt: skip
def test_changes_that_only_rescale_the_loss(recipe: Make, base: Patch, patch: Patch, told: bool) -> None:
    """Constant factors of the whole loss, or of rewards that are divided by their spread, are told; others are not."""
    one, other = recipe(base), recipe(base, patch)
    assert (rescaled(one, other) is not None) == told
    assert (rescaled(other, one) is not None) == told


def test_the_reason_names_what_undoes_the_rescaling(recipe: Make) -> None:
    """AdamW takes a constant out; clipping the gradient's norm does not."""
    before, after = {"aggregation": "seq_sum"}, {"aggregation": "const"}
    assert "optimizer.max_grad_norm (1.0)" in str(rescaled(recipe(before), recipe(after)))
    assert "max_grad_norm" not in str(rescaled(recipe(before, UNCLIPPED), recipe(after, UNCLIPPED)))
    assert "`seq_meansum` is 128 times `seq_mean`" in str(rescaled(recipe(), recipe({"aggregation": "seq_meansum"})))


@pytest.mark.parametrize(
    ("base", "metric", "told"),
    [
        ({}, "correct", True),
        ({"scale": "none", **LOO}, "correct", True),
        ({"aggregation": "token_batch"}, "reward_std", True),
        (SOFT, "correct", False),  # shaping gives groups of one verdict a spread
        (SOFT, "reward_std", True),
        (IN_REWARD, "correct", False),
        (IN_REWARD, "reward_std", True),
        ({"reward.weights.format": 0.5}, "correct", False),
        ({"kl": "loss"}, "correct", False),
        (ENTROPY, "correct", False),
        ({"auxiliary.positive_nll": 0.1}, "correct", False),
        (PASS, "correct", True),
        ({**PASS, "baseline.control": "mean", "scale": "pass_at_k_std"}, "correct", True),
        ({**PASS, "baseline.control": "none"}, "correct", False),  # equal rewards are k R there
        ({"scale": "batch_std_raw"}, "correct", False),  # the batch's statistics see other groups
        ({"baseline": "batch_mean"}, "correct", False),
        ({"baseline": "none"}, "correct", False),
        ({"token_weight": "top_entropy"}, "correct", False),  # the quantile sees other tokens
        ({"loss": "pair_dpo", "baseline": "none"}, "correct", False),
    ],
)
def test_dropping_groups_without_spread_changes_the_denominator_alone(
    recipe: Make, base: Patch, metric: str, told: bool
) -> None:
    """Where their advantages are 0 and nothing else acts on their tokens, the groups that are dropped do nothing."""
    one, other = recipe(base), recipe(base, {"filter": {"kind": "drop", "metric": metric}})
    assert (rescaled(one, other) is not None) == told
    assert (rescaled(other, one) is not None) == told
    assert rescaled(one, recipe(base, {"filter": {"kind": "refill", "metric": metric}})) is None


def test_what_dropping_changes_is_said_exactly(recipe: Make) -> None:
    """Without denominator nothing changes; several minibatches are cut otherwise; a clipped norm hides the growth."""
    drop, several = {"filter": "drop"}, {"schedule.minibatches": 4}
    meansum = {"aggregation": "seq_meansum"}
    assert str(rescaled(recipe(meansum), recipe(meansum, drop))).endswith("the gradient stays the same")
    assert str(rescaled(recipe(meansum, several), recipe(meansum, several, drop))).endswith(
        "only the cut of the minibatches changes"
    )
    plain = str(rescaled(recipe(), recipe(drop)))
    assert "denominator of `aggregation: seq_mean` changes" in plain
    assert "max_grad_norm (1.0)" in plain
    assert "and the cut of the minibatches" in str(rescaled(recipe(several), recipe(several, drop)))
    assert "max_grad_norm" not in str(rescaled(recipe(UNCLIPPED), recipe(UNCLIPPED, drop)))


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"aggregation": "token_batch"}, ["weigh long responses differently"]),
        ({"aggregation": "const"}, ["to mean(L) / 37 under `const` and to 1 under `seq_mean`"]),
        ({"aggregation": {"kind": "const", "length": 50}}, ["to mean(L) / 50 under `const`"]),
        ({"aggregation": "seq_sum"}, ["to mean(L) under `seq_sum`"]),
        ({"aggregation": "seq_meansum"}, ["to the number of responses under `seq_meansum`"]),
        ({"scale": "none"}, ["standard deviation 1 under `scale: group_std`"]),
        ({"scale": "none", "aggregation": "const"}, ["mean(L) / 37", "`scale: group_std`"]),
        ({"scale": "batch_std_raw"}, []),
        ({"clip.high": 0.28}, []),
        ({"baseline": "history", "scale": "history_smooth"}, []),
        ({"baseline": {"kind": "pass_at_k", "k": 6}}, []),  # divided by the scale of the group
        ({"baseline": {"kind": "pass_at_k", "k": 6}, "scale": "none"}, ["standard deviation 1", "up to 6 times"]),
    ],
)
def test_a_change_of_scale_meets_the_clipped_norm(recipe: Make, patch: Patch, said: list[str]) -> None:
    """What changes the size of gradients is told where their norm is clipped, in either direction of the change."""
    for found in (list(confounded(recipe(), recipe(patch))), list(confounded(recipe(patch), recipe()))):
        assert len(found) == len(said)
        assert all(part in reason for part, reason in zip(said, found, strict=True))
    assert list(confounded(recipe(UNCLIPPED), recipe(UNCLIPPED, patch))) == []


def test_pairs_have_no_aggregation_to_be_confounded(recipe: Make) -> None:
    """A level that cannot act changes no gradient."""
    pair = {"loss": "pair_dpo", "baseline": "none"}
    assert list(confounded(recipe(pair), recipe(pair, {"aggregation": "const", "scale": "none"}))) == []
