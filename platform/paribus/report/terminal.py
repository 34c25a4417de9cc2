"""The main tables as plain text for a terminal."""

from __future__ import annotations

import io
import re

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from paribus.report.model import Cell, ReportModel, Table

_BEFORE_INTERVAL = re.compile(r" (?=\[|±)")


def to_terminal(model: ReportModel, width: int = 120) -> str:
    """Return question, answer, main tables and warnings as text at most ``width`` characters wide."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    for text in (model.title, model.question, f"{model.status.capitalize()}.", *model.summary):
        console.print(text + "\n")
    told: set[str] = set()
    for table in model.main_tables():
        console.print(_fitting(console, table, width))
        console.print("\n".join(f"  {n.replace('Bold:', '◂')}" for n in table.notes if n not in told) + "\n")
        told.update(table.notes)
    if model.warnings:
        console.print("Caution\n" + "\n".join(f"- {text}" for text in model.warnings) + "\n")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _fitting(console: Console, table: Table, width: int) -> Grid:
    """Return the widest layout that fits: all in one line, intervals below their values, or words cut as need be."""
    candidates = (_grid(table, ""), _grid(table, "\n"), _grid(table, "\n", whole_words=False))
    free = console.options.update(width=10 * width)
    if Measurement.get(console, free, candidates[0]).maximum <= width:
        return candidates[0]
    return next((g for g in candidates[1:] if Measurement.get(console, free, g).minimum <= width), candidates[-1])


def _grid(table: Table, split: str, *, whole_words: bool = True) -> Grid:
    """Return the table; with ``split`` a new line, intervals stand below their values."""
    grid = Grid(box=box.SIMPLE_HEAD, title=table.title, title_justify="left", title_style="", pad_edge=False)
    grid.padding = (0, 1, 0, 0)
    grid.add_column(table.first, no_wrap=whole_words)
    for i, column in enumerate(table.columns):
        head = f"{column.label}\n{column.unit}" if column.unit else column.label
        cells = [_cell(row.cells[i], split) for row in table.rows]
        longest = max(len(word) for text in (head, *cells) for word in text.split())
        grid.add_column(Text(head), justify="right", min_width=longest if whole_words else None, overflow="fold")
    for row in table.rows:
        grid.add_row(Text(row.label), *(Text(_cell(c, split)) for c in row.cells))
    return grid


def _cell(cell: Cell, split: str) -> str:
    text = f"{cell.text} ◂" if cell.bold else cell.text
    if split:
        text = _BEFORE_INTERVAL.sub(split, text)
    return f"{text}\n{cell.note}" if cell.note else text
