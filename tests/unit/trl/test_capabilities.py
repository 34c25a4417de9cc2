"""Capability files: what they say of a recipe, and how one with mistakes is refused."""

import pytest

from paribus.errors import ParibusError, StudyFileError
from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import resolve_base
from paribus.recipe.shape import Choice, Leaf, paths, recipe_shape
from paribus_runners.capabilities import matrices, matrix_for, read_capabilities

SMALL = """\
trainer: toy
package: toy
options: {free: [speed], owned: {seed: "`seeds`"}}
always: {shuffle: false}
levels:
  clip:
    ppo_min: {set: {low: {of: clip.low, times: -1, plus: 1}, high: {of: clip.high, plus: 1}}}
    none: {level: unsupported, reason: it always clips, nearest: "`clip: ppo_min`"}
  scale:
    group_std: {limits: [{needs: {baseline.kind: [none]}, level: approximate, reason: only without a baseline}]}
values:
  clip: {}
"""


def recipe(**patch: object) -> Recipe:
    """Return a recipe of GRPO without KL."""
    found = resolve_base("grpo", {"kl": "off", "scale.eps": 1e-4, **patch}).recipe
    assert found is not None
    return found


def small(tmp_path, text=SMALL):
    """Return what a small file says."""
    file = tmp_path / "1.yaml"
    file.write_text(text)
    return read_capabilities(file)


def test_values_are_translated_and_levels_held_back(tmp_path):
    """A value is multiplied and added to; a limit that is broken gives its level and reason."""
    found = small(tmp_path)
    assert found.native(recipe(), {"speed": 2}) == {"shuffle": False, "low": 0.8, "high": 1.2, "speed": 2}
    said = {s.feature: s for s in found.support(recipe()) if s.feature in ("clip", "scale")}
    assert said["scale"].level == "approximate"
    assert "only without a baseline" in said["scale"].reason


def test_what_a_file_does_not_name_is_unsupported(tmp_path):
    """A value or level that nothing is known of is refused, never passed over."""
    found = small(tmp_path)
    reasons = {s.feature: s.reason for s in found.support(recipe(clip="is_cap_sg")) if s.level == "unsupported"}
    assert "`clip: is_cap_sg` is no level that toy is known to have" in reasons["clip"]
    assert "optimizer.learning_rate" in reasons


def test_the_nearest_level_is_named(tmp_path):
    """A refusal says what to write instead."""
    (found,) = (s for s in small(tmp_path).support(recipe(clip="none")) if s.feature == "clip")
    assert found.level == "unsupported"
    assert found.reason == "`clip: none`: it always clips. Nearest: `clip: ppo_min`."


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("  clip: {sets: {}}", "unknown key `sets`. Did you mean `set`?"),
        ("  clap: {}", "no recipe has `clap`. Did you mean `clip`?"),
        ("  clip: {reason: so}", "`reason` says why a level is not `exact`"),
        ("  clip: {level: inexact}", "`inexact` is not allowed."),
    ],
)
def test_a_file_with_mistakes_is_refused_by_line(tmp_path, entry, message):
    """Each mistake has its file and line."""
    with pytest.raises(StudyFileError) as caught:
        small(tmp_path, SMALL.replace("  clip: {}", entry))
    assert "1.yaml:12:" in str(caught.value)
    assert message in str(caught.value)


def test_a_file_holds_for_the_versions_that_its_name_begins():
    """1.16 holds for 1.16.3 and not for 1.161; nothing is guessed of a version without a file."""
    assert list(matrices("trl")) == ["1.16"]
    assert matrix_for("trl", "1.16.3").version == "1.16"
    with pytest.raises(ParibusError, match=r"trl 1\.161\.0 is not known here, only 1\.16"):
        matrix_for("trl", "1.161.0")


# what stands below levels that TRL lacks whole: one choice, and the values
BELOW = {"trl": ({"baseline.policy_lambda"}, "baseline."), "verl": (set(), ())}


@pytest.mark.parametrize(("trainer", "version"), [("trl", "1.16.0"), ("verl", "0.9.1")])
def test_a_file_knows_every_level_and_value_of_a_recipe(trainer, version):
    """A level or value that is added to recipes asks for an entry."""
    choices, values = BELOW[trainer]
    found = matrix_for(trainer, version).capabilities
    assert list(matrices(trainer)) == [version.rpartition(".")[0]]
    for path, shape in paths(recipe_shape()):
        place = ".".join(path)
        if isinstance(shape, Choice) and place not in {"task", *choices}:
            assert set(found.levels[place]) == set(shape.levels), place
        elif isinstance(shape, Leaf) and not place.startswith(values):
            above = {".".join(path[:k]) for k in range(1, len(path) + 1)}
            assert above & {*found.values, *found.levels}, place
