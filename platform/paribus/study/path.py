"""The path from the base to another preset: its difference, written out as tricks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from paribus.errors import did_you_mean
from paribus.recipe.presets import load_preset, unknown_preset
from paribus.recipe.recipe import Recipe, difference
from paribus.recipe.resolve import Resolved, Step, Variant, resolve, resolve_base, resolve_variant
from paribus.recipe.shape import Choice, Leaf, Named, Shape, recipe_shape
from paribus.study.dependencies import Dependencies
from paribus.study.spec import Cumulative, Patch, PresetPath, Study
from paribus.yaml_file.document import Fault


@dataclass(frozen=True, kw_only=True)
class PathTricks:
    """The tricks of a path.

    Attributes:
        start: preset of the base.
        to: preset at the end.
        changes: for each trick what it changes in the base with what it needs: dotted path to (before, after).
    """

    start: str
    to: str
    changes: Mapping[str, Mapping[str, tuple[Any, Any]]]


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A study whose path is written out.

    Attributes:
        study: the study with the tricks of its path before its others, and without ``path``.
        path: what its tricks change; ``None`` without a path, or with one that cannot be followed.
        faults: what is wrong with the path.
    """

    study: Study
    path: PathTricks | None = None
    faults: tuple[Fault, ...] = ()
    tricks: Mapping[str, Patch] = field(default_factory=dict)

    def own_words(self, faults: Iterable[Fault]) -> Iterator[Fault]:
        """Yield faults with those of tricks that stand nowhere in the file at the path that makes them."""
        for fault in faults:
            if fault.place[:1] == ("tricks",) and len(fault.place) > 1 and fault.place[1] in self.tricks:
                message = f"trick `{fault.place[1]}` of this path: {fault.message}"
                yield Fault(place=("path", "to"), message=message)
            else:
                yield fault


def follow(study: Study) -> Followed:
    """Return a study with the difference between its base and the preset ``path.to`` as tricks.

    Each factor in which they differ makes one trick, or those that ``path.groups`` puts together. All of them make the
    recipe of a ``list`` arm with this preset. A ladder without ``order`` takes all tricks. With or without a path, each
    trick comes behind those that it needs.
    """
    path, rules = study.path, Dependencies.of(study)
    if path is None:
        return Followed(study=study.model_copy(update={"tricks": _in_order(study.tricks, rules)}))
    faults = [*_preset_faults(study, path)]
    known = not faults and not unknown_preset(study.base.preset)
    base = resolve_base(study.base.preset, study.base.set) if known else None
    if base is None or base.recipe is None:  # what is wrong with the base is reported with it
        return Followed(study=study, faults=tuple(faults))
    target = _target(base, path)
    if target.recipe is None:
        return Followed(study=study, faults=target.faults)
    factors = _by_factor(base.recipe, target.recipe, path)
    faults = [*_group_faults(study, path, factors)]
    if faults:
        return Followed(study=study, faults=tuple(faults))
    tricks = _grouped(factors, path)
    faults = [*_incomplete(base, tricks, path, rules)]
    if faults:
        return Followed(study=study, faults=tuple(faults))
    merged = _in_order(tricks | study.tricks, rules)
    order = tuple(merged)
    designs = {
        name: design.model_copy(update={"order": order})
        if isinstance(design, Cumulative) and design.order is None and design.orders is None
        else design
        for name, design in study.designs.items()
    }
    changes = {name: _change(base, merged, name, rules) for name in tricks}
    return Followed(
        study=study.model_copy(update={"tricks": merged, "designs": designs, "path": None}),
        path=PathTricks(start=study.base.preset, to=path.to, changes=changes),
        tricks=tricks,
    )


def _in_order(tricks: Mapping[str, Patch], rules: Dependencies) -> dict[str, Patch]:
    return {name: tricks[name] for name in rules.in_order(tricks)}


def _preset_faults(study: Study, path: PresetPath) -> Iterator[Fault]:
    for key, name in (("from", path.start), ("to", path.to)):
        if name is not None and (message := unknown_preset(name)):
            yield Fault(place=("path", key), message=message)
    start, base = path.start, study.base.preset
    if start is None or unknown_preset(start) or unknown_preset(base):
        return
    if load_preset(start).recipe != load_preset(base).recipe:
        remedy = f"leave `from` out, or write `base: {{preset: {start}}}`"
        message = f"a path begins at the base, whose preset is `{base}`: {remedy}"
        yield Fault(place=("path", "from"), message=message)


def _target(base: Resolved, path: PresetPath) -> Resolved:
    """Return the base with the objective of the path's preset, as an arm of a ``list`` has it."""
    step = Step(place=("path", "set"), patch=path.set)
    return resolve_variant(base.values, Variant(preset=path.to, steps=(step,), place=("path", "to")))


def _by_factor(before: Recipe, after: Recipe, path: PresetPath) -> dict[str, Patch]:
    """Return for each part of the recipe that differs its patch, in the order of the preset."""
    old, new = before.model_dump(), after.model_dump()
    stated = (key.split(".")[0] for key in load_preset(path.to).set)
    parts = dict.fromkeys([*stated, *Recipe.model_fields])
    shapes = recipe_shape().fields
    found = {part: dict(_settings(shapes[part], old[part], new[part], part)) for part in parts}
    return {part: patch for part, patch in found.items() if patch}


def _settings(shape: Shape, before: Any, after: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the fewest settings that make the values ``after`` of ``before``; a new level comes whole."""
    if before == after:
        return
    if (
        isinstance(shape, Leaf)
        or before is None
        or after is None
        or (isinstance(shape, Choice) and before["kind"] != after["kind"])
    ):
        yield path, after
    elif isinstance(shape, Named):
        yield from ((f"{path}.{name}", value) for name, value in after.items() if before.get(name) != value)
    else:
        fields = shape.levels[after["kind"]].fields if isinstance(shape, Choice) else shape.fields
        for name, inner in fields.items():
            yield from _settings(inner, before.get(name), after.get(name), f"{path}.{name}")


def _group_faults(study: Study, path: PresetPath, factors: Mapping[str, Patch]) -> Iterator[Fault]:
    known = ", ".join(factors)
    if not factors:
        yield Fault(place=("path", "to"), message=f"the base has the objective of `{path.to}` already: nothing differs")
    seen: set[str] = set()
    for name, members in path.groups.items():
        for k, member in enumerate(members if factors else ()):
            place = ("path", "groups", name, k)
            if member not in factors:
                message = f"`{member}` does not differ.{did_you_mean(member, factors)} What differs: {known}."
                yield Fault(place=place, message=message)
            elif member in seen:
                yield Fault(place=place, message=f"`{member}` is in a group already")
            seen.add(member)
    for name in path.groups:
        if name in factors and name not in seen:
            message = f"`{name}` is a factor that differs, too, and its trick has this name: choose another one"
            yield Fault(place=("path", "groups", name), message=message, at_key=True)
    for name in _grouped(factors, path):
        if name in study.tricks:
            message = f"the path to `{path.to}` makes a trick of this name: choose another one"
            yield Fault(place=("tricks", name), message=message, at_key=True)


def _grouped(factors: Mapping[str, Patch], path: PresetPath) -> dict[str, Patch]:
    """Return the tricks: a group stands at the place of its first factor."""
    owner = {member: name for name, members in path.groups.items() for member in members}
    tricks: dict[str, Patch] = {}
    for factor, patch in factors.items():
        tricks.setdefault(owner.get(factor, factor), {}).update(patch)
    return tricks


def _with(base: Resolved, tricks: Mapping[str, Patch], names: Iterable[str], rules: Dependencies) -> Resolved:
    """Return the base with tricks and all that they need; of tricks with mistakes, those alone that are there."""
    wanted = {*names}
    wanted |= {other for name in wanted for other in rules.needed_by(name)}
    steps = [Step(place=("tricks", name), patch=tricks[name]) for name in rules.in_order(tricks) if name in wanted]
    return resolve(base.values, steps, ("path", "to"))


def _change(
    base: Resolved, tricks: Mapping[str, Patch], name: str, rules: Dependencies
) -> Mapping[str, tuple[Any, Any]]:
    before = _with(base, tricks, rules.needed_by(name), rules).recipe
    after = _with(base, tricks, (name,), rules).recipe
    return difference(before, after) if before and after else {}


def _incomplete(base: Resolved, tricks: Mapping[str, Patch], path: PresetPath, rules: Dependencies) -> Iterator[Fault]:
    """Yield the tricks of a path that are no recipe by themselves, each with what makes it one."""
    partners: dict[str, tuple[str, ...]] = {}
    faults: dict[str, str] = {}
    for name in tricks:
        if not all(other in tricks for other in rules.needed_by(name)):
            continue  # with a trick of the study: the loader resolves both
        alone = _with(base, tricks, (name,), rules)
        if alone.faults:
            faults[name] = "; ".join(dict.fromkeys(fault.message for fault in alone.faults))
            partners[name] = _partners(base, tricks, name, rules)
    mutual = {name: {other for other in partners[name] if name in partners.get(other, ())} for name in faults}
    grouped = {member for name in faults if mutual[name] for member in (name, *partners[name])}
    reported: set[str] = set()
    for name, message in faults.items():
        if name in reported:
            continue
        others = partners[name]
        reported |= {name, *mutual[name]}
        if mutual[name]:
            together = (path.groups.get(key, (key,)) for key in tricks if key in {name, *others})
            members = ", ".join(factor for group in together for factor in group)
            remedy = f"make one trick of them: `path: {{groups: {{NAME: [{members}]}}}}`"
        elif others and {*others} <= grouped:
            remedy = f"it needs the trick that has {', '.join(others)}: `needs: {{{name}: [NAME]}}`"
        elif others:
            remedy = f"say what it needs: `needs: {{{name}: [{', '.join(others)}]}}`"
        else:
            remedy = "put it into a group with others: `path: {groups: {NAME: [...]}}`"
        yield Fault(place=("path", "to"), message=f"`{name}` alone is no recipe ({message}): {remedy}")


MOST_PARTNERS = 3
"""Most factors without which another is no recipe, that are looked for."""


def _partners(base: Resolved, tricks: Mapping[str, Patch], name: str, rules: Dependencies) -> tuple[str, ...]:
    """Return the fewest other tricks with which one is a recipe; empty if that takes many."""
    others = [other for other in tricks if other != name]
    sets: Iterable[Sequence[str]] = (c for n in range(1, MOST_PARTNERS + 1) for c in combinations(others, n))
    return next((tuple(c) for c in sets if _with(base, tricks, (name, *c), rules).recipe is not None), ())
