"""The main tables as plain text for a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from paribus.report.model import Cell, ReportModel, Table

_BEFORE_INTERVAL = re.compile(r" (?=\[|±|\(n=)")


GAP = 2
"""Spaces between columns."""


def to_terminal(model: ReportModel, width: int = 120) -> str:
    """Return question, answer, main tables and warnings as text at most ``width`` characters wide."""
    console = _console(width)
    with console.capture() as capture:
        for text in (model.title, model.question, f"{model.status.capitalize()}.", *model.summary):
            console.print(text + "\n")
        printed: set[str] = set()
        for table in model.main_tables():
            console.print(table.title)
            console.print(_grid(table, width))
            notes = [f"  {n.replace('Bold marks', '◂ marks')}" for n in table.notes if n not in printed]
            console.print("\n".join([*notes, ""]) if notes else "")
            printed.update(table.notes)
        if model.warnings:
            console.print("Caution\n" + "\n".join(f"- {text}" for text in model.warnings) + "\n")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False)


def _grid(table: Table, width: int) -> Grid:
    """Return the table with one line per row if that fits, or else with intervals below their values."""
    for split in ("", "\n"):
        heads = [table.first, *(f"{c.label}\n{c.unit}" if c.unit else c.label for c in table.columns)]
        rows = [[row.label, *(_cell(c, split) for c in row.cells)] for row in table.rows]
        columns = list(zip(heads, *rows, strict=True))
        room = width - GAP * len(columns)
        widths = _widths(columns, room)
        if sum(max(len(line) for text in texts for line in text.split("\n")) for texts in columns) <= room:
            break
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.padding = (0, 1, 0, 0)
    for i, (head, size) in enumerate(zip(heads, widths, strict=True)):
        grid.add_column(Text(head), justify="right" if i else "left", width=size, overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return column widths that fit together; the columns with most room beyond their longest word shrink first."""
    widths = [max(len(line) for text in texts for line in text.split("\n")) for texts in columns]
    words = [max((len(word) for text in texts for word in text.split()), default=1) for texts in columns]
    words[0] = widths[0]  # row labels stay unbroken as long as possible
    while sum(widths) > room and max(widths) > 1:
        spare = [w - least for w, least in zip(widths, words, strict=True)]
        widest = spare.index(max(spare)) if max(spare) > 0 else widths.index(max(widths))
        widths[widest] -= 1
    return widths


def _cell(cell: Cell, split: str) -> str:
    text = f"{cell.text} ◂" if cell.bold else cell.text
    if split:
        text = _BEFORE_INTERVAL.sub(split, text)
    return f"{text}\n{cell.note}" if cell.note else text
