"""Changes that cannot act: what is said is certain, and nothing is said where a condition is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paribus.recipe.analysis import inert
from paribus.recipe.recipe import Recipe

Make = Callable[..., Recipe]
Patch = dict[str, Any]
SEVERAL = {"schedule.minibatches": 4}
STALE = {"schedule.staleness": 1}
ASYNC = {"filter": "refill_async"}
BF16 = {"model.dtype": "bfloat16"}
TIS = {"correction": "token_truncate"}
PAIR: Patch = {"loss": "pair_dpo", "baseline": "none"}


@pytest.mark.parametrize(
    ("patch", "acts_not"),
    [
        ({"clip.high": 0.28}, True),
        ({"clip": "none"}, True),
        ({"clip": "soft_gate"}, True),
        ({"clip": {"kind": "is_cap_sg", "cap": 1.28}}, True),
        ({"clip": {"kind": "is_cap_sg", "cap": 0.2}}, False),  # caps the ratio 1 itself
        ({"clip": {"kind": "is_cap_sg", "cap": 2.0, "floor": 1.5}}, False),
        ({"clip": "dppo_tv"}, True),
        ({"clip": "dppo_kl"}, True),
        ({"clip": {"kind": "dppo_tv", "cap": 0.5}}, False),
        ({"clip": {"kind": "dppo_kl", "high": 0.0}}, False),  # rounding decides
        ({"clip": "ce_gppo"}, True),
        ({"clip": "aspo"}, True),
        ({"clip": "vespo"}, True),
        ({"clip": "bapo"}, True),
        ({"clip": {"kind": "bapo", "low_end": 1.0}}, False),
        ({"clip": "clip_cov"}, False),  # it chooses by covariance
        ({"clip": "kl_cov"}, False),
        ({"clip.high": 0.0}, False),  # 1 lies on the bound
        ({"ratio": "seq_geo", "clip.high": 4e-4}, True),
        ({"ratio": "geo_clipped", "clip": "log_clip"}, True),
        ({"ratio": "seq_product"}, False),  # sums over tokens where the others average
        ({"clip.high": 0.28, "scale": "none"}, False),
        ({}, False),
    ],
)
def test_ratio_and_clip_cannot_act_with_one_update_per_rollout(recipe: Make, patch: Patch, acts_not: bool) -> None:
    """The ratio is 1 where old and new policy are the same, so rules that leave 1 alone are all one."""
    reason = inert(recipe(), recipe(patch))
    assert (reason is not None) == acts_not
    for broken in (SEVERAL, {"schedule.epochs": 2}, STALE, ASYNC, {"schedule.update": "lopti"}):
        assert inert(recipe(broken), recipe(broken, patch)) is None


def test_float32_logits_act_under_bfloat16_alone(recipe: Make) -> None:
    """In float32 all logits are of this type."""
    wide = {"model.logits_dtype": "float32"}
    assert "has such logits already" in (inert(recipe(), recipe(wide)) or "")
    assert inert(recipe(BF16), recipe(BF16, wide)) is None


def test_the_reason_names_updates_and_staleness(recipe: Make) -> None:
    """A reader sees which setting makes the change idle, and which factors are idle."""
    reason = str(inert(recipe(), recipe({"ratio": "seq_geo", "clip.high": 4e-4})))
    assert reason.endswith("the ratio is 1, so `clip` and `ratio` cannot act")
    assert "(schedule.minibatches x schedule.epochs = 1) and staleness 0" in reason


@pytest.mark.parametrize(
    "uneven",
    [
        {"token_weight": "advantage_reweight"},
        {"token_weight": "top_entropy"},
        {"baseline": "critic_gae", "scale": "none", "auxiliary.value": {"pretrain_steps": 0}},
        {"baseline": "none", "scale": "none", "kl": {"kind": "reward", "beta": 0.1, "unit": "token"}},
        TIS,
    ],
)
def test_a_mean_over_the_response_is_idle_only_where_its_tokens_have_one_advantage(recipe: Make, uneven: Patch) -> None:
    """GSPO spreads the gradient evenly; the ratio of GSPO-token and a clip leave it with each token."""
    assert inert(recipe(uneven), recipe(uneven, {"ratio": "seq_geo"})) is None
    assert inert(recipe(uneven), recipe(uneven, {"ratio": "seq_geo_token", "clip": "none"})) is not None


def test_a_weight_with_a_gradient_of_its_own_is_not_idle_on_a_product(recipe: Make) -> None:
    """CISPO's rule has the gradient of one token where the product of ratios has that of the whole response."""
    product = {"ratio": "seq_product"}
    assert inert(recipe(product), recipe(product, {"clip": "is_cap_sg"})) is None
    assert inert(recipe(product), recipe(product, {"clip": "vespo"})) is None
    assert inert(recipe(product), recipe(product, {"clip": "soft_gate"})) is not None


def test_half_precision_moves_the_ratio_out_of_a_narrow_band(recipe: Make) -> None:
    """Where rounding alone can pass a bound, a clip can act with one update, too."""
    wide, narrow = {"clip.high": 0.28}, {"clip": {"kind": "ppo_min", "low": 3e-4, "high": 4e-4}}
    assert inert(recipe(BF16), recipe(BF16, wide)) is not None
    assert inert(recipe(BF16), recipe(BF16, narrow)) is None
    assert inert(recipe(), recipe(narrow)) is not None


def test_without_a_ratio_no_clip_acts_in_any_update(recipe: Make) -> None:
    """The form of REINFORCE has the ratio 1 however often it is updated."""
    none = {"ratio": "none", **SEVERAL, **STALE}
    reason = inert(recipe(none), recipe(none, {"clip.high": 0.28}))
    assert reason == "`ratio: none` is 1 in every update, so `clip` cannot act"
    assert inert(recipe(none), recipe(none, {"ratio": "token"})) is None
    assert inert(recipe(none), recipe(none, {"clip": {"kind": "is_cap_sg", "cap": 0.5}})) is None
    assert inert(recipe(none), recipe(none, {"clip": "dppo_tv"})) is None  # which looks at probabilities


@pytest.mark.parametrize(
    ("correction", "acts_not"),
    [
        (TIS, True),
        ({"correction": "token_mask"}, True),
        ({"correction": "seq_truncate"}, True),
        ({"correction": "seq_mask"}, True),
        ({"correction": "geo_mask"}, True),
        ({"correction": {"kind": "chain", "mask": "geo_mask"}}, True),
        ({"correction": {"kind": "token_truncate", "cap": 0.5}}, False),  # truncates 1 itself
        ({"correction": {"kind": "token_mask", "low": 1.0, "high": 2.0}}, False),  # rounding decides
    ],
)
def test_a_correction_of_nothing_cannot_act(recipe: Make, correction: Patch, acts_not: bool) -> None:
    """Where the runner samples with what it trains, in float32 and without staleness, all weights are 1."""
    one, other = recipe(SEVERAL), recipe(SEVERAL, correction)
    assert (inert(one, other, sampler_is_learner=True) is not None) == acts_not
    assert (inert(other, one, sampler_is_learner=True) is not None) == acts_not
    assert inert(one, other) is None
    for broken in (STALE, ASYNC, BF16):
        assert inert(recipe(broken), recipe(broken, correction), sampler_is_learner=True) is None
    kept = {"filter": {"kind": "refill_async", "max_surplus": 0}}
    assert (inert(recipe(kept), recipe(kept, correction), sampler_is_learner=True) is not None) == acts_not


def test_an_off_policy_mask_needs_a_policy_that_moves(recipe: Make) -> None:
    """With one update no response is off-policy; with several, the weight of a chain alone is idle."""
    mask, chain = {"correction": "off_policy_mask"}, {"correction": "chain"}
    for patch in (mask, chain):
        reason = str(inert(recipe(), recipe(patch), sampler_is_learner=True))
        assert reason.endswith("no response is off-policy, so `correction` cannot act")
        assert inert(recipe(), recipe(patch)) is None
        for broken in (STALE, ASYNC, BF16, SEVERAL):
            assert inert(recipe(broken), recipe(broken, patch), sampler_is_learner=True) is None
    reason = str(inert(recipe(SEVERAL, mask), recipe(SEVERAL, chain), sampler_is_learner=True))
    assert reason.endswith("w is 1, so `correction.weight` cannot act")
    cut = {"correction": {"kind": "chain", "weight": {"kind": "token_truncate", "cap": 0.5}}}
    assert inert(recipe(SEVERAL, mask), recipe(SEVERAL, cut), sampler_is_learner=True) is None
    assert inert(recipe(), recipe(cut), sampler_is_learner=True) is None


def test_changes_that_are_idle_for_different_reasons_have_both_told(recipe: Make) -> None:
    """Each factor of a change stands with its own reason."""
    reason = str(inert(recipe(), recipe({"clip.high": 0.28}, TIS), sampler_is_learner=True))
    assert "the ratio is 1, so `clip` cannot act" in reason
    assert "w is 1, so `correction` cannot act" in reason


@pytest.mark.parametrize(
    "patch",
    [
        {"aggregation": "seq_mean"},
        {"scale": "group_std"},
        {"ratio": "token"},
        {"clip": "ppo_min"},
        {"reward.factor": 3.0},
    ],
)
def test_a_loss_of_pairs_knows_few_factors(recipe: Make, patch: Patch) -> None:
    """Pairs are whole responses, chosen by the order of rewards; length, filter and schedule still act."""
    pair = {**PAIR, **SEVERAL, "scale": "none", "ratio": "none", "clip": "none", "aggregation": "seq_sum"}
    reason = inert(recipe(pair), recipe(pair, patch))
    assert reason is not None
    assert reason.startswith("`loss: pair_dpo`")
    soft = {"length.rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}}
    for acts in (
        soft,
        {"filter": "drop"},
        {"schedule.temperature": 0.9},
        {"loss.beta": 0.2},
        {"reward.weights.format": 0.5},
    ):
        assert inert(recipe(pair), recipe(pair, acts)) is None
    assert inert(recipe(pair, soft), recipe(pair, soft, {"reward.factor": 3.0})) is None


def test_a_router_that_has_not_moved_weighs_nothing_down(recipe: Make) -> None:
    """Router shift compares the router before and after an update; with one update there is nothing to compare."""
    shift = {"token_weight": "router_shift"}
    assert inert(recipe(), recipe(shift), sampler_is_learner=True) is not None
    assert inert(recipe(), recipe(shift)) is None
    for broken in (SEVERAL, STALE, BF16, ASYNC):
        assert inert(recipe(broken), recipe(broken, shift), sampler_is_learner=True) is None


@pytest.mark.parametrize(
    ("idle", "acts"),
    [
        ({"schedule.update": {"kind": "lopti", "eta": 0.0}}, {"schedule.update": {"kind": "lopti", "eta": 0.5}}),
        ({"token_weight": {"kind": "top_entropy", "fraction": 1.0}}, {"token_weight": "top_entropy"}),
        ({"token_weight": {"kind": "advantage_reweight", "alpha": 0.0}}, {"token_weight": "advantage_reweight"}),
        ({"token_weight": {"kind": "router_shift", "floor": 1.0}}, {"token_weight": "router_shift"}),
        ({"length.count_masked_rows": True}, {"length": {"truncated": "mask_loss", "count_masked_rows": True}}),
    ],
)
def test_levels_at_the_value_that_switches_them_off(recipe: Make, idle: Patch, acts: Patch) -> None:
    """An empty first pass, weights of 1 and masked rows that do not exist are the plain recipe."""
    assert inert(recipe(SEVERAL), recipe(SEVERAL, idle)) is not None
    assert inert(recipe(SEVERAL), recipe(SEVERAL, acts)) is None


@pytest.mark.parametrize(("control", "plain"), [("none", {"baseline": "none"}), ("mean", {"baseline": "group_mean"})])
def test_the_best_of_one_response_is_the_response(recipe: Make, control: str, plain: Patch) -> None:
    """With k = 1 pass@k is the mean reward, and its std that of the population of the group."""
    best = {"baseline": {"kind": "pass_at_k", "k": 1, "control": control}}
    assert "the best of k responses is the response itself" in str(inert(recipe(plain), recipe(best)))
    std = {"scale": "pass_at_k_std"}
    assert inert(recipe(plain, {"scale": {"kind": "group_std", "ddof": 0}}), recipe(best, std)) is not None
    assert inert(recipe(plain), recipe(best, std)) is None
    assert inert(recipe(plain), recipe({"baseline": {"kind": "pass_at_k", "k": 2, "control": control}})) is None


def test_a_policy_that_was_not_left_has_no_distance(recipe: Make) -> None:
    """Mirror descent is the policy gradient where the update starts at the policy that sampled."""
    plain = {"ratio": "none", "clip": "none"}
    mirror = {**plain, "loss": "opmd"}
    assert "has not been left" in str(inert(recipe(plain), recipe(mirror), sampler_is_learner=True))
    assert inert(recipe(plain), recipe(mirror)) is None
    for broken in (SEVERAL, STALE, BF16, ASYNC):
        assert inert(recipe(broken, plain), recipe(broken, mirror), sampler_is_learner=True) is None


def test_keeping_a_whole_group_keeps_all(recipe: Make) -> None:
    """As many as there are responses in a group are all of them."""
    for kind in ("shortest", "efficient"):
        assert inert(recipe(), recipe({"length.keep": {"kind": kind, "count": 8}})) is not None
        assert inert(recipe(), recipe({"length.keep": {"kind": kind, "count": 7}})) is None


def test_masked_rows_count_only_where_responses_are_counted(recipe: Make) -> None:
    """A denominator of tokens, groups or nothing does not know how many responses were masked."""
    masked, counted = {"length.truncated": "mask_loss"}, {"length.count_masked_rows": True}
    for kind, idle in [("token_batch", True), ("token_group", True), ("seq_meansum", True), ("seq_mean", False),
                       ("const", False), ("token_micro", False)]:  # fmt: skip
        base = {**masked, "aggregation": kind}
        assert (inert(recipe(base), recipe(base, counted)) is not None) == idle, kind


def test_a_filter_asks_the_same_of_rewards_and_of_correctness_while_they_are_one(recipe: Make) -> None:
    """As soon as length, format or KL enter the reward, the two metrics keep different groups."""
    correct, spread = {"filter": {"kind": "refill", "metric": "correct"}}, {"filter.metric": "reward_std"}
    assert inert(recipe(correct), recipe(correct, spread)) is not None
    for shaped in (
        {"length.rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}},
        {"kl": {"kind": "reward", "beta": 0.1}},
        {"reward.weights.format": 0.5},
        {"reward.weights.correct": 0.0},
    ):
        assert inert(recipe(shaped, correct), recipe(shaped, correct, spread)) is None


def test_a_reference_that_is_never_moved_is_fixed(recipe: Make) -> None:
    """A reference that would first follow after the last step stands still."""
    steps = {"schedule.steps": 40, "kl": "loss"}
    for reference, idle in [({"every": 41}, True), ({"every": 40}, False), ({"every": 10, "mix": 0.0}, True)]:
        synced = {"kl": {"kind": "loss", "reference": {"kind": "synced", **reference}}}
        assert (inert(recipe(steps), recipe(steps, synced)) is not None) == idle, reference
