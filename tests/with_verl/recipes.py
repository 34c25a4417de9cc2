"""A recipe for every level that the capability file supports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paribus.contract import Options
from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import resolve_base
from paribus_runners.verl import runner
from with_verl.resolved import model

PLAIN: Mapping[str, Any] = {
    "kl": "off",
    "task": "chain",
    "rollout.engine": "vllm",
    "model.name": model(),
    "optimizer.learning_rate": 1e-6,
}
WHITENED = {"kind": "batch_whiten", "unit": "token", "eps": 0.0}
CRITIC: Mapping[str, Any] = {"baseline": "critic_gae", "scale": WHITENED, "auxiliary.value": {"clip": 0.2}}
CHAIN = {"kind": "chain", "mask": "geo_mask"}
WEIGHTS = ("token_truncate", "token_mask", "seq_truncate")
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "length.rule: soft_overlong": {"length.rule": {"kind": "soft_overlong", "soft_start": 24, "hard_cap": 37}},
    "baseline: none": {"schedule.group_size": 1, "scale": "none"},
    "baseline: group_loo": {"scale": "none"},
    "baseline: group_length_weighted": {"scale": "none"},
    "baseline: batch_mean": {"scale": WHITENED},
    "baseline: critic_gae": CRITIC,
    "baseline.policy_lambda: fixed": CRITIC,
    "scale: batch_whiten": {"baseline": "batch_mean", "scale": WHITENED},
    "ratio: none": {"clip": "none"},
    "ratio: geo_clipped": {"clip": "log_clip"},
    "clip: log_clip": {"ratio": "geo_clipped"},
    "kl: loss": {"kl": {"kind": "loss", "estimator": "k3", "beta": 0.04}},
    "kl: reward": {"kl": {"kind": "reward", "beta": 0.04}},
    "kl.reference: fixed": {"kl": {"kind": "loss", "estimator": "k2", "beta": 0.04}},
    "correction: chain": {"correction": CHAIN},
    "correction.mask: geo_mask": {"correction": {"kind": "chain"}},
    **{f"correction.weight: {w}": {"correction": CHAIN} for w in WEIGHTS},
}
"""What else a recipe says where a level does not go with GRPO."""


def recipe(**patch: Any) -> Recipe:
    """Return a recipe of GRPO without KL, patched."""
    found = resolve_base("grpo", {**PLAIN, **patch})
    assert found.recipe is not None, found
    return found.recipe


def levels() -> Iterator[tuple[str, str]]:
    """Yield place and name of every level that the file doesn't call unsupported."""
    for place, known in runner.matrix().capabilities.levels.items():
        yield from ((place, level) for level, entry in known.items() if entry.level != "unsupported")


def of_level(place: str, level: str) -> Recipe:
    """Return a recipe with a level that verl trains."""
    found = recipe(**{place: level, **BESIDE.get(f"{place}: {level}", {})})
    refused = [s for s in runner.support(found, Options()) if s.level == "unsupported"]
    assert not refused, refused
    return found
