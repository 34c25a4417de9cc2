"""What is odd about one recipe, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.recipe.analysis import (
    added_cost,
    kept_groups,
    length_weighted,
    limits,
    never_clips,
    oversampling,
    refill_cost,
    same_responses,
)
from paribus.recipe.recipe import Recipe

Make = Callable[..., Recipe]
Patch = dict[str, Any]
SOFT = {"length.rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}}
GMPO = {"ratio": "geo_clipped", "clip": "log_clip"}
CRITIC: Patch = {"baseline": "critic_gae", "scale": "none", "auxiliary.value": {"pretrain_steps": 0}}
PAIR: Patch = {"loss": "pair_dpo", "baseline": "none"}


@pytest.mark.parametrize(("truncated", "told"), [("mask_loss", True), ("drop", True), ("as_scored", False)])
def test_filter_and_punishment_of_overlong_responses_meet(recipe: Make, truncated: str, told: bool) -> None:
    """Masking or dropping truncated responses takes away what soft punishment would act on."""
    assert (same_responses(recipe(SOFT, {"length.truncated": truncated})) is not None) == told
    assert same_responses(recipe({"length.truncated": truncated})) is None


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ({"ratio": "seq_geo"}, True),
        ({"ratio": "seq_geo_token"}, True),
        ({"ratio": "seq_geo", "clip": {"kind": "ppo_min", "low": 3e-4, "high": 4e-4}}, False),
        ({"ratio": "seq_geo", "clip": "none"}, False),
        ({"ratio": "seq_geo", "clip": "dppo_tv"}, False),  # its bounds are no bounds of the ratio
        ({"ratio": "seq_geo", **PAIR}, False),
        ({"ratio": "token"}, False),
    ],
)
def test_bounds_that_a_mean_over_a_response_never_reaches(recipe: Make, patch: Patch, told: bool) -> None:
    """The usual 0.2 around a sequence's mean ratio is told with the number of updates; GSPO's own bounds are not."""
    reason = never_clips(recipe(patch, {"schedule.epochs": 4}))
    assert (reason is not None) == told
    assert reason is None or "4 updates per rollout batch, staleness 0" in reason


@pytest.mark.parametrize("ratio", ["none", "token", "seq_geo", "seq_geo_token", "seq_product", "geo_clipped"])
@pytest.mark.parametrize(
    "aggregation", ["seq_mean", "seq_meansum", "token_group", "token_batch", "token_micro", "const", "seq_sum"]
)
def test_a_ratio_of_responses_counted_by_tokens(recipe: Make, ratio: str, aggregation: str) -> None:
    """T-A5: what has one value a response belongs into a mean over responses."""
    level = GMPO if ratio == "geo_clipped" else {"ratio": ratio}
    told = ratio not in ("none", "token") and not aggregation.startswith("seq_mean")
    assert (length_weighted(recipe(level, {"aggregation": aggregation})) is not None) == told
    if ratio != "geo_clipped":
        assert length_weighted(recipe(PAIR, level, {"aggregation": aggregation})) is None


def test_a_response_that_vespo_weighs_has_the_gradient_of_its_tokens(recipe: Make) -> None:
    """The sum over tokens of phi A log pi is that of the response: a mean over tokens is no second count."""
    assert length_weighted(recipe({"ratio": "seq_product", "aggregation": "token_batch"})) is not None
    assert length_weighted(recipe({"ratio": "seq_product", "aggregation": "token_batch", "clip": "vespo"})) is None


@pytest.mark.parametrize("patch", [{}, {"schedule.minibatches": 2}, {"schedule.staleness": 1}])
def test_the_penalty_of_kl_cov_at_a_ratio_of_one_is_rounding(recipe: Make, patch: Patch) -> None:
    """|log r| has the slope -1 or 1 wherever rounding puts r."""
    found = [text for text in limits(recipe({"clip": "kl_cov"}, patch)) if "kl_cov" in text]
    assert bool(found) == (not patch)
    assert not any("rounding" in text for text in limits(recipe(patch)))


@pytest.mark.parametrize(
    ("base", "patch", "said"),
    [
        ({}, {"kl": "loss"}, ["reference model"]),
        ({"kl": "loss"}, {"kl": "loss_isw", "kl.beta": 0.1}, []),
        ({"kl": "loss"}, {"kl": "off"}, []),
        ({}, PAIR, ["reference model"]),
        ({"schedule.minibatches": 2}, {"correction": "token_truncate"}, ["old log-probabilities"]),
        ({}, {"correction": "token_truncate"}, []),  # the only update of a step computes them anyway
        ({"correction": "seq_mask"}, {"schedule.epochs": 2}, ["old log-probabilities"]),
        ({"schedule.minibatches": 2, "correction": "token_mask"}, {"correction": "token_truncate"}, []),
        ({}, {"token_weight": "router_shift"}, ["old log-probabilities"]),
        ({"correction": "token_mask"}, {"token_weight": "router_shift"}, ["old log-probabilities"]),
        ({"schedule.epochs": 2, "correction": "token_mask"}, {"token_weight": "router_shift"}, []),
        ({}, CRITIC, ["critic"]),
        ({}, {"schedule.update": "lopti"}, ["twice the updates"]),
        ({}, {"schedule.update": {"kind": "lopti", "eta": 0.0}}, []),
        ({}, {**CRITIC, "kl": {"kind": "reward", "beta": 0.1}}, ["reference model", "critic"]),
        ({}, {"clip.high": 0.28}, []),
        ({}, {"clip": "dppo_tv"}, []),
        ({}, {"clip": "kl_cov"}, ["before each update"]),
        ({"clip": "clip_cov"}, {"clip": "bapo"}, []),
        ({}, {"clip": "bapo", "correction": "token_truncate"}, ["old log-probabilities", "before each update"]),
        ({"schedule.minibatches": 2}, {"correction": "off_policy_mask"}, []),  # the sampler's are the old ones
        ({"schedule.minibatches": 2}, {"correction": "chain"}, ["old log-probabilities"]),
    ],
)
def test_passes_and_networks_that_a_change_adds(recipe: Make, base: Patch, patch: Patch, said: list[str]) -> None:
    """A reference, a pass for old log-probabilities, a critic and a second update are told where they are new."""
    found = list(added_cost(recipe(base), recipe(base, patch)))
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))


@pytest.mark.parametrize(("p", "size", "kept"), [(0.1, 8, 0.570), (0.1, 16, 0.815), (0.5, 8, 0.992)])
def test_groups_with_spread(p: float, size: int, kept: float) -> None:
    """T-F2: 1 - p^G - (1-p)^G."""
    assert kept_groups(p, size) == pytest.approx(kept, abs=5e-4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(2, 64))
def test_oversampling_is_at_least_one_and_harmonic(rates: list[float], size: int) -> None:
    """Groups are sampled in proportion to the mean chance of being kept, not to the mean of its inverse."""
    kept = [kept_groups(p, size) for p in rates]
    factor = oversampling(rates, size)
    assert factor >= 1
    if sum(kept) > 0:
        assert factor * sum(kept) == pytest.approx(len(kept))


def test_refill_is_priced_at_usual_and_at_declared_pass_rates(recipe: Make) -> None:
    """Without knowledge three rates are priced; a declared mixture gives one number."""
    refill = recipe({"filter": "refill"})
    usual = str(refill_cost(refill))
    assert "1.8, 1.0 and 1.8 groups of 8 for one that it keeps (in whole rounds of 16)" in usual
    assert "budget.pass_rates" in usual
    declared = str(refill_cost(refill, (0.0, 0.5)))
    assert "samples 2.0 groups of 8" in declared
    assert "budget.pass_rates" not in declared
    assert "whole rounds" not in str(refill_cost(recipe({"filter": "refill_async"})))
    assert refill_cost(recipe({"filter": "drop"})) is None
    assert refill_cost(recipe()) is None


def test_refill_that_its_limit_ends_early_is_told(recipe: Make) -> None:
    """More rounds than allowed on average, or groups that never have spread, leave steps short."""
    two = recipe({"filter": {"kind": "refill", "max_generation_batches": 2}})
    assert "ends that early" not in str(refill_cost(two))
    assert "max_generation_batches (2) ends that early" in str(refill_cost(two, (0.01,)))
    one = recipe({"filter": {"kind": "refill", "max_generation_batches": 1}})
    assert "ends that early at 0.1, 0.5 and 0.9" in str(refill_cost(one))
    assert oversampling((0.0, 1.0), 8) == inf
    assert "endlessly many" in str(refill_cost(two, (0.0, 1.0)))


def test_shaped_rewards_have_spread_more_often(recipe: Make) -> None:
    """The estimate is a bound where a filter asks for spread of rewards that more than correctness moves."""
    spread = {"filter": {"kind": "refill", "metric": "reward_std"}}
    assert "at most" not in str(refill_cost(recipe(spread)))
    assert "at most" in str(refill_cost(recipe(spread, SOFT)))
    assert "at most" not in str(refill_cost(recipe({"filter": "refill"}, SOFT)))
