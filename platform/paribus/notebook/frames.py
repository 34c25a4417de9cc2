"""Builds DataFrames with declared columns: a frame without rows has the same columns and types as one with rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paribus.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["category", "string", "int", "float", "bool", "time"]
"""Type of a column: a pandas category; text; ``Int64``, which may be missing; ``float64`` with NaN; ``boolean``;
``datetime64[us, UTC]``, made from seconds since 1970."""

EXTRA = "notebook"


@dataclass(frozen=True)
class Field:
    """A column of a frame.

    Attributes:
        kind: its type.
        unit: unit of its numbers; empty for words and pure numbers.
    """

    kind: Kind
    unit: str = ""


def frame(
    rows: Iterable[Sequence[Any]],
    fields: Mapping[str, Field],
    categories: Mapping[str, Sequence[str]] | None = None,
    **attributes: object,
) -> pd.DataFrame:
    """Return a frame with one column for each field.

    Args:
        rows: values in the order of the fields; ``None`` is missing.
        fields: name of each column to its type and unit.
        categories: all values of a column of categories, in their order; absent: those that occur, sorted.
        attributes: kept in ``DataFrame.attrs`` beside ``units``.

    Raises:
        MissingExtra: pandas is not installed.
    """
    pandas = load_pandas()
    listed = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in fields]
    known = categories or {}
    made = {
        name: _column(values, field.kind, known.get(name))
        for (name, field), values in zip(fields.items(), listed, strict=True)
    }
    found = pandas.DataFrame(made)
    found.attrs["units"] = {name: field.unit for name, field in fields.items() if field.unit}
    found.attrs.update(attributes)
    return found


def load_pandas() -> Any:
    """Return pandas.

    Raises:
        MissingExtra: it is not installed; the message has the line that installs it.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtra(EXTRA, "A DataFrame") from None
    return pandas


def _column(values: list[Any], kind: Kind, categories: Sequence[str] | None) -> Any:
    pandas = load_pandas()
    match kind:
        case "category":
            texts = [None if value is None else str(value) for value in values]
            known = sorted({t for t in texts if t is not None}) if categories is None else list(categories)
            return pandas.Categorical(texts, categories=pandas.Index(known, dtype="str"))
        case "time":
            # whole microseconds: as floats, seconds since 1970 would be rounded while they are converted
            whole = [None if value is None else round(value * 1e6) for value in values]
            times = pandas.to_datetime(pandas.Series(whole, dtype="Int64"), unit="us", utc=True)
            return times.astype("datetime64[us, UTC]")
        case "float":
            return pandas.Series([float("nan") if value is None else float(value) for value in values], dtype="float64")
        case _:
            dtype = {"int": "Int64", "bool": "boolean", "string": "string"}[kind]
            return pandas.Series(values, dtype=dtype)
