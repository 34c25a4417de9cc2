"""What a training library can do of a recipe, as data: one file for each of its versions, `<trainer>/<version>.yaml`.

::

    trainer: trl
    package: trl                       # whose version says which file holds; the file is named after its first digits
    options:                           # every option that the trainer has
      free: [torch_compile]            # a study may pass these on
      owned: {seed: "`seeds`"}         # Paribus sets these; what to write instead
      complete: true                   # false: it has more, which no study can pass on
      added: []                        # those that its own configuration has no place for
      seeds: [seed]                    # those that get the seed of a run
    always: {shuffle_dataset: false}   # what every run sets
    defaults: {bf16: false}            # likewise, unless the study passes something else on
    levels:                            # by the place of a choice in a recipe, then by what is chosen
      clip:
        ppo_min: {set: {epsilon: {of: clip.low}, epsilon_high: {of: clip.high}}}
        ppo_dual: {level: unsupported, reason: "...", nearest: "`clip: two_sided`"}
    values:                            # by the place of any other value; a place stands for all below it, too
      scale.eps: {limits: [{needs: {scale.eps: [1.0e-4]}, level: approximate, reason: "..."}]}
      task: {ours: true}               # done by Paribus around the trainer
    conventions: {std_ddof: "1"}       # how its numbers differ from ours where the words are the same

``level`` is ``exact`` unless it says otherwise. A limit holds a level back where one of its ``needs`` does not hold:
the recipe's value at a place must be among those listed. What the file does not name is unsupported. Entries set their
options in the order of the file, so that a later one replaces what an earlier one has set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paribus.contract import Support
from paribus.errors import ParibusError, StudyFileError, did_you_mean
from paribus.recipe.recipe import Recipe, flatten
from paribus.yaml_file.document import Document, Fault, plain, read_document
from paribus.yaml_file.messages import explain, fields_at, plain_location, validate

Scalar = bool | int | float | str | None
Exactness = Literal["exact", "approximate", "unsupported"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Of(_Part):
    """A value of the recipe, translated: ``times`` it, and ``plus``."""

    of: str = Field(description="its place in a recipe")
    times: float = 1.0
    plus: float = 0.0
    absent: Scalar = Field(default=None, description="what stands for null")

    def value(self, flat: Mapping[str, Any]) -> Scalar:
        """Return it for the values of a recipe by place."""
        found: Scalar = flat.get(self.of)
        if found is None:
            return self.absent
        if isinstance(found, bool | str) or (self.times == 1 and self.plus == 0):
            return found
        return found * self.times + self.plus


class Limit(_Part):
    """What must hold in the rest of the recipe, and what is the case where it does not."""

    needs: dict[str, tuple[Scalar, ...]] = Field(description="place to the values that are fine there")
    level: Literal["approximate", "unsupported"] = "unsupported"
    reason: str
    nearest: str = ""

    def broken(self, flat: Mapping[str, Any]) -> bool:
        """Return whether one of the needs does not hold."""
        return any(not any(_same(flat.get(path), v) for v in allowed) for path, allowed in self.needs.items())


class Entry(_Part):
    """What a trainer does of one level, or with one value."""

    level: Exactness = "exact"
    set: dict[str, Of | Scalar] = Field(default={}, description="options of the trainer")
    computed: tuple[str, ...] = Field(default=(), description="options that follow from several values; code sets them")
    ours: bool = Field(default=False, description="whether Paribus does it around the trainer, as for every runner")
    limits: tuple[Limit, ...] = ()
    reason: str = Field(default="", description="why it is not exact")
    nearest: str = Field(default="", description="what to write instead")

    @model_validator(mode="after")
    def _has_reason(self) -> Entry:
        if (self.level == "exact") == bool(self.reason):
            raise ValueError("`reason` says why a level is not `exact`: one needs the other")
        return self


class OptionNames(_Part):
    """Every option of the trainer, or those that count if it has too many."""

    complete: bool = Field(default=True, description="whether every option is named")
    added: tuple[str, ...] = Field(default=(), description="the trainer's own configuration has no place for these")
    seeds: tuple[str, ...] = Field(default=(), description="get the seed of a run")
    free: tuple[str, ...] = Field(default=(), description="a study may pass these on")
    owned: dict[str, str] = Field(default={}, description="Paribus sets these: what to write in a study instead")


class Capabilities(_Part):
    """A file of capabilities."""

    trainer: str
    package: str
    options: OptionNames
    always: dict[str, Scalar] = {}
    defaults: dict[str, Scalar] = {}
    levels: dict[str, dict[str, Entry]]
    values: dict[str, Entry]
    conventions: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """Every option that the file knows."""
        entries = [*self.values.values(), *(e for levels in self.levels.values() for e in levels.values())]
        used = {name for e in entries for name in (*e.set, *e.computed)}
        return frozenset({*self.options.free, *self.options.owned, *self.always, *self.defaults, *used})

    @property
    def free(self) -> frozenset[str]:
        """The options that a study may pass on."""
        return frozenset({*self.options.free, *self.defaults})

    def support(self, recipe: Recipe) -> Iterator[Support]:
        """Yield what of a recipe is not exact."""
        flat = values_of(recipe)
        for place, entry, missing in self._entries(flat):
            if entry is None:
                yield Support(feature=place, level="unsupported", reason=missing)
                continue
            if entry.level != "exact":
                yield _support(place, entry.level, entry.reason, entry.nearest, flat)
            for limit in entry.limits:
                if limit.broken(flat):
                    yield _support(place, limit.level, limit.reason, limit.nearest, flat)

    def native(self, recipe: Recipe, passed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trainer's options for a recipe, those that are computed apart.

        Args:
            recipe: the recipe.
            passed: what the study passes on.
        """
        flat = values_of(recipe)
        found: dict[str, Any] = {**self.always, **self.defaults}
        for _, entry, _ in self._entries(flat):
            for name, value in (entry.set if entry else {}).items():
                found[name] = value.value(flat) if isinstance(value, Of) else value
        return {**found, **passed}

    def wrong_options(self, passed: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield each option that a study cannot pass on, with the reason."""
        for name in passed:
            if name in self.free:
                continue
            if name in self.options.owned:
                yield name, f"`{name}` is set by Paribus: {self.options.owned[name]}"
            elif name in self.names:
                yield name, f"`{name}` follows from the recipe: {self._meant_by(name)}"
            else:
                lacks = f"{self.trainer} has no option `{name}`"
                if not self.options.complete:
                    lacks = f"`{name}` is none of the options that a study passes on to {self.trainer}"
                yield name, f"{lacks}.{did_you_mean(name, self.names)}".rstrip()

    def _meant_by(self, option: str) -> str:
        every = [(place, e) for place, e in self.values.items()]
        every += [(place, e) for place, levels in self.levels.items() for e in levels.values()]
        places = dict.fromkeys(place for place, e in every if option in e.set or option in e.computed)
        return f"set {' or '.join(f'`{place}`' for place in places)}" if places else "every run has the same"

    def _entries(self, flat: Mapping[str, Any]) -> Iterator[tuple[str, Entry | None, str]]:
        """Yield place and entry of what a recipe has; in place of one that is missing what is wrong.

        What stands below a level that is unsupported is not looked at.
        """
        off: list[str] = []
        for place, levels in self.levels.items():
            chosen = flat.get(f"{place}.kind", flat.get(place))
            if chosen is None:
                continue  # below another level
            entry = levels.get(str(chosen))
            nearest = did_you_mean(str(chosen), levels)
            yield place, entry, f"`{place}: {chosen}` is no level that {self.trainer} is known to have.{nearest}"
            if entry is None or entry.level == "unsupported":
                off.append(f"{place}.")
        seen: set[str] = set()
        for path in flat:
            known = path.endswith(".kind") and path.removesuffix(".kind") in self.levels
            if known or path in self.levels or any(path.startswith(x) for x in off):
                continue
            above = next((p for p in _above(path) if p in self.values), None)
            if above is None:
                yield path, None, f"nothing is known of what {self.trainer} does with `{path}`"
            else:
                seen.add(above)
        for place, entry in self.values.items():
            if place in seen:
                yield place, entry, ""


def values_of(recipe: Recipe) -> dict[str, Any]:
    """Return all values of a recipe by their places, also those that stored recipes leave out."""
    return flatten(recipe.whole())


@dataclass(frozen=True)
class Matrix:
    """A file of capabilities with its place.

    Attributes:
        path: the file.
        version: the version that it is for, as far as it counts, e.g. ``1.16``.
        capabilities: what it says.
    """

    path: Path
    version: str
    capabilities: Capabilities


def matrices(trainer: str) -> Mapping[str, Path]:
    """Return the files of a trainer by version, the oldest first."""
    files = (Path(__file__).parent / trainer).glob("*.yaml")
    found = {p.stem: p for p in files if re.fullmatch(r"\d+(\.\d+)*", p.stem)}
    return dict(sorted(found.items(), key=lambda item: [int(x) for x in item[0].split(".")]))


def matrix_for(trainer: str, version: str) -> Matrix:
    """Return the file that holds for a version: that whose name it begins with, the longest such name.

    Raises:
        ParibusError: no file is of this version; the message lists the versions that are known.
        StudyFileError: the file is damaged.
    """
    files = matrices(trainer)
    fitting = [known for known in files if version == known or version.startswith(f"{known}.")]
    if not fitting:
        raise ParibusError(
            f"{trainer} {version} is not known here, only {', '.join(files)}: what its options mean has not been "
            f"compared. Install a known version: paribus runners install {trainer}"
        )
    known = max(fitting, key=len)
    return Matrix(files[known], known, read_capabilities(files[known]))


@cache
def read_capabilities(path: Path) -> Capabilities:
    """Return what a file says.

    Raises:
        StudyFileError: it is no such file; every problem is listed with its line.
    """
    document = read_document(path)
    raw = plain(document.checked())
    if not isinstance(raw, Mapping):
        message = "a file of capabilities begins with `trainer:`"
        raise StudyFileError(str(path), [Fault(place=(), message=message).problem(document.root)])
    try:
        found = validate(Capabilities, raw)
    except ValidationError as error:
        faults = [_fault(each, raw) for each in error.errors(include_url=False)]
    else:
        faults = list(_unknown_names(found))
        if not faults:
            return found
    raise StudyFileError(str(path), [fault.problem(_root(document)) for fault in _once(faults)])


def _root(document: Document) -> Any:
    return document.root


def _once(faults: list[Fault]) -> list[Fault]:
    """Return one fault for each place: a value of several types has an error for each of them."""
    return list({fault.place: fault for fault in faults}.values())


def _fault(error: Any, raw: object) -> Fault:
    path, unknown = plain_location(error, raw), error["type"] == "extra_forbidden"
    if error["type"] == "missing":
        return Fault(place=path[:-1], message=f"`{path[-1]}` is missing", at_key=True)
    allowed = fields_at(Capabilities, error["loc"]) if unknown else ()
    return Fault(place=path, message=explain(error, allowed), at_key=unknown)


def _unknown_names(found: Capabilities) -> Iterator[Fault]:
    """Yield options that are both free and owned, and places that no recipe has."""
    both = set(found.free) & set(found.options.owned)
    for name in sorted(both):
        yield Fault(place=("options", "owned", name), message=f"`{name}` is free, too: keep one of them", at_key=True)
    known = _places()
    for part, entries in (("levels", found.levels), ("values", found.values)):
        for place in entries:
            if place not in known:
                near = did_you_mean(place, known)
                yield Fault(place=(part, place), message=f"no recipe has `{place}`.{near}", at_key=True)


@cache
def _places() -> frozenset[str]:
    from paribus.recipe.shape import paths, recipe_shape

    return frozenset(".".join(path[:k]) for path, _ in paths(recipe_shape()) for k in range(1, len(path) + 1))


def _above(path: str) -> Iterator[str]:
    """Yield a path and those above it, the longest first."""
    parts = path.split(".")
    return (".".join(parts[:k]) for k in range(len(parts), 0, -1))


def _support(
    place: str,
    level: Exactness,
    reason: str,
    nearest: str,
    flat: Mapping[str, Any],
) -> Support:
    kind = flat.get(f"{place}.kind", flat.get(place))
    named = f"`{place}`" if kind is None or isinstance(kind, Mapping) else f"`{place}: {_text(kind)}`"
    instead = f" Nearest: {nearest}." if nearest else ""
    return Support(feature=place, level=level, reason=f"{named}: {reason.rstrip('.')}.{instead}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _same(found: Any, allowed: Scalar) -> bool:
    if isinstance(found, bool) or isinstance(allowed, bool) or found is None or allowed is None:
        return found is allowed
    if isinstance(found, int | float) and isinstance(allowed, int | float):
        return math.isclose(found, allowed, rel_tol=1e-12, abs_tol=0.0)
    return bool(found == allowed)
