"""Patches: levels, parameters, short forms, mistakes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe

RAW = Recipe().model_dump()


def changed(patch: dict[str, Any], raw: dict[str, Any] = RAW) -> dict[str, Any]:
    """Return what a right patch changes at the top of the values."""
    patched = apply(raw, patch)
    assert patched.faults == ()
    return {name: value for name, value in patched.values.items() if value != raw[name]}


@pytest.mark.parametrize(
    "patch",
    [
        {"clip.high": 0.28, "clip.low": 0.1},
        {"clip": {"high": 0.28, "low": 0.1}},
        {"clip": {"low": 0.1}, "clip.high": 0.28},
        {"clip": {"kind": "ppo_min", "high": 0.28, "low": 0.1}},
        {"clip.kind": "ppo_min", "clip.high": 0.28, "clip.low": 0.1},
        {"clip.high": 0.28, "clip.low": 0.1, "clip": "ppo_min"},
    ],
)
def test_dotted_and_nested_patches_mean_the_same(patch: dict[str, Any]) -> None:
    """The way in which a path is written, and the order of keys, have no meaning."""
    assert changed(patch) == {"clip": {"kind": "ppo_min", "low": 0.1, "high": 0.28}}


def test_a_level_replaces_the_current_one_with_its_own_defaults() -> None:
    """Naming a level, by text or by kind, forgets the parameters of the level before."""
    raw = apply(RAW, {"clip.high": 0.28}).values
    assert changed({"clip": {"kind": "ppo_dual", "c": 2.0}}, raw) == {"clip": {"kind": "ppo_dual", "c": 2.0}}
    assert Recipe.model_validate(apply(raw, {"clip": "ppo_min"}).values).clip.high == 0.2


def test_functions_that_are_the_whole_reward_replace_those_before() -> None:
    """``kind: function`` forgets the functions of the base, as a level does; a name without it stands beside them."""
    base = apply(RAW, {"reward": {"kind": "function", "path": "mine.first"}}).values
    second = {"path": "mine.second"}
    for patch, want in (
        ({"reward": {"kind": "function", **second}}, {"second"}),
        ({"reward": {"kind": "function", "functions": {"b": second}}}, {"b"}),
        ({"reward": {"kind": "function", **second}, "reward.functions.c": "mine.third"}, {"second", "c"}),
        ({"reward.functions": {"b": second}}, {"first", "b"}),
    ):
        patched = apply(base, patch)
        assert patched.faults == ()
        assert patched.values["reward"]["functions"].keys() == want
        assert base["reward"]["functions"] == {"first": {"path": "mine.first"}}


def test_a_path_changes_the_current_level_alone() -> None:
    """Without a kind the other parameters of the level stay."""
    raw = apply(RAW, {"clip": {"kind": "ppo_dual", "low": 0.1, "c": 2.0}}).values
    assert apply(raw, {"clip.high": 0.3}).values["clip"] == {"kind": "ppo_dual", "low": 0.1, "c": 2.0, "high": 0.3}


def test_short_forms() -> None:
    """A bare text is the model's name or a level; null switches an optional part off."""
    assert changed({"model": "some/model"}) == {"model": {**RAW["model"], "name": "some/model"}}
    assert changed({"task": "chain"}) == {"task": {"kind": "chain"}}
    on = apply(RAW, {"auxiliary.value.clip": 0.5}).values
    assert on["auxiliary"]["value"] == {"clip": 0.5}
    assert apply(on, {"auxiliary": {"value": None}}).values == RAW


def test_levels_inside_levels() -> None:
    """A parameter that is itself a choice is reached through its level, and has its default where none is named."""
    baseline = changed({"baseline": {"kind": "critic_gae", "policy_lambda.value": 0.9}})["baseline"]
    assert baseline == {"kind": "critic_gae", "policy_lambda": {"kind": "fixed", "value": 0.9}}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"clip.hihg": 1.0}, "no level of `clip` has a parameter `hihg`. Did you mean `high`?"),
        ({"clop.high": 1.0}, "a recipe has no part `clop`. Did you mean `clip.high`?"),
        ({"clip": "ppomin"}, "`clip` has no level `ppomin`. Did you mean `ppo_min`? Allowed: `none`, `ppo_min`"),
        ({"clip": {"kind": "ppomin", "high": 1.0}}, "`clip` has no level `ppomin`"),
        ({"clip.c": 3.0}, "the level `ppo_min` of `clip` has no parameter `c` (its parameters are `low`, `high`). "
                          "Levels that have it: `ppo_dual`."),
        ({"kl.beta": 0.1}, "the level `off` of `kl` has no parameter `beta` (it has none). Levels that have it: "
                           "`reward`, `advantage`, `loss`, `loss_isw`."),
        ({"kl": False}, "`kl` expects the name of a level. Allowed: `off`, `reward`, `advantage`, `loss`, `loss_isw`. "
                         "Write `off`."),
        ({"clip.high": 1.0, "clip": {"high": 2.0}}, "sets the same value as `clip.high`: keep one"),
        ({"schedule": "fast"}, "expects a mapping with some of: `steps`"),
        ({"schedule.steps.x": 1}, "`schedule.steps` is a single value and has no part `x`"),
        ({"schedule.stps": 1}, "Did you mean `steps`?"),
        ({"clip.kind": {"a": 1}}, "expects the name of a level, and this is a mapping"),
    ],
)  # fmt: skip
def test_mistakes_are_returned_with_what_is_allowed(patch: dict[str, Any], message: str) -> None:
    """A wrong patch changes nothing that is wrong and says what would be right."""
    faults = apply(RAW, patch).faults
    assert [f.message for f in faults if message in f.message], faults


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 50)
    | st.floats(allow_nan=False)
    | st.sampled_from(["off", "none", "x"]),
    lambda inner: st.dictionaries(st.sampled_from(["kind", "high", "rule", "kind.x", "", "value"]), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.lists(
    st.sampled_from(["clip", "kind", "high", "length", "rule", "auxiliary", "value", "model", "name", "x", "", "kl"]),
    min_size=1, max_size=4,
).map(".".join)  # fmt: skip


def says_something(value: Any) -> bool:
    """Return whether a value of a patch holds any setting: mappings in mappings may be empty."""
    return any(map(says_something, value.values())) if isinstance(value, dict) else True


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@example({"length": {"rule": {}}})
@settings(deadline=None)
def test_any_patch_is_applied_or_returns_faults_and_leaves_its_input_alone(patch: dict[str, Any]) -> None:
    """Application is total and pure."""
    before = copy.deepcopy(RAW)
    patched = apply(RAW, patch)
    assert before == RAW
    assert len(patched.settings) + len(patched.faults) >= says_something(patch)


@pytest.mark.parametrize(
    ("patch", "train"),
    [
        ({"task": {"kind": "dataset", "train": "a", "heldout": "b"}}, {"path": "a"}),
        ({"task": {"kind": "dataset", "train": {"path": "a"}, "heldout": "b"}}, {"path": "a"}),
        ({"task": {"kind": "dataset", "heldout": "b"}, "task.train.path": "a"}, {"path": "a"}),
        ({"task": {"kind": "jsonl", "train": "a", "heldout": "b"}}, "a"),
        ({"task.kind": "jsonl", "task.train": "a", "task.heldout": "b"}, "a"),
    ],
)
def test_a_text_is_a_path_where_levels_differ_in_what_a_parameter_is(patch: dict[str, Any], train: object) -> None:
    """`train` is a text in one task and a mapping, whose short form is a text, in another."""
    patched = apply(Recipe().model_dump(), patch)
    assert patched.faults == ()
    task = Recipe.model_validate(patched.values).task.model_dump(exclude_none=True)
    assert task["train"] == train


def test_a_mapping_is_refused_where_the_level_has_a_text() -> None:
    """The message names the parameter."""
    (fault,) = apply(Recipe().model_dump(), {"task": {"kind": "jsonl", "train": {"path": "a"}}}).faults
    assert fault.message == "`task.train` is a single value here and has no part `path`"
