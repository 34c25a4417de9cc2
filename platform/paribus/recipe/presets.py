"""Presets: named recipes for published algorithms, from ``ablations/recipes/*.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from paribus.errors import StudyFileError, UnknownPreset, did_you_mean
from paribus.home import data_root
from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe, difference
from paribus.yaml_file.document import Fault, plain, read_document
from paribus.yaml_file.messages import explain, split_errors, validate

RESERVED: Mapping[str, str] = {
    "cisco": "no paper of this name was found. MiniMax-M1's method is `cispo`; an importance correction between "
    "sampler and learner is the factor `correction` (e.g. `token_truncate`, TIS); `sroy_cisco` replicates a blog's "
    "reading",
    "gdpo": "two papers and a blog use this name. NVIDIA's reward-decoupled normalisation (arXiv 2601.05242) is "
    "`gdpo_multireward`; the pairwise loss on the best and the worst response is `pair_dpo_extremes`",
    "reinforce++": "this is `reinforce_pp` (normalised over the batch) or `reinforce_pp_baseline` (group mean, then "
    "batch std); the leave-one-out baseline that is sometimes called so is `rloo`",
    "reinforce_plus_plus": "this is `reinforce_pp` (normalised over the batch) or `reinforce_pp_baseline`; the "
    "leave-one-out baseline that is sometimes called so is `rloo`",
    "reinforce++_loo": "no version of the paper has a leave-one-out baseline: that is `rloo`. REINFORCE++ is "
    "`reinforce_pp` (normalised over the batch) or `reinforce_pp_baseline` (group mean, then batch std)",
    "tis": "truncated importance sampling goes with any algorithm: set `correction: {kind: token_truncate, cap: 2.0}` "
    "on the preset of your choice",
}
"""Names that mean several things or none, with what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A published algorithm as a recipe.

    Attributes:
        name: what a study writes.
        title: the method's full name.
        source: paper, arXiv number, equation; or the code that defines it.
        treats: what it is for, in three to six words.
        watch: the failures that it treats or brings, each with the canonical metrics that show them.
        cost: what it costs beside the plain policy gradient.
        defaults: the source's hyperparameters, as texts; shown, not applied.
        deviations: where the recipe differs from its source, or where sources leave a choice.
        alias_of: the preset that this is another name for.
        note: what to know about an alias or a contested name.
        set: the patch of the default recipe that makes it.
        recipe: the default recipe with the patch applied.
    """

    name: str
    title: str
    source: str
    treats: str
    watch: Mapping[str, tuple[str, ...]]
    cost: str
    defaults: Mapping[str, str]
    deviations: tuple[str, ...]
    alias_of: str | None
    note: str | None
    set: Mapping[str, Any]
    recipe: Recipe


class _PresetFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    title: str
    source: str
    treats: str
    watch: dict[str, tuple[str, ...]]
    cost: str
    defaults: dict[str, str] = {}
    deviations: tuple[str, ...] = ()
    note: str | None = None
    set: dict[str, Any] = {}


class _AliasFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    title: str
    source: str
    alias_of: str
    note: str


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(path.stem for path in (data_root("ablations") / "recipes").glob("*.yaml")))


def unknown_preset(name: str) -> str:
    """Return why there is no preset of this name and what to write instead; empty if there is one."""
    if name in preset_names():
        return ""
    key = re.sub(r"[-\s]+", "_", name.lower())
    reserved = "tis" if key.startswith("tis_") else re.sub(r"^reinforce_(pp|plus_plus)_loo$", "reinforce++_loo", key)
    if reserved in RESERVED:
        return f"`{name}` is not a preset: {RESERVED[reserved]}."
    return f"there is no preset `{name}`.{did_you_mean(key, preset_names())} Presets: {', '.join(preset_names())}."


@cache
def load_preset(name: str) -> Preset:
    """Return a preset.

    Raises:
        UnknownPreset: there is none of this name; the message says which there are, or why the name is refused.
        StudyFileError: its file is wrong.
    """
    if problem := unknown_preset(name):
        raise UnknownPreset(problem)
    return read_preset(data_root("ablations") / "recipes" / f"{name}.yaml")


def nearest(name: str) -> str:
    """Return the other preset whose recipe differs in the fewest paths, aliases left out."""
    recipe = load_preset(name).recipe
    others = [other for other in map(load_preset, preset_names()) if other.alias_of is None and other.recipe != recipe]
    return min(others, key=lambda other: (len(difference(recipe, other.recipe)), other.name)).name


def read_preset(path: Path) -> Preset:
    """Return the preset in a file; its name is the file's.

    Raises:
        StudyFileError: the file is not a preset; all problems are listed.
    """
    root = read_document(path).checked()
    raw = plain(root)
    is_alias = isinstance(raw, dict) and "alias_of" in raw
    kind = _AliasFile if is_alias else _PresetFile
    try:
        file = validate(_AliasFile, raw) if is_alias else validate(_PresetFile, raw)
    except ValidationError as error:
        faults = [Fault(place=e["loc"], message=explain(e, tuple(kind.model_fields))) for e in error.errors()]
        raise StudyFileError(str(path), [fault.problem(root) for fault in faults]) from error
    if isinstance(file, _AliasFile):
        return replace(load_preset(file.alias_of), name=path.stem, **vars(file))
    patched = apply(Recipe().model_dump(), file.set)
    if patched.faults:
        faults = [Fault(place=("set", *f.source), message=f.message, at_key=f.at_key) for f in patched.faults]
        raise StudyFileError(str(path), [fault.problem(root) for fault in faults])
    try:
        recipe = Recipe.model_validate(patched.values)
    except ValidationError as error:
        faults = [Fault(place=("set", *e["loc"]), message=explain(e)) for e in split_errors(error)]
        raise StudyFileError(str(path), [fault.problem(root) for fault in faults]) from error
    return Preset(name=path.stem, alias_of=None, **vars(file), recipe=recipe)
