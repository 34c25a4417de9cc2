"""Published values beside a study's own: for orientation, without test, interval, star or bold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paribus.report.analysis import Analysis
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.text import NOT_APPLICABLE
from paribus.study.plan import Row
from paribus.study.published import Published

UNTESTED = (
    "Published values are single runs as far as their source says, so their training variance is unknown; model, data "
    "and evaluation are others than here. They are not tested, not ranked and never bold."
)

WITH_TRICKS = ("cumulative", "add_one", "leave_one_out", "pairs", "factorial", "fractional")
"""Kinds of designs whose rows are nothing but base and tricks."""


def reference_columns(analysis: Analysis, rows: Sequence[Row]) -> list[tuple[Column, list[Cell]]]:
    """Return a column for each published table that has a value for one of the rows, with a cell a row."""
    found = []
    for table in analysis.data.published if rows[0].kind in WITH_TRICKS else ():
        values = [table.value_of(frozenset(row.tricks)) for row in rows]
        if any(v is not None for v in values):
            found.append((_column(table), [_cell(v) for v in values]))
    return found


def reference_tables(analysis: Analysis) -> Iterable[Table]:
    """Yield each published table that was asked for, whole, with the rows of the study that have the same tricks."""
    named: dict[frozenset[str], str] = {}
    for row in analysis.plan.rows:
        if row.kind in WITH_TRICKS:
            named.setdefault(frozenset(row.tricks), row.label)
    for table in analysis.data.published:
        places = [named.get(frozenset(line.tricks)) for line in table.rows]
        yield Table(
            key=f"published.{table.name}",
            title=f"Published: {table.title}",
            answers=f"What does {table.source} report?",
            first="Row",
            columns=(
                Column(key="value", label=table.measure, unit=table.unit, note=f"{table.source}; {table.setting}"),
                Column(key="here", label="here", note="row of this study whose tricks have the same names"),
            ),
            rows=tuple(
                TableRow(label=line.label, cells=(_cell(line.value), Cell(text=place) if place else NOT_APPLICABLE))
                for line, place in zip(table.rows, places, strict=True)
            ),
            notes=(table.note, UNTESTED),
        )


def _column(table: Published) -> Column:
    note = f"{table.source}; {table.measure}, {table.setting}; tricks of the same names, nothing else in common"
    return Column(key=f"published.{table.name}", label=f"published: {table.title}", unit=table.unit, note=note)


def _cell(value: float | None) -> Cell:
    return NOT_APPLICABLE if value is None else Cell(text=f"{value:g}", value=stored(value))
