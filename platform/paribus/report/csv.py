"""The report as long, tidy CSV: one line a cell. Numbers are the model's, unrounded by layout."""

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
"""Columns of the file; ``seeds`` holds ``seed=value`` pairs separated by blanks."""


def to_csv(model: ReportModel) -> str:
    """Return all tables of the model, one line a cell, empty where there is no number."""
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
    """Return the text so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text.startswith(("=", "@", "\t", "\r")) else text
