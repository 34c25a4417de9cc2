"""What a study says to the verl runner, and the options of verl that follow from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from paribus.recipe.recipe import Recipe
from paribus_runners.capabilities import Capabilities
from paribus_runners.verl.sizes import computed


class VerlOptions(BaseModel):
    """What a study writes beside ``kind: verl``; the section ``verl:`` passes options on, by their dotted names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    untested: bool = Field(
        default=False, description="run although no training with verl has been tried: see docs/howto/verl.md"
    )
    deterministic: bool = Field(
        default=False, description="equal runs give equal numbers, with verl's older trainer; not with `filter: refill`"
    )
    patience: Annotated[float, Field(gt=0, strict=False)] = Field(
        default=3600.0, description="seconds without a new step after which the run fails"
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


def seeds(capabilities: Capabilities, seed: int) -> dict[str, int]:
    """Return every seed that verl has."""
    return dict.fromkeys(capabilities.options.seeds, seed)
