"""What a study says to the TRL runner, and the options of ``GRPOConfig`` that follow from a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.capabilities import Capabilities


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


# ---- how a rollout batch is cut into updates ---------------------------------------------------------


def parts_of(recipe: Recipe, microbatches: int) -> int:
    """Return in how many equal parts an update is split."""
    level = recipe.aggregation
    return level.microbatches if isinstance(level, f.TokenMicro) else microbatches


def computed(recipe: Recipe, microbatches: int) -> dict[str, Any]:
    """Return the options of ``GRPOConfig`` that code computes.

    Args:
        recipe: the recipe; :func:`size_faults` says whether it can be cut.
        microbatches: equal parts of an update, for memory.
    """
    schedule, parts = recipe.schedule, parts_of(recipe, microbatches)
    responses = schedule.prompts_per_step * schedule.group_size
    updates = schedule.updates_per_rollout
    return {
        "per_device_train_batch_size": max(1, responses // (schedule.minibatches * parts)),
        "steps_per_generation": schedule.minibatches * parts,
        "gradient_accumulation_steps": parts,
        "max_steps": schedule.steps * updates,
        "warmup_steps": recipe.optimizer.warmup_steps * updates,
        "bf16": recipe.model.dtype == "bfloat16",
    }


def size_faults(recipe: Recipe, microbatches: int) -> Iterator[tuple[str, Literal["approximate", "unsupported"], str]]:
    """Yield what of the sizes TRL cannot do, or does otherwise: place, level and reason."""
    schedule, parts = recipe.schedule, parts_of(recipe, microbatches)
    responses, count = schedule.prompts_per_step * schedule.group_size, schedule.minibatches * parts
    if schedule.group_size < 2:
        yield "schedule.group_size", "unsupported", "`schedule.group_size: 1`: GRPOTrainer needs 2 or more."
    if responses % count:
        yield (
            "schedule.minibatches",
            "unsupported",
            f"TRL cuts the {responses} responses of a rollout batch (`schedule.prompts_per_step` x `group_size`) into "
            f"{count} equal parts, `schedule.minibatches` x `runner.microbatches`: choose numbers that divide them.",
        )
    uneven = recipe.auxiliary.entropy != 0 or recipe.token_weight.kind == "top_entropy"
    if parts > 1 and uneven:
        reason = "`runner.microbatches`: TRL averages entropies, and chooses tokens by them, in each part by itself."
        yield "auxiliary.entropy", "approximate", reason
