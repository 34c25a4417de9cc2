"""The tables as CSV, one line per cell. The numbers are the model's."""

from __future__ import annotations

import csv
import io

from paribus.report.model import Cell, ReportModel

FIELDS = (
    "table",
    "row",
    "column",
    "unit",
    "text",
    "note",
    "value",
    "low",
    "high",
    "n",
    "p",
    "p_holm",
    "verdict",
    "seeds",
)
"""Columns of the file; ``seeds`` holds ``seed=value`` pairs separated by spaces."""


def to_csv(model: ReportModel) -> str:
    """Return all tables of the model, one line per cell; fields without a number are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for table in model.tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                writer.writerow([table.key, _safe(row.label), column.key, column.unit, *_fields(cell)])
    return out.getvalue()


def _fields(cell: Cell) -> list[str]:
    numbers = (cell.value, cell.low, cell.high, cell.n, cell.p, cell.p_adjusted)
    seeds = " ".join(f"{seed}={value!r}" for seed, value in cell.seeds)
    return [
        _safe(cell.text),
        _safe(cell.note),
        *("" if x is None else repr(x) for x in numbers),
        cell.verdict,
        seeds,
    ]


def _safe(text: str) -> str:
    """Return the text with a leading quote if a spreadsheet would read it as a formula."""
    return f"'{text}" if text.startswith(("=", "@", "\t", "\r")) else text
