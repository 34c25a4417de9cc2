"""From patches to resolved recipes; what is wrong is returned with its place in the study file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paribus.recipe.patch import PatchFault, apply, read_patch
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus.study.designs import Draft, Step
from paribus.study.spec import Base
from paribus.yaml_file.messages import explain, plain_location, split_errors


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something wrong in a study file.

    Attributes:
        place: keys that lead to it in the file.
        message: what is wrong and what is allowed.
        at_key: the key is wrong, not its value.
    """

    place: tuple[str | int, ...]
    message: str
    at_key: bool = False


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


def resolve_base(base: Base) -> Resolved:
    """Return the base recipe: the defaults, the preset, the base's patch."""
    start = {**Recipe().model_dump(), **load_preset(base.preset).recipe.model_dump()}
    return resolve(start, (Step(place=("base", "set"), patch=base.set),), ("base",))


def resolve_row(base: Mapping[str, Any], row: Draft) -> Resolved:
    """Return the recipe of a row.

    Args:
        base: values of the base recipe.
        row: its patches; a preset replaces the objective and leaves model, task, optimizer, and of the schedule all but
            the kind of update, so that arms stay comparable.
    """
    if row.preset is None:
        return resolve(base, row.steps, row.place)
    patch = load_preset(row.preset).set
    objective = {k: v for k, v in patch.items() if not k.startswith("schedule.") or k.startswith("schedule.update")}
    return resolve(apply(base, objective).values, row.steps, row.place)


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
    return Resolved(None if faults else recipe, values, tuple(faults))


def written_faults(step: Step) -> tuple[Fault, ...]:
    """Return the faults of a patch that can be seen without the recipe that it is for."""
    return tuple(_patch_faults(step, read_patch(step.patch)[1]))


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
