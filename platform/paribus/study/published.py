"""Published tables from ``ablations/published/*.yaml``: shown beside a study, never tested against."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from paribus.errors import ParibusError, StudyFileError, did_you_mean
from paribus.home import data_root
from paribus.yaml_file.document import Fault, plain, read_document
from paribus.yaml_file.messages import explain, validate


class PublishedRow(BaseModel):
    """One row: what it is called, its score, and its tricks by the names that a study has to use to be put beside."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    label: str
    value: float
    tricks: tuple[str, ...]


class Published(BaseModel):
    """A table as its source prints it; each row a single run unless its note says otherwise.

    Attributes:
        name: what a study writes.
        title: what it is called.
        source: paper and place in it.
        measure: benchmark and metric.
        unit: unit of the values.
        setting: model and data.
        rows: in the order of the source.
        note: how to read it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    title: str
    source: str
    measure: str
    unit: str
    setting: str
    rows: tuple[PublishedRow, ...]
    note: str

    def value_of(self, tricks: frozenset[str]) -> float | None:
        """Return the score with exactly these tricks; ``None`` if there is no such row."""
        return next((row.value for row in self.rows if frozenset(row.tricks) == tricks), None)


@cache
def published_names() -> tuple[str, ...]:
    """Return the names of all tables, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def unknown_published(name: str) -> str:
    """Return that there is no table of this name, and which there are; empty if there is one."""
    names = published_names()
    if name in names:
        return ""
    return f"there is no published table `{name}`.{did_you_mean(name, names)} Tables: {', '.join(names)}."


@cache
def load_published(name: str) -> Published:
    """Return a published table.

    Raises:
        ParibusError: no table has this name; the message lists the tables.
        StudyFileError: its file is wrong.
    """
    if problem := unknown_published(name):
        raise ParibusError(problem)
    path = _folder() / f"{name}.yaml"
    root = read_document(path).checked()
    try:
        return validate(Published, {"name": name, **plain(root)})
    except ValidationError as error:
        fields = tuple(PublishedRow.model_fields)
        faults = [Fault(place=e["loc"], message=explain(e, fields)) for e in error.errors()]
        raise StudyFileError(str(path), [fault.problem(root) for fault in faults]) from error


def _folder() -> Path:
    return data_root("ablations") / "published"
