"""`paribus import-config verl` beside verl's own configuration: its defaults, and each level as verl composes it."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe, difference
from paribus_runners.import_config.hydra import options_of_file
from paribus_runners.import_config.verl import DEFAULTS, translate
from with_verl.recipes import levels, of_level
from with_verl.resolved import arguments_of, capabilities, composed, flat

LEVELS = list(levels())
SAME_OPTIONS = {"ratio: seq_geo_token": "ratio"}
"""Levels that verl's options do not distinguish from another."""


def test_the_defaults_are_those_of_ppo_trainer():
    """Each value that stands in for an option that is not given is verl's own; what is composed has no other name."""
    plain = flat(composed([]))
    assert {name: plain[name] for name in DEFAULTS} == dict(DEFAULTS)


@pytest.mark.parametrize(("place", "level"), LEVELS, ids=[f"{p}-{n}" for p, n in LEVELS])
def test_a_configuration_that_verl_composed_is_read_as_the_recipe(place, level):
    """The file that Hydra keeps of a training, of some 900 options, gives the recipe that asked for it."""
    asked = of_level(place, level)
    content: Any = OmegaConf.to_container(composed(arguments_of(asked)))  # references stay, as in .hydra/config.yaml
    found = translate(options_of_file(content, "config.yaml"), capabilities())
    done = apply(load_preset("grpo").recipe.model_dump(mode="json"), found.recipe)
    assert not done.faults
    changed = set(difference(asked, Recipe.model_validate(done.values)))
    other = SAME_OPTIONS.get(f"{place}: {level}", "-")
    assert not {p for p in changed if not p.startswith(("task", "reward", other))}
    assert len(found.lost) < 50  # of some 900 options
