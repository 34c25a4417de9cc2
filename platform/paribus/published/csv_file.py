"""A CSV table as the values of a YAML document, each cell with its line and column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paribus.errors import Problem, StudyFileError, did_you_mean
from paribus.yaml_file.document import Entry, Mark, Node, read_text

COLUMNS = ("label", "value", "problems", "samples", "seeds", "seed_sd", "against")
"""Allowed columns, in any order; the first two are needed."""

MAX_DIGITS = 18
"""Most digits of a whole number in a table."""

_TEXT = ("label", "against")
_INT = re.compile(r"[0-9]+$")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$")
_CELL = re.compile(r'[ \t]*(?:"((?:[^"]|"")*)"[ \t]*(?=,|$)|([^,]*))(,|$)')
"""A cell and what ends it: quoted, with doubled quotes inside, or up to the next comma."""


def read_csv(path: Path) -> Node:
    """Return ``{rows: [...]}`` as a YAML file would hold it; cells without text are left out.

    Raises:
        StudyFileError: the file cannot be read, or its header or rows are wrong; all that is found is listed.
    """
    text = read_text(path)
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise StudyFileError(str(path), [Problem(message=f"the file is empty; the first line names {_allowed()}")])
    problems: list[Problem] = []
    names = _header(*lines[0], problems)
    rows = [_row(n, line, names, problems) for n, line in lines[1:]]
    if problems:
        raise StudyFileError(str(path), problems)
    top = Mark(lines[0][0], 1)
    return Node({"rows": Entry(top, Node(tuple(rows), top))}, top)


def _header(number: int, line: str, problems: list[Problem]) -> list[str]:
    cells = _cells(number, line, problems)
    names = [name for name, _ in cells]
    for k, (name, column) in enumerate(cells):
        if name not in COLUMNS:
            message = f"unknown column `{name}`.{did_you_mean(name, COLUMNS)} Allowed: {_allowed()}"
            problems.append(Problem(message=message, line=number, column=column))
        elif name in names[:k]:
            message = f"the column `{name}` stands twice"
            problems.append(Problem(message=message, line=number, column=column))
    missing = [name for name in COLUMNS[:2] if name not in names]
    problems += [Problem(message=f"the column `{name}` is missing", line=number, column=1) for name in missing]
    return names


def _row(number: int, line: str, names: list[str], problems: list[Problem]) -> Node:
    cells = _cells(number, line, problems)
    if len(cells) != len(names):
        message = f"has {len(cells)} cells, and the header {len(names)}; put a cell with a comma in double quotes"
        problems.append(Problem(message=message, line=number, column=1))
    found = {}
    for name, (text, column) in zip(names, cells, strict=False):
        if text:
            mark = Mark(number, column)
            if name not in _TEXT and _INT.match(text) and len(text) > MAX_DIGITS:
                problems.append(Problem(message=too_long(len(text)), line=number, column=column))
                continue
            found[name] = Entry(mark, Node(_value(name, text), mark))
    return Node(found, Mark(number, 1))


def _cells(number: int, line: str, problems: list[Problem]) -> list[tuple[str, int]]:
    """Return the cells of a line, each with its column."""
    found, place = [], 0
    while True:
        match = _CELL.match(line, place)
        assert match is not None  # the second form matches anything
        quoted, bare, end = match.groups()
        text = bare.strip() if quoted is None else quoted.replace('""', '"').strip()
        column = place + len(match[0]) - len(match[0].lstrip(" \t")) + 1
        if quoted is None and '"' in text:
            message = (
                'a double quote stands inside of a cell: put the whole cell in double quotes, and write `""` in it'
            )
            problems.append(Problem(message=message, line=number, column=column))
        found.append((text, column))
        place = match.end()
        if end == "":
            return found


def _value(name: str, text: str) -> Any:
    if name in _TEXT:
        return text
    if _INT.match(text):
        return int(text)
    return float(text) if _NUMBER.match(text) else text


def too_long(digits: int) -> str:
    """Return the message about a whole number of so many digits."""
    return f"a number of {digits:,} digits is too long: write at most {MAX_DIGITS}"


def _allowed() -> str:
    return ", ".join(f"`{name}`" for name in COLUMNS)
