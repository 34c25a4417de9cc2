"""The report as text: Markdown, CSV and a terminal. Numbers and words come unchanged from the model."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from string import ascii_lowercase

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from paribus.report.model import Cell, ReportModel, Table

_SPECIAL = re.compile(r"([\\|*<>]|\](?=[(\[:]))")


APPENDIX = "report_appendix.md"
"""File of the tables that ``report.md`` leaves out."""


def to_markdown(model: ReportModel) -> str:
    """Return the answer, the main tables and the provenance; :func:`to_markdown_appendix` has the other tables."""
    status = f"{model.status.capitalize()}."
    main = model.main_tables()
    details = [t for t in model.tables if t not in main]
    parts = [f"# {escape_markdown(model.title)}", f"**{escape_markdown(model.question)}**" if model.question else ""]
    parts += [f"**{escape_markdown(model.answer)}**", *map(escape_markdown, model.totals)]
    parts += [status if model.complete else f"**{status}**"]
    parts += [table_to_markdown(t, i) for i, t in enumerate(main, 1) if t.lead]
    parts += [_contents(model, main, details)]
    if model.summary or model.words:
        parts += ["## In words", *map(escape_markdown, model.summary), _bullets(model.words)]
    if model.warnings:
        parts += ["## Caution", _bullets(model.warnings)]
    parts += [table_to_markdown(t, i) for i, t in enumerate(main, 1) if not t.lead]
    pairs = [_row([escape_markdown(k), escape_markdown(v)]) for k, v in model.provenance.items()]
    parts += ["## Provenance", "\n".join(["| what | value |", "|---|---|", *pairs])]
    return "\n\n".join(p for p in parts if p) + "\n"


def to_markdown_appendix(model: ReportModel) -> str:
    """Return the tables behind the main ones."""
    details = [t for t in model.tables if not t.main]
    parts = [f"# {escape_markdown(model.title)}: appendix", "The answer and the main tables: [report.md](report.md)."]
    parts += ["\n".join(f"- [{escape_markdown(t.title)}](#{_anchor(t.title)})" for t in details)]
    parts += [table_to_markdown(t, i) for i, t in enumerate(details, 1)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _contents(model: ReportModel, main: Sequence[Table], details: Sequence[Table]) -> str:
    """Return links to the sections of this file and to the tables of the appendix."""
    heads = [*(["In words"] if model.summary or model.words else []), *(["Caution"] if model.warnings else [])]
    heads += [*(t.title for t in main if not t.lead), "Provenance"]
    here = ", ".join(f"[{escape_markdown(head)}](#{_anchor(head)})" for head in heads)
    there = ", ".join(f"[{escape_markdown(t.title)}]({APPENDIX}#{_anchor(t.title)})" for t in details)
    return f"Contents: {here}." + (f"\n\nAppendix: {there}." if there else "")


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub and most renderers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def table_to_markdown(table: Table, place: int = 1) -> str:
    """Return one table with its question, footnotes of its columns (``[^1a]`` in the first table) and notes."""
    noted = [c for c in table.columns if c.note]
    marks = {c.key: f"[^{place}{letter}]" for c, letter in zip(noted, ascii_lowercase, strict=False)}
    heads = [escape_markdown(table.first)]
    heads += [
        escape_markdown(f"{c.label} ({c.unit})" if c.unit else c.label) + marks.get(c.key, "") for c in table.columns
    ]
    lines = [_row(heads), "|---|" + "---:|" * len(table.columns)]
    lines += [_row([escape_markdown(r.label), *(_markdown_cell(c) for c in r.cells)]) for r in table.rows]
    notes = [f"{marks[c.key]}: {escape_markdown(c.note)}" for c in noted]
    blocks = [f"## {escape_markdown(table.title)}", escape_markdown(table.answers), "\n".join(lines)]
    blocks += [_bullets(table.notes)] if table.notes else []
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])])


def escape_markdown(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped and backquoted names unchanged."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # an unpaired backquote marks no name
        return _plain_markdown("'".join(parts))
    return "".join(_name(p) if i % 2 else _plain_markdown(p) for i, p in enumerate(parts))


def _plain_markdown(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _name(text: str) -> str:
    """Return a backquoted name; in quotes if it has a backslash before a bar, which no code in a table can have."""
    bar = "\\|"
    return f"'{_plain_markdown(text)}'" if bar in text else f"`{text.replace('|', bar)}`"


def _markdown_cell(cell: Cell) -> str:
    text = f"**{escape_markdown(cell.text)}**" if cell.bold else escape_markdown(cell.text)
    return f"{text}<br>{escape_markdown(cell.note)}" if cell.note else text


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {escape_markdown(i)}" for i in items)


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
    "p_adjusted",
    "correction",
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
        cell.correction,
        cell.verdict,
        seeds,
    ]


def _safe(text: str) -> str:
    """Return the text with a leading quote if a spreadsheet would read it as a formula."""
    return f"'{text}" if text.startswith(("=", "@", "\t", "\r")) else text


_BEFORE_INTERVAL = re.compile(r" (?=\[|±|\(n=)")


GAP = 2
"""Spaces between columns."""


def to_terminal(model: ReportModel, width: int = 120) -> str:
    """Return question, answer, main tables and warnings as text at most ``width`` characters wide."""
    console = _console(width)
    with console.capture() as capture:
        lines = (model.title, model.question, model.answer, *model.totals, f"{model.status.capitalize()}.")
        for text in (*lines, *model.summary):
            console.print(text + "\n")
        printed: set[str] = set()
        for table in model.main_tables():
            console.print(table.title)
            for part in _fitting(table, width):
                console.print(_grid(part, width))
            notes = [f"  {n.replace('Bold marks', '◂ marks')}" for n in table.notes if n not in printed]
            console.print("\n".join([*notes, ""]) if notes else "")
            printed.update(table.notes)
        if model.warnings:
            console.print("Caution\n" + "\n".join(f"- {text}" for text in model.warnings) + "\n")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False)


def _fitting(table: Table, width: int) -> Iterator[Table]:
    """Yield a table in parts with as many columns as fit side by side without a broken word; each has all rows."""
    label = max(map(len, (table.first, *(row.label for row in table.rows))))
    room = width - GAP - min(label, width // 2)
    texts = [
        (c.label, c.unit, *(_cell_text(r.cells[i], "\n") for r in table.rows)) for i, c in enumerate(table.columns)
    ]
    least = [max(map(len, " ".join(column).split()), default=1) for column in texts]
    begin = 0
    while begin < len(least):
        end = begin + 1
        while end < len(least) and sum(least[begin : end + 1]) + GAP * (end + 1 - begin) <= room:
            end += 1
        rows = tuple(replace(row, cells=row.cells[begin:end]) for row in table.rows)
        yield replace(table, columns=table.columns[begin:end], rows=rows)
        begin = end


def _grid(table: Table, width: int) -> Grid:
    """Return the table with one line per row if that fits, or else with intervals below their values."""
    for split in ("", "\n"):
        heads = [table.first, *(f"{c.label}\n{c.unit}" if c.unit else c.label for c in table.columns)]
        rows = [[row.label, *(_cell_text(c, split) for c in row.cells)] for row in table.rows]
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


def _cell_text(cell: Cell, split: str) -> str:
    text = f"{cell.text} ◂" if cell.bold else cell.text
    if split:
        text = _BEFORE_INTERVAL.sub(split, text)
    return f"{text}\n{cell.note}" if cell.note else text
