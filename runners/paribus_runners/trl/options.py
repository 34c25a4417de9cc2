"""What a study says to the TRL runner, and the options of ``GRPOConfig`` that follow from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from paribus.recipe.recipe import Recipe
from paribus_runners.capabilities import Capabilities
from paribus_runners.trl.sizes import computed


class TrlOptions(BaseModel):
    """What a study writes beside ``kind: trl``; the section ``trl:`` passes options on to ``GRPOConfig``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    microbatches: Annotated[int, Field(ge=1)] = Field(
        default=1, description="equal parts of an update, for memory: TRL's gradient_accumulation_steps"
    )
    patience: Annotated[float, Field(gt=0, strict=False)] = Field(
        default=1800.0, description="seconds without a new step after which the run fails"
    )
    environment: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="folder of a virtual environment with TRL, in place of the one that is installed"
    )


def options_of(
    capabilities: Capabilities, recipe: Recipe, passed: Mapping[str, Any], own: TrlOptions
) -> dict[str, Any]:
    """Return all options of ``GRPOConfig`` that a run sets, but seeds and folder; others are at TRL's defaults."""
    found = {**capabilities.native(recipe, passed), **computed(recipe, own.microbatches)}
    return dict(sorted(found.items()))
