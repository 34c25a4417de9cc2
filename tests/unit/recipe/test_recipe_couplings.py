"""Couplings of factors: combinations that have no meaning."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from paribus.recipe.recipe import Recipe

Patch = dict[str, Any]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"baseline": {"kind": "critic_gae"}, "scale": {"kind": "none"}}, "`auxiliary.value` go together"),
        ({"auxiliary": {"value": {}}}, "`baseline: critic_gae` and `auxiliary.value` go together"),
        ({"baseline": {"kind": "critic_gae"}, "auxiliary": {"value": {}}}, "scale must be none or batch_whiten"),
        ({"clip": {"kind": "log_clip"}}, "`clip: log_clip` and `ratio: geo_clipped` go together"),
        ({"ratio": {"kind": "geo_clipped"}}, "`clip: log_clip` and `ratio: geo_clipped` go together"),
        ({"baseline": {"kind": "history"}}, "`scale: history_smooth` and `baseline: history` go together"),
        ({"scale": {"kind": "history_smooth"}}, "`scale: history_smooth` and `baseline: history` go together"),
        ({"kl": {"kind": "loss", "estimator": "k1"}}, "gradient zero in expectation"),
        ({"kl": {"kind": "reward", "beta": 0.1, "unit": "token"}}, "gives each token its return"),
        ({"schedule": {"group_size": 1}, "filter": {"kind": "drop"}}, "`filter: drop` compares responses of a group"),
        ({"schedule": {"group_size": 1}, "filter": {"kind": "refill"}}, "`filter: refill` compares"),
        ({"schedule": {"group_size": 1}, "filter": {"kind": "refill_async"}}, "`filter: refill_async` compares"),
        ({"schedule": {"group_size": 1}, "baseline": {"kind": "group_loo"}}, "`baseline: group_loo` needs other"),
        ({"schedule": {"group_size": 1}, "loss": {"kind": "pair_dpo"}, "baseline": {"kind": "none"}},
         "`loss: pair_dpo` compares responses of a group"),
        ({"loss": {"kind": "pair_dpo"}}, "`loss: pair_dpo` knows no baseline: switch off"),
        ({"loss": {"kind": "pair_dpo"}, "baseline": {"kind": "none"}, "kl": {"kind": "loss"},
          "correction": {"kind": "token_mask"}, "token_weight": {"kind": "top_entropy"},
          "schedule": {"update": {"kind": "lopti"}}, "auxiliary": {"entropy": 0.1}},
         "knows no kl, correction, token_weight, schedule.update, auxiliary"),
        ({"reward": {"functions": {"a": {"path": "m.a", "unit": "step"}}}}, "`reward.functions.a.unit: step` needs"),
        ({"baseline": {"kind": "group_steps"}, "scale": {"kind": "batch_whiten"}}, "normalises over the steps"),
        ({"baseline": {"kind": "group_steps"}, "reward": {"weights": {"correct": 0.0}}}, "has nothing to read"),
        ({"baseline": {"kind": "group_steps"}, "loss": {"kind": "opmd"}, "ratio": {"kind": "none"},
          "clip": {"kind": "none"}}, "has advantages of tokens"),
        ({"baseline": {"kind": "pass_at_k", "k": 9}}, "sets of 9 responses out of a group of 8"),
        ({"baseline": {"kind": "pass_at_k", "k": 8, "control": "mean"}}, "compares several sets of 8 responses"),
        ({"baseline": {"kind": "pass_at_k", "k": 8}, "scale": {"kind": "pass_at_k_std"}}, "needs several sets of 8"),
        ({"baseline": {"kind": "pass_at_k", "k": 1}}, "`baseline.k` must be 2 or more"),
        ({"scale": {"kind": "pass_at_k_std"}}, "`scale: pass_at_k_std` divides by what `baseline: pass_at_k`"),
        ({"baseline": {"kind": "pass_at_k"}, "length": {"truncated": "drop"}}, "needs whole groups"),
        ({"length": {"keep": {"kind": "shortest", "count": 9}}}, "keeps 9 of 8 responses"),
        ({"length": {"keep": {"kind": "efficient", "count": 3}}, "baseline": {"kind": "pass_at_k"}},
         "sets of 4 responses out of a group of 3"),
        ({"loss": {"kind": "opmd"}}, "no ratio (set `ratio: none`), no clip (set `clip: none`)"),
        ({"loss": {"kind": "opmd"}, "ratio": {"kind": "none"}, "clip": {"kind": "none"},
          "correction": {"kind": "token_mask"}, "token_weight": {"kind": "top_entropy"},
          "schedule": {"update": {"kind": "lopti"}}},
         "no correction (set `correction: off`), no weights of tokens (set `token_weight: uniform`), no passes"),
        ({"token_weight": {"kind": "router_shift"}, "ratio": {"kind": "none"}}, "`token_weight.target: ratio` needs"),
        ({"length": {"rule": {"kind": "soft_overlong", "soft_start": 37, "hard_cap": 40}}}, "is never passed"),
        ({"reward": {"combine": "norm_then_sum"}, "scale": {"kind": "batch_whiten"}}, "needs two rewards"),
        ({"reward": {"combine": "norm_then_sum", "weights": {"format": 1.0}}}, "`scale: batch_whiten`"),
        ({"reward": {"combine": "norm_then_sum", "weights": {"format": 1.0}}, "scale": {"kind": "batch_whiten"},
          "kl": {"kind": "reward", "beta": 0.1}}, "no place for length rule and KL"),
    ],
)  # fmt: skip
def test_combinations_without_meaning_are_errors(patch: Patch, message: str) -> None:
    """Each coupling of factors is checked where the recipe is made, and says what belongs together."""
    with pytest.raises(ValidationError, match="validation error") as caught:
        Recipe.model_validate(patch)
    assert message in str(caught.value)
