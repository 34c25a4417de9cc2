"""The shape of a recipe: which paths there are, and which levels and parameters each has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paribus.recipe.recipe import Recipe


@dataclass(frozen=True)
class Leaf:
    """One value."""

    field: FieldInfo

    @property
    def numeric(self) -> bool:
        """Whether it takes numbers and no text."""
        kinds = set(_types(self.field.annotation))
        return bool(kinds & {int, float}) and str not in kinds


@dataclass(frozen=True)
class Record:
    """Named parameters.

    Attributes:
        fields: shape of each parameter; ``kind`` of a level is left out.
        optional: the whole record may be null.
        shorthand: the parameter that a bare text stands for (``model: tiny`` is ``model.name``), if any.
    """

    fields: Mapping[str, Shape]
    optional: bool = False
    shorthand: str | None = None


@dataclass(frozen=True)
class Choice:
    """A tagged union: one of several levels, each with its own parameters.

    Attributes:
        levels: parameters of each level.
        default: the level that holds where none is named.
    """

    levels: Mapping[str, Record]
    default: str

    def having(self, parameter: str) -> tuple[str, ...]:
        """Return the levels that have a parameter."""
        return tuple(kind for kind, level in self.levels.items() if parameter in level.fields)


@dataclass(frozen=True)
class Named:
    """Records of one kind, each under a name that the study chooses."""

    item: Record


Shape = Leaf | Record | Choice | Named

_SHORTHANDS = {"Model": "name", "Source": "path", "RewardFunction": "path"}


@cache
def recipe_shape() -> Record:
    """Return the shape of a whole recipe."""
    return _record(Recipe)


def paths(shape: Shape, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Shape]]:
    """Yield all paths below a shape with their shapes; a path comes once for each level that has it.

    Names that the study chooses are not known here: nothing is yielded below :class:`Named`.
    """
    records: list[Record] = []
    if isinstance(shape, Record):
        records = [shape]
    elif isinstance(shape, Choice):
        records = list(shape.levels.values())
    for record in records:
        for name, inner in record.fields.items():
            path = (*prefix, name)
            yield path, inner
            yield from paths(inner, path)


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation such as ``Annotated[float, ...] | None``."""
    inner = get_args(annotation)
    yield annotation
    for member in inner:
        yield from _types(member)


def _record(model: type[BaseModel], *, optional: bool = False) -> Record:
    fields = {name: _shape(field) for name, field in model.model_fields.items() if name != "kind"}
    return Record(fields, optional=optional, shorthand=_SHORTHANDS.get(model.__name__))


def _shape(field: FieldInfo) -> Shape:
    members: tuple[Any, ...] = get_args(field.annotation) or (field.annotation,)
    models = [m for m in members if isinstance(m, type) and issubclass(m, BaseModel)]
    if get_origin(field.annotation) is dict:
        return Named(_record(models[0]))
    if field.discriminator is not None:
        return Choice({m.model_fields["kind"].default: _record(m) for m in models}, default=field.default.kind)
    if models:
        return _record(models[0], optional=type(None) in members)
    return Leaf(field)
