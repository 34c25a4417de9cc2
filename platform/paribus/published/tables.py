"""Published tables: those that ship, ``ablations/published/*.yaml``, and those of a user, YAML or CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from paribus.errors import ParibusError, StudyFileError, did_you_mean
from paribus.home import data_root
from paribus.published.csv_file import MAX_DIGITS, read_csv, too_long
from paribus.yaml_file.document import Fault, plain, read_document
from paribus.yaml_file.messages import explain, fields_at, number_or, plain_location, shown, validate

NOT_STATED = "not stated"
"""What a table writes, or leaves out, where its source does not say."""

MAX_COUNT = 10**9
"""Most problems, samples or seeds."""


def _count(given: object) -> int | None:
    if given is None or given == NOT_STATED:
        return None
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MAX_COUNT:
        return given
    wanted = f"a whole number from 1 to {MAX_COUNT:,}"
    raise ValueError(f"expects {wanted}, or `{NOT_STATED}`, and {shown(given)} is neither")


def _spread(given: object) -> float | None:
    if given is None or given == NOT_STATED:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool) and given > 0 and math.isfinite(given):
        return float(given)
    raise ValueError(f"expects a number above 0, or `{NOT_STATED}`, and {shown(given)} is neither")


Count = Annotated[int | None, BeforeValidator(_count)]
Spread = Annotated[float | None, BeforeValidator(_spread)]


class PublishedRow(BaseModel):
    """One row: what it is called and its score; what it does not state counts as the table states it.

    Attributes:
        label: its name, once in a table.
        value: the score, in the table's unit; the mean over its seeds.
        tricks: names that a study has to use to stand beside it.
        problems: problems of its evaluation.
        samples: responses to each problem.
        seeds: training runs behind the value.
        seed_sd: standard deviation over these runs, in the table's unit.
        against: label of the row that it is compared with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    label: str = Field(min_length=1)
    value: float = Field(allow_inf_nan=False)
    tricks: tuple[str, ...] = ()
    problems: Count = None
    samples: Count = None
    seeds: Count = None
    seed_sd: Spread = None
    against: str | None = None


class Published(BaseModel):
    """A table as its source prints it.

    Attributes:
        name: what a study writes, or the name of the user's file.
        title: what it is called.
        source: paper and place in it.
        measure: benchmark and metric.
        unit: unit of the values.
        setting: model and data.
        rows: in the order of the source.
        note: how to read it.
        problems: problems of the evaluation.
        samples: responses to each problem.
        seeds: training runs behind each value.
        seed_sd: standard deviation over the runs of one row, in ``unit``.
        stated: where the source states the numbers of problems, samples and seeds, and what it does not.
        compare: which row a row without ``against`` is compared with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    title: str = ""
    source: str = ""
    measure: str = ""
    unit: Literal["%", "fraction"] = "%"
    setting: str = ""
    rows: tuple[PublishedRow, ...]
    note: str = ""
    problems: Count = None
    samples: Count = None
    seeds: Count = None
    seed_sd: Spread = None
    stated: str = ""
    compare: Literal["above", "first", "last"] = "above"

    def value_of(self, tricks: frozenset[str]) -> float | None:
        """Return the score with exactly these tricks; ``None`` if there is no such row."""
        return next((row.value for row in self.rows if frozenset(row.tricks) == tricks), None)

    @property
    def top(self) -> float:
        """The largest possible score."""
        return 100.0 if self.unit == "%" else 1.0

    def filled(self, row: PublishedRow) -> PublishedRow:
        """Return a row with what the table states for all of its rows."""
        names = ("problems", "samples", "seeds", "seed_sd")
        return row.model_copy(update={n: getattr(self, n) for n in names if getattr(row, n) is None})

    def steps(self) -> Iterator[tuple[PublishedRow, PublishedRow]]:
        """Yield each row that is compared with another one, and that other one."""
        rows = {row.label: self.filled(row) for row in self.rows}
        order = list(rows.values())
        fixed = {"first": order[0], "last": order[-1]}.get(self.compare)
        for k, row in enumerate(order):
            above = order[k - 1] if k else None
            other = rows[row.against] if row.against is not None else fixed or above
            if other is not None and other is not row:
                yield row, other


@cache
def published_names() -> tuple[str, ...]:
    """Return the names of all tables that ship, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def unknown_published(name: str) -> str:
    """Return that there is no table of this name, and which there are; empty if there is one."""
    names = published_names()
    if name in names:
        return ""
    return f"there is no published table `{name}`.{did_you_mean(name, names)} Tables: {', '.join(names)}."


@cache
def load_published(name: str) -> Published:
    """Return a table that ships.

    Raises:
        ParibusError: no table has this name; the message lists the tables.
        StudyFileError: its file is wrong.
    """
    if problem := unknown_published(name):
        raise ParibusError(problem)
    return read_table(_folder() / f"{name}.yaml")


def read_table(path: Path) -> Published:
    """Return the table in a YAML or CSV file.

    A CSV file has a header with ``label`` and ``value``, and any of ``problems``, ``samples``, ``seeds``, ``seed_sd``
    and ``against``; an empty cell is not stated.

    Raises:
        StudyFileError: the file cannot be read, or is wrong; everything found is listed with its place.
    """
    root = read_csv(path) if path.suffix.lower() == ".csv" else read_document(path).checked()
    raw = plain(root)
    if not isinstance(raw, dict):
        raise StudyFileError(str(path), [Fault(place=(), message="expects a mapping with `rows`").problem(root)])
    if long := [*_long_numbers(raw)]:
        raise StudyFileError(str(path), [fault.problem(root) for fault in long])
    faults = [*_row_faults(raw)]
    try:
        table = validate(Published, {**raw, "name": path.stem})
    except ValidationError as error:
        faults += _misfits(error, raw)
    else:
        faults += [] if faults else _other_problems(table)
    if faults:
        raise StudyFileError(str(path), [fault.problem(root) for fault in faults])
    return table


def _misfits(error: ValidationError, raw: dict[str, Any]) -> Iterator[Fault]:
    for item in error.errors(include_url=False):
        unknown = item["type"] == "extra_forbidden"
        allowed = [name for name in fields_at(Published, item["loc"]) if name != "name"] if unknown else []
        yield Fault(place=plain_location(item, raw), message=explain(item, allowed), at_key=unknown)


def _long_numbers(raw: Any, place: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """Yield each whole number that is too long to calculate with."""
    if isinstance(raw, int) and abs(raw) >= 10**MAX_DIGITS:
        yield Fault(place=place, message=too_long(len(str(abs(raw)))))
    elif isinstance(raw, dict | tuple):
        for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw):
            yield from _long_numbers(value, (*place, key))


def _row_faults(raw: dict[str, Any]) -> Iterator[Fault]:
    """Yield what is wrong between the rows and with their scores, wherever these are text and numbers."""
    found = raw.get("rows")
    rows = [row if isinstance(row, dict) else {} for row in found] if isinstance(found, tuple) else []
    if isinstance(found, tuple) and len(rows) < 2:
        yield Fault(place=("rows",), message="needs two rows or more: a step compares one with another")
    unit = raw.get("unit", "%")
    top = 1 if unit == "fraction" else 100
    labels = [str(row.get("label")) for row in rows]
    for k, row in enumerate(rows):
        value, against = number_or(row.get("value")), row.get("against")
        if isinstance(value, int | float) and math.isfinite(value) and not 0 <= value <= top:
            message = f"{value:g} lies outside of 0 to {top}, the range of scores in the unit `{unit}`"
            yield Fault(place=("rows", k, "value"), message=message)
        if row.get("label") and labels.index(labels[k]) != k:
            message = f"`{labels[k]}` is the label of row {labels.index(labels[k]) + 1} already: each row needs its own"
            yield Fault(place=("rows", k, "label"), message=message)
        if isinstance(against, str) and (against not in labels or against == labels[k]):
            others = [label for label in dict.fromkeys(labels) if label != labels[k]]
            message = f"there is no other row `{against}`.{did_you_mean(against, others)}"
            yield Fault(place=("rows", k, "against"), message=f"{message} Rows: {', '.join(others)}.")


def _other_problems(table: Published) -> Iterator[Fault]:
    places = {row.label: k for k, row in enumerate(table.rows)}
    for row, other in table.steps():
        if row.problems != other.problems:
            here, there = (NOT_STATED if n is None else str(n) for n in (row.problems, other.problems))
            message = (
                f"has problems: {here}, and `{other.label}`, with which it is compared, {there}; a step compares "
                "scores on the same problems: name another row in `against`, or make two tables"
            )
            yield Fault(place=("rows", places[row.label]), message=message)


def _folder() -> Path:
    return data_root("ablations") / "published"
