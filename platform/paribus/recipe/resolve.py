"""Resolves recipes: applies patches to a preset in order; returns what is wrong with its place in the study file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paribus.recipe.analysis.unusual import untrainable
from paribus.recipe.patch import PatchFault, apply
from paribus.recipe.presets import load_preset, preset_names, unknown_preset
from paribus.recipe.recipe import TINY_MODELS, Recipe
from paribus.recipe.trainer_names import parts_meant
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


UNKNOWN_PRESET = ""
"""In place of a preset that the study does not name rightly; the loader has reported it."""


@dataclass(frozen=True)
class _Doubt:
    """Parts of a recipe that are not what the study means, because an entry of the base is wrong.

    What depends on them is not reported: it may be right once the base is mended.

    Attributes:
        levels: parts whose level is in doubt: a parameter that the level lacks may be one of the level that is meant.
        values: parts of which anything is in doubt: a combination with them may be right.
    """

    levels: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()

    def of_patch(self, fault: PatchFault) -> bool:
        """Return whether a mistake in a patch may follow from the base."""
        return bool(fault.lacking) and fault.lacking[0] in self.levels

    def of_values(self, error: ErrorDetails) -> bool:
        """Return whether a wrong combination of values, or a gap, may follow from the base."""
        if error["type"] == "missing":  # what it belongs to may have been taken out with a wrong entry
            return str(error["loc"][0]) in self.values
        if error["type"] != "value_error":
            return False
        parts = re.findall(r"[a-z_]+(?=\.[a-z_])|(?<=`)[a-z_]+", explain(error))
        return not self.values.isdisjoint([*parts, *map(str, error["loc"][:1])])


_NO_DOUBT = _Doubt()
_ALL_IN_DOUBT = _Doubt(levels=frozenset(Recipe.model_fields), values=frozenset(Recipe.model_fields))


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
    needs: Mapping[str, Collection[str]] | None = None,
) -> Recipes[V]:
    """Resolve the base, each trick alone and each variant; a fault of the base or of a trick is reported once.

    Where the base is wrong, tricks and variants are checked on a stand-in: the base without its wrong entries.

    Args:
        preset: of the base, or :data:`UNKNOWN_PRESET`.
        patch: of the base.
        tricks: patches by name, each behind those that it needs.
        variants: made of tricks and own steps.
        presets: where the study names a preset besides, and which.
        needs: trick to all others with which it is checked; where one of them is not there or wrong, what only may be
            wrong with the trick is not reported.
    """
    named = [(("base", "preset"), preset), *presets]
    unknown = {name: message for name in {name for _, name in named} if (message := unknown_preset(name))}
    faults = [Fault(place=place, message=unknown[name]) for place, name in named if name in unknown]
    start = _start(Recipe() if preset in unknown else load_preset(preset).recipe)
    base, values, doubt = _base_or_stand_in(start, patch, _ALL_IN_DOUBT if preset in unknown else _NO_DOUBT)
    alone: dict[str, Recipe] = {}
    broken: set[tuple[str, ...]] = set()
    for name, trick in tricks.items():
        step, needed = Step(place=("tricks", name), patch=trick), (needs or {}).get(name, ())
        before = [Step(place=("tricks", other), patch=tricks[other]) for other in tricks if other in needed]
        certain = len(before) == len(needed) and broken.isdisjoint(other.place for other in before)
        steps = (*before, step) if certain else (step,)
        resolved = resolve(values, steps, step.place, doubt if certain else _ALL_IN_DOUBT)
        faults += resolved.faults
        if resolved.faults:
            broken.add(step.place)
        elif resolved.recipe is not None:
            alone[name] = resolved.recipe
    found: list[tuple[V, Recipe]] = []
    for variant in variants:
        right = tuple(step for step in variant.steps if step.place not in broken)
        if variant.preset in unknown or len(right) < len(variant.steps):  # only what the others say for themselves
            faults += resolve(values, right, variant.place, _ALL_IN_DOUBT).faults
            continue
        resolved = resolve_variant(values, variant, doubt)
        faults += resolved.faults
        if resolved.recipe is not None:
            found.append((variant, resolved.recipe))
    return Recipes(base=base.recipe, alone=alone, variants=tuple(found), faults=(*base.faults, *faults))


def _base_or_stand_in(
    start: Mapping[str, Any], patch: Mapping[str, Any], doubt: _Doubt
) -> tuple[Resolved, Mapping[str, Any], _Doubt]:
    """Return the base; the values of a recipe without its wrong entries; and what is in doubt about these values."""
    base = found = resolve(start, (Step(place=("base", "set"), patch=patch),), ("base",), doubt)
    faults, levels, values = list(base.faults), set(doubt.levels), set(doubt.values)
    while found.faults and patch:
        before, wrong = patch, {tuple(map(str, fault.place[2:])) for fault in found.faults}
        for keys in sorted(wrong - {()}) or [(key,) for key in patch]:
            level, parts = _dropped(patch, keys)
            values |= parts
            levels |= parts if level else set()
            patch = _without(patch, keys)
        patch = {} if patch == before else patch
        doubt = _Doubt(frozenset(levels), frozenset(values))
        found = resolve(start, (Step(place=("base", "set"), patch=patch),), ("base",), doubt)
        faults += found.faults  # combinations, which are checked when each entry is right
    return replace(base, faults=tuple(faults)), found.values, doubt


def _dropped(patch: Mapping[str, Any], keys: Sequence[str]) -> tuple[bool, set[str]]:
    """Return whether an entry of a patch can choose a level, and the parts of the recipe that it may be about."""
    value: Any = patch
    for key in keys:
        value = value[key] if isinstance(value, Mapping) and key in value else None
    if meant := parts_meant(".".join(keys), value):
        return True, meant
    part = ".".join(keys).split(".")[0]
    if part not in Recipe.model_fields:
        near = get_close_matches(part, Recipe.model_fields, n=1)
        return True, set(near or Recipe.model_fields)
    return keys[-1].endswith("kind") or isinstance(value, (str, Mapping)), {part}


def _without(patch: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a patch without one entry."""
    first, rest = keys[0], keys[1:]
    if rest and isinstance(patch.get(first), Mapping):
        return {**patch, first: _without(patch[first], rest)}
    return {key: value for key, value in patch.items() if key != first}


def resolve_base(preset: str, patch: Mapping[str, Any]) -> Resolved:
    """Return the base recipe: the defaults, the preset, the base's patch."""
    return resolve(_start(load_preset(preset).recipe), (Step(place=("base", "set"), patch=patch),), ("base",))


def _start(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe without the learning rate, so that it is known whether the study states it."""
    start = recipe.model_dump()
    start["optimizer"].pop("learning_rate")
    return start


def resolve_variant(base: Mapping[str, Any], variant: Variant, doubt: _Doubt = _NO_DOUBT) -> Resolved:
    """Return the recipe of a variant of a base.

    A preset replaces the objective and leaves model, task, optimizer, and of the schedule all but the kind of update,
    so that arms stay comparable.
    """
    if variant.preset is None:
        return resolve(base, variant.steps, variant.place, doubt)
    patch = load_preset(variant.preset).set
    objective = {k: v for k, v in patch.items() if not k.startswith("schedule.") or k.startswith("schedule.update")}
    return resolve(apply(base, objective).values, variant.steps, variant.place, doubt)


def resolve(
    values: Mapping[str, Any], steps: Sequence[Step], place: tuple[str, ...], doubt: _Doubt = _NO_DOUBT
) -> Resolved:
    """Apply patches in order and check the result; ``place`` is blamed for what no single entry caused.

    What may follow from a part of the values that is in doubt is not reported.
    """
    origins: list[_Origin] = []
    faults: list[Fault] = []
    for step in steps:
        patched = apply(values, step.patch)
        values = patched.values
        origins += [_Origin(s.path, step.find(s.source)) for s in patched.settings]
        faults += _patch_faults(step, (fault for fault in patched.faults if not doubt.of_patch(fault)))
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        known = [e for e in split_errors(error) if not faults or e["type"] != "value_error"]  # else a consequence
        known = [e for e in known if not doubt.of_values(e)]
        return Resolved(None, values, (*faults, *(_fault(e, values, origins, place) for e in known)))
    unstated = "learning_rate" not in values["optimizer"] and "optimizer" not in doubt.values
    if not faults and recipe.model.name not in TINY_MODELS and unstated:
        faults.append(_rate_fault(recipe.model.name, origins, place))
    certain = doubt.values.isdisjoint(("auxiliary", "baseline", "schedule"))
    if not faults and certain and (message := untrainable(recipe)):
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
