"""Every pair of levels: an update of the objective has a finite gradient, or the recipe is refused with a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from paribus.recipe.analysis.facts import weighs_sampler
from paribus.recipe.patch import apply
from paribus.recipe.recipe import FACTORS, Recipe
from paribus.recipe.shape import Choice, Leaf, Named, Shape, recipe_shape
from paribus_runners.native.experience import Before

Level = tuple[str, str]
START = {"schedule.max_new_tokens": 8, "auxiliary.value": None}
NEEDS: Mapping[Level, Mapping[str, Any]] = {
    ("clip", "log_clip"): {"ratio": "geo_clipped"},
    ("ratio", "geo_clipped"): {"clip": "log_clip"},
    ("baseline", "critic_gae"): {"auxiliary.value": {"pretrain_steps": 0}, "scale": "none"},
    ("baseline.policy_lambda", "length_adaptive"): {
        "baseline": "critic_gae",
        "auxiliary.value": {"pretrain_steps": 0},
        "scale": "none",
    },
    ("baseline", "history"): {"scale": "history_smooth"},
    ("scale", "history_smooth"): {"baseline": "history"},
    ("scale", "pass_at_k_std"): {"baseline": {"kind": "pass_at_k", "control": "mean", "k": 2}},
    ("loss", "opmd"): {"ratio": "none", "clip": "none"},
    ("loss", "pair_dpo"): {"baseline": "none", "scale": "none"},
    ("kl.reference", "model"): {"kl": "loss"},
    ("kl.reference", "synced"): {"kl": "loss"},
    ("correction.mask", "geo_mask"): {"correction": "chain"},
    ("correction.weight", "token_mask"): {"correction": "chain"},
    ("correction.weight", "seq_truncate"): {"correction": "chain"},
}
"""What a level needs beside it, where the other level of a pair does not say otherwise."""
WHOLE: Mapping[Level, Any] = {
    ("kl", "reward"): {"kind": "reward", "beta": 0.1},
    ("kl", "loss_isw"): {"kind": "loss_isw", "beta": 0.1},
    ("kl.reference", "model"): {"kind": "model", "name": "tiny_moe"},
    ("length.rule", "soft_overlong"): {"kind": "soft_overlong", "soft_start": 4, "hard_cap": 8},
    ("schedule.temperature_change", "linear"): {"kind": "linear", "to": 0.5},
    ("schedule.temperature_change", "stages"): {"kind": "stages", "begins": (2,), "temperatures": (0.5,)},
    ("clip", "clip_cov"): {"kind": "clip_cov", "fraction": 0.1, "cov_low": 0.0},
    ("clip", "kl_cov"): {"kind": "kl_cov", "fraction": 0.1},
    ("correction", "off_policy_mask"): {"kind": "off_policy_mask", "delta": 0.05},
}
"""Levels with a parameter that has no default, or whose default does nothing to a batch of this size."""


def _levels(shape: Shape, path: str) -> Iterator[Level]:
    """Yield every level below a shape but for the defaults."""
    if isinstance(shape, Leaf | Named):
        return
    if isinstance(shape, Choice):
        yield from ((path, kind) for kind in shape.levels if kind != shape.default)
    for record in shape.levels.values() if isinstance(shape, Choice) else [shape]:
        for name, inner in record.fields.items():
            yield from _levels(inner, f"{path}.{name}")


LEVELS = sorted({x for name in ("loss", *FACTORS) for x in _levels(recipe_shape().fields[name], name)})


def _recipe(*levels: Level) -> Recipe | str:
    """Return the recipe with these levels, or why there is none."""
    patch: dict[str, Any] = {**START}
    for level in levels:
        patch |= NEEDS.get(level, {})
    patch |= {level[0]: WHOLE.get(level, level[1]) for level in sorted(levels)}
    values: Any = Recipe().model_dump()
    for path in sorted(patch, key=lambda path: path.count(".")):  # a choice before what is inside of it
        patched = apply(values, {path: patch[path]})
        if patched.faults:
            return "; ".join(fault.message for fault in patched.faults)
        values = patched.values
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        return "; ".join(e["msg"] for e in error.errors())


def _trains(recipe: Recipe, made: Any, outcome: Any) -> None:
    rollouts = made(recipe, [[True, False, False, True], [False, True, False, False]])
    logp = rollouts.responses.logp
    near = logp + 0.3 * (rollouts.responses.entropy - 1.1)
    value = 0.1 * logp if recipe.baseline.kind == "critic_gae" else None
    before = Before(logp + 0.05 if weighs_sampler(recipe) else None, None, value)
    got = outcome(recipe, rollouts, near, before=before)
    assert bool(got.gradient.isfinite().all())
    assert got.gradient.abs().max() > 0


def test_there_are_levels() -> None:
    """The list is not empty by mistake, and what stands in the tables exists."""
    assert len(LEVELS) > 55
    assert set(NEEDS) | set(WHOLE) <= set(LEVELS)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level[0]}={level[1]}")
def test_each_pair_of_levels_trains_or_is_refused_with_a_sentence(level: Level, made: Any, outcome: Any) -> None:
    """No pair ends in a traceback, nan or silence; and each level trains with some other."""
    torch.manual_seed(0)
    trained = 0
    for other in LEVELS[LEVELS.index(level) :]:
        if other[0] == level[0] and other != level:
            continue
        recipe = _recipe(level, other)
        if isinstance(recipe, Recipe):
            _trains(recipe, made, outcome)
            trained += 1
        else:
            assert "`" in recipe or "schedule." in recipe
            assert len(recipe.split()) >= 5
    assert trained
