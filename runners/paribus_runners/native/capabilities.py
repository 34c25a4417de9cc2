"""What the native runner cannot train: it knows all levels of all factors, but not every model fits every task."""

from __future__ import annotations

from paribus.recipe.recipe import Recipe
from paribus_runners.native.tiny.spec import MODELS


def missing(recipe: Recipe) -> tuple[str, ...]:
    """Return what of the recipe cannot be trained, one sentence each."""
    found = []
    model = recipe.model.name
    if model in MODELS and recipe.task.kind == "jsonl":
        found.append(
            f"`model.name: {model}` reads only the symbols of the generated tasks: name another model for `jsonl`."
        )
    if model in MODELS and MODELS[model].mixture is None and recipe.token_weight.kind == "router_shift":
        found.append(
            f"`token_weight: router_shift` needs a mixture of experts; `model.name: {model}` is dense: set `tiny_moe`."
        )
    return tuple(found)
