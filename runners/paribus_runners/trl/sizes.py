"""The options of TRL that follow from several values of a recipe: how a rollout batch is cut into updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe


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
