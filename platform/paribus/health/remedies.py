"""The remedies: what to try for each detector, and how well it is supported (``remedies.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paribus.health.finding import Remedy
from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe, flatten
from paribus.yaml_file.document import plain, read_document


@cache
def catalogue() -> Mapping[str, tuple[Remedy, ...]]:
    """Return detector to remedies, the best supported first."""
    raw: dict[str, list[dict[str, Any]]] = plain(read_document(Path(__file__).parent / "remedies.yaml").checked())
    return {d: tuple(sorted((Remedy(**r) for r in rs), key=lambda r: r.evidence)) for d, rs in raw.items()}


@cache
def remedies_of(detector: str, recipe: Recipe | None) -> tuple[Remedy, ...]:
    """Return what the catalogue lists for a detector, fitted to a recipe."""
    return fitted(catalogue().get(detector, ()), recipe)


def fitted(remedies: Sequence[Remedy], recipe: Recipe | None) -> tuple[Remedy, ...]:
    """Return remedies with patches for this recipe, without those that it already has; without a recipe, all."""
    if recipe is None:
        return tuple(remedies)
    return tuple(r for remedy in remedies if (r := _fitted(remedy, recipe)) is not None)


def patched(recipe: Recipe, patch: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe with a patch applied; ``None`` if the patch does not fit."""
    found = apply(recipe.model_dump(), patch)
    if found.faults:
        return None
    try:
        return Recipe.model_validate(found.values)
    except ValidationError:
        return None


def _fitted(remedy: Remedy, recipe: Recipe) -> Remedy | None:
    """Return the remedy with its patch for this recipe, if one fits; ``None`` if the patch changes nothing."""
    if not remedy.patch and not remedy.multiply:
        return remedy
    values = flatten(recipe.model_dump(mode="json"))
    patch = dict(remedy.patch)
    for path, factor in remedy.multiply.items():
        if isinstance(values.get(path), int | float):
            value = values[path] * factor
            patch[path] = round(value) if isinstance(values[path], int) else float(f"{value:.3g}")
    after = patched(recipe, patch)
    if after is None or not patch:
        return replace(remedy, patch={}, multiply={})
    return None if after == recipe else replace(remedy, patch=patch, multiply={})
