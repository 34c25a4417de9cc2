"""The study of a run's remedies: any recipe can be written as a preset with a patch."""

from __future__ import annotations

import pytest

from paribus.health.remedies import catalogue, patched, remedies_of
from paribus.health.remedy_study import base_of
from paribus.recipe.presets import load_preset, preset_names
from paribus.study.resolve import resolve_base
from paribus.study.spec import Base


@pytest.mark.parametrize("name", preset_names())
def test_a_base_gives_its_recipe_back(name: str) -> None:
    """For each preset, and for each preset with each remedy of the catalogue that fits it."""
    recipe = load_preset(name).recipe
    assert load_preset(base_of(recipe)["preset"]).recipe == recipe
    assert "set" not in base_of(recipe)
    found = [r.patch for d in catalogue() for r in remedies_of(d, recipe) if r.patch]
    assert found
    for after in (patched(recipe, patch) for patch in found[::3]):
        assert after is not None
        assert resolve_base(Base.model_validate(base_of(after))).recipe == after
