"""Resolves recipes: applies patches to a preset in order; returns what is wrong with its place in the study file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paribus.recipe.analysis.unusual import untrainable
from paribus.recipe.patch import PatchFault, apply, read_patch
from paribus.recipe.presets import load_preset, preset_names, unknown_preset
from paribus.recipe.recipe import TINY_MODELS, Recipe
from paribus.yaml_file.document import Fault
from paribus.yaml_file.messages import explain, plain_location, split_errors


@dataclass(frozen=True, kw_only=True)
class Step:
    """One patch, and where it stands in the study file.

    Attributes:
        place: keys that lead to the patch.
        patch: as written.
        items: for a grid: path to the place of its value in the list of values; for a search to the end of its range.
    """

    place: tuple[str, ...]
    patch: Mapping[str, Any]
    items: Mapping[str, int | str] = field(default_factory=dict)

    def find(self, source: Sequence[str], *, at_key: bool = False) -> tuple[str | int, ...]:
        """Return where the keys ``source`` of the patch stand in the study file."""
        if source and source[0] in self.items and not (at_key and len(source) == 1):
            return (*self.place, source[0], self.items[source[0]], *source[1:])
        return (*self.place, *source)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe as a study describes it: the base with changes.

    Attributes:
        preset: the preset whose objective takes the place of the base's.
        steps: patches of the base, in order.
        place: where the variant stands in the study file.
    """

    preset: str | None = None
    steps: tuple[Step, ...] = ()
    place: tuple[str, ...] = ()


V = TypeVar("V", bound=Variant)


@dataclass(frozen=True, kw_only=True)
class Recipes(Generic[V]):
    """The recipes of a study, and what is wrong with them.

    Attributes:
        base: the base's recipe; ``None`` if it is wrong.
        alone: for each trick that is right, the base with it.
        variants: the variants that are right, with their recipes.
        faults: of all patches and presets.
    """

    base: Recipe | None = None
    alone: Mapping[str, Recipe] = field(default_factory=dict)
    variants: tuple[tuple[V, Recipe], ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Resolved:
    """The outcome of applying patches: a recipe, or faults; and the plain values for further patches."""

    recipe: Recipe | None
    values: Mapping[str, Any]
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class _Origin:
    """Where a value of the recipe was set."""

    path: tuple[str, ...]
    place: tuple[str | int, ...]


def resolve_recipes(
    preset: str,
    patch: Mapping[str, Any],
    tricks: Mapping[str, Mapping[str, Any]],
    variants: Iterable[V],
    presets: Iterable[tuple[tuple[str, ...], str]] = (),
) -> Recipes[V]:
    """Resolve the base, each trick alone and each variant; a fault of the base or of a trick is reported once.

    Args:
        preset: of the base.
        patch: of the base.
        tricks: patches by name.
        variants: made of tricks and own steps.
        presets: where the study names a preset besides, and which.
    """
    named = [(("base", "preset"), preset), *presets]
    unknown = {name: message for name in {name for _, name in named} if (message := unknown_preset(name))}
    faults = [Fault(place=place, message=unknown[name]) for place, name in named if name in unknown]
    own = Step(place=("base", "set"), patch=patch)
    steps = {name: Step(place=("tricks", name), patch=trick) for name, trick in tricks.items()}
    if preset in unknown:
        seen = (fault for step in (own, *steps.values()) for fault in _patch_faults(step, read_patch(step.patch)[1]))
        return Recipes(faults=(*faults, *seen))
    base = resolve_base(preset, patch)
    of_base = {fault.message for fault in base.faults}
    alone, broken = {}, set()
    for name, step in steps.items():
        resolved = resolve(base.values, (step,), step.place)
        new = [fault for fault in resolved.faults if fault.message not in of_base]
        faults += new
        if new:
            broken.add(step.place)
        elif resolved.recipe is not None:
            alone[name] = resolved.recipe
    found: list[tuple[V, Recipe]] = []
    for variant in variants if base.recipe is not None else ():
        if variant.preset in unknown or any(step.place in broken for step in variant.steps):
            continue
        resolved = _resolve_variant(base.values, variant)
        faults += resolved.faults
        if resolved.recipe is not None:
            found.append((variant, resolved.recipe))
    return Recipes(base=base.recipe, alone=alone, variants=tuple(found), faults=(*base.faults, *faults))


def resolve_base(preset: str, patch: Mapping[str, Any]) -> Resolved:
    """Return the base recipe: the defaults, the preset, the base's patch."""
    start = load_preset(preset).recipe.model_dump()
    start["optimizer"].pop("learning_rate")  # whether a study states it: see `_rate_fault`
    return resolve(start, (Step(place=("base", "set"), patch=patch),), ("base",))


def _resolve_variant(base: Mapping[str, Any], variant: Variant) -> Resolved:
    """Return the recipe of a variant of a base.

    A preset replaces the objective and leaves model, task, optimizer, and of the schedule all but the kind of update,
    so that arms stay comparable.
    """
    if variant.preset is None:
        return resolve(base, variant.steps, variant.place)
    patch = load_preset(variant.preset).set
    objective = {k: v for k, v in patch.items() if not k.startswith("schedule.") or k.startswith("schedule.update")}
    return resolve(apply(base, objective).values, variant.steps, variant.place)


def resolve(values: Mapping[str, Any], steps: Sequence[Step], place: tuple[str, ...]) -> Resolved:
    """Apply patches in order and check the result; ``place`` is blamed for what no single entry caused."""
    origins: list[_Origin] = []
    faults: list[Fault] = []
    for step in steps:
        patched = apply(values, step.patch)
        values = patched.values
        origins += [_Origin(s.path, step.find(s.source)) for s in patched.settings]
        faults += _patch_faults(step, patched.faults)
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        known = [e for e in split_errors(error) if not faults or e["type"] != "value_error"]  # else a consequence
        return Resolved(None, values, (*faults, *(_fault(e, values, origins, place) for e in known)))
    if not faults and recipe.model.name not in TINY_MODELS and "learning_rate" not in values["optimizer"]:
        faults.append(_rate_fault(recipe.model.name, origins, place))
    if not faults and (message := untrainable(recipe)):
        blamed = _blamed(("schedule", "group_size"), message, origins)
        faults.append(Fault(place=place if blamed is None else blamed.place, message=message))
    return Resolved(None if faults else recipe, values, tuple(faults))


def _rate_fault(model: str, origins: Sequence[_Origin], place: tuple[str, ...]) -> Fault:
    presets = [load_preset(name) for name in preset_names()]
    known = {p.name: p.defaults["learning_rate"] for p in presets if "learning_rate" in p.defaults and not p.alias_of}
    published = "; ".join(f"{name} {rate}" for name, rate in known.items())
    message = (
        f"`optimizer.learning_rate` is missing: its default belongs to the tiny models and destroys any other, such as "
        f"`{model}`. Write e.g. `optimizer.learning_rate: 1.0e-6`. Published: {published}"
    )
    blamed = _blamed(("model", "name"), "", origins)
    return Fault(place=place if blamed is None else blamed.place, message=message)


def _patch_faults(step: Step, faults: Iterable[PatchFault]) -> list[Fault]:
    return [Fault(place=step.find(f.source, at_key=f.at_key), message=f.message, at_key=f.at_key) for f in faults]


def _fault(error: ErrorDetails, values: Mapping[str, Any], origins: Sequence[_Origin], place: tuple[str, ...]) -> Fault:
    path = plain_location(error, values)
    message = explain(error)
    if error["type"] == "missing":
        message = f"needs `{path[-1]}`"
    blamed = _blamed(path, message, origins)
    if blamed is None:
        return Fault(place=place, message=message)
    dotted = ".".join(map(str, path))
    if path[: len(blamed.path)] != blamed.path and error["type"] != "missing" and dotted not in message:
        message = f"{dotted}: {message}"
    return Fault(place=blamed.place, message=message)


def _blamed(path: tuple[str | int, ...], message: str, origins: Iterable[_Origin]) -> _Origin | None:
    """Return the last entry that set the value at ``path``, or the value nearest to it, or one that is mentioned."""
    mentioned = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+|(?<=`)[a-z_]+", message))

    def nearness(origin: _Origin) -> tuple[int, bool]:
        common = 0
        for a, b in zip(origin.path, path, strict=False):
            if a != b:
                break
            common += 1
        named = {".".join(origin.path[:k]) for k in range(1, len(origin.path) + 1)} & mentioned
        return common, bool(named)

    ranked = [(nearness(origin), k, origin) for k, origin in enumerate(origins)]
    best = max(ranked, key=lambda item: item[:2], default=None)
    if best is None or (best[0] == (0, False) and path):
        return None
    return best[2]
