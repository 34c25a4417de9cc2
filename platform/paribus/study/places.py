"""Where a study file asks for what the recipe of an arm does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import Step
from paribus.study.load import LoadedStudy
from paribus.study.plan import Arm
from paribus.yaml_file.document import locate


def written_at(loaded: LoadedStudy, place: tuple[str | int, ...]) -> str:
    """Return ``file:line:column`` of what stands at a place of the study file; empty for a study without a file."""
    if loaded.root is None:
        return ""
    mark = locate(loaded.root, place)
    return ":".join([mark.file or loaded.file, *(str(x) for x in (mark.line, mark.column) if x)])


def asked_at(loaded: LoadedStudy, arm: Arm, feature: str) -> tuple[str | int, ...]:
    """Return the place of the entry that gives an arm a part of its recipe: a patch, or else the name of a preset.

    Args:
        loaded: the study.
        arm: an arm of it.
        feature: dotted path in the recipe, or in ``resources``; any other is an option of the runner.
    """
    path = tuple(feature.split("."))
    if path[0] not in Recipe.model_fields:
        return path if path[0] == "resources" else ("runner",)
    draft = next((row for row, recipe in loaded.rows if recipe is arm.recipe), None)
    own = draft.steps if draft is not None and arm.changes else ()
    for step in reversed(own):
        if source := _source(step.patch, path):
            made = loaded.path is not None and step.place[0] == "tricks" and step.place[1] in loaded.path.changes
            return ("path", "to") if made else step.find(source)
    if draft is not None and draft.preset is not None and any(key.split(".")[0] == path[0] for key in arm.changes):
        return (*draft.place, "preset")
    base = Step(place=("base", "set"), patch=loaded.spec.base.set)
    return base.find(source) if (source := _source(base.patch, path)) else ("base", "preset")


def _source(patch: Mapping[str, Any], path: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of a patch that lead to what sets a path, or a part of it; empty if none does."""
    for key, value in patch.items():
        parts = key.split(".")
        shared = min(len(parts), len(path))
        if parts[:shared] == [*path[:shared]]:
            return (key, *(_source(value, path[shared:]) if isinstance(value, Mapping) else ()))
    return ()
