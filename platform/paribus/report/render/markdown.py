"""The report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import ascii_lowercase

from paribus.report.model import Cell, ReportModel, Table

_SPECIAL = re.compile(r"([\\|*<>]|\](?=[(\[:]))")


def to_markdown(model: ReportModel) -> str:
    """Return the whole report without its figures."""
    parts = [f"# {escape(model.title)}", f"**{escape(model.question)}**" if model.question else "", _status(model)]
    parts += [escape(s) for s in model.summary]
    if model.words:
        parts += ["## In words", _bullets(model.words)]
    if model.warnings:
        parts += ["## Caution", _bullets(model.warnings)]
    parts += [table_to_markdown(t, i) for i, t in enumerate(model.tables, 1)]
    parts += ["## Provenance", "| what | value |\n|---|---|\n" + "\n".join(_pairs(model))]
    return "\n\n".join(p for p in parts if p) + "\n"


def table_to_markdown(table: Table, place: int = 1) -> str:
    """Return one table with its question, footnotes of its columns (``[^1a]`` in the first table) and notes."""
    noted = [c for c in table.columns if c.note]
    marks = {c.key: f"[^{place}{letter}]" for c, letter in zip(noted, ascii_lowercase, strict=False)}
    heads = [escape(table.first)]
    heads += [escape(f"{c.label} ({c.unit})" if c.unit else c.label) + marks.get(c.key, "") for c in table.columns]
    lines = [_row(heads), "|---|" + "---:|" * len(table.columns)]
    lines += [_row([escape(r.label), *(_cell(c) for c in r.cells)]) for r in table.rows]
    notes = [f"{marks[c.key]}: {escape(c.note)}" for c in noted]
    blocks = [f"## {escape(table.title)}", escape(table.answers), "\n".join(lines)]
    blocks += [_bullets(table.notes)] if table.notes else []
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])])


def escape(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped and backquoted names unchanged."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # an unpaired backquote marks no name
        return _SPECIAL.sub(r"\\\1", "'".join(parts))
    return "`".join(p.replace("|", "\\|") if i % 2 else _SPECIAL.sub(r"\\\1", p) for i, p in enumerate(parts))


def _cell(cell: Cell) -> str:
    text = f"**{escape(cell.text)}**" if cell.bold else escape(cell.text)
    return f"{text}<br>{escape(cell.note)}" if cell.note else text


def _status(model: ReportModel) -> str:
    return model.status.capitalize() + "." if model.complete else f"**{model.status.capitalize()}.**"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {escape(i)}" for i in items)


def _pairs(model: ReportModel) -> list[str]:
    return [_row([escape(k), escape(v)]) for k, v in model.provenance.items()]
