"""What a study says to the verl runner, and the options of verl that follow from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from paribus.recipe.recipe import Recipe
from paribus_runners.capabilities import Capabilities
from paribus_runners.verl.overrides import overrides
from paribus_runners.verl.sizes import computed


class VerlOptions(BaseModel):
    """What a study writes beside ``kind: verl``; the section ``verl:`` passes options on, by their dotted names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    deterministic: bool = Field(
        default=False, description="equal runs give equal numbers, with verl's older trainer; not with `filter: refill`"
    )
    environment: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="folder of a virtual environment with verl, in place of the one that is installed"
    )


def options_of(
    capabilities: Capabilities, recipe: Recipe, passed: Mapping[str, Any], own: VerlOptions
) -> dict[str, Any]:
    """Return all options of verl that a recipe decides, by their dotted names; others are at verl's defaults.

    What differs from run to run with one recipe is not among them: seeds, folders, files, GPUs and evaluations.
    """
    found = {**capabilities.native(recipe, passed), **computed(recipe, deterministic=own.deterministic)}
    return dict(sorted(found.items()))


def arguments(
    capabilities: Capabilities,
    recipe: Recipe,
    passed: Mapping[str, Any],
    own: VerlOptions,
    *,
    seed: int,
    gpus: int,
    more: Mapping[str, Any],
) -> list[str]:
    """Return the overrides of one run, as arguments of ``python -m verl.trainer.main_ppo``.

    Args:
        capabilities: what the version of verl can do.
        recipe: the recipe.
        passed: what the study passes on.
        own: the options of the runner.
        seed: every seed that verl has gets it.
        gpus: GPUs of the run, on one machine.
        more: files and folders by dotted name.

    Raises:
        ParibusError: a value can't be written as an override.
    """
    seeds = dict.fromkeys(capabilities.options.seeds, seed)
    options = options_of(capabilities, recipe, passed, own)
    return overrides({**options, **seeds, "trainer.n_gpus_per_node": gpus, **more}, capabilities.options.added)
