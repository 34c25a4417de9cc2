"""Reads the logs of other trainers: TRL's ``trainer_state.json``, JSON lines, JSON lists and CSV files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import LogFileError
from paribus.health.mapping import Mapped, map_keys
from paribus.track.folder import MetricLine

LARGEST = 1 << 30
"""Bytes of the largest file that is read."""

_STEPS = ("step", "_step", "global_step", "train/global_step", "training/global_step", "trainer/global_step")
_MARKS = (",", ";", "\t")
_NESTED = ("data", "metrics", "values")

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log in canonical metrics.

    Attributes:
        lines: one a step, by step.
        mapped: how the names were read.
    """

    lines: tuple[MetricLine, ...]
    mapped: Mapped


def read_log(path: Path, trainer: str | None = None) -> Log:
    """Return the metrics in a file.

    Args:
        path: ``.json``, ``.jsonl`` or ``.csv``.
        trainer: whose names they are; absent: whoever knows most of them.

    Raises:
        LogFileError: the file cannot be read, or holds no metrics that are known.
    """
    text = _text(path)
    if path.suffix == ".csv":
        records = _of_csv(text, path)
    elif path.suffix == ".json":
        records = _of_json(text, path)
    else:
        records = _of_lines(text, path)
    return canonical(by_step(records, str(path)), str(path), trainer)


def canonical(steps: Mapping[int, Mapping[str, float]], place: str, trainer: str | None) -> Log:
    """Return the log with canonical names.

    Args:
        steps: step to the trainer's names and values.
        place: the log, for messages.
        trainer: whose names they are; absent: whoever knows most of them.

    Raises:
        LogFileError: no name is known.
    """
    mapped = map_keys({k for values in steps.values() for k in values}, place, trainer)
    read = ((step, mapped.read(steps[step])) for step in sorted(steps))
    return Log(lines=tuple(MetricLine(step=s, time_ms=0, values=v) for s, v in read if v), mapped=mapped)


def by_step(records: Iterable[tuple[str, Record]], place: str) -> dict[int, dict[str, float]]:
    """Return step to numbers; what is logged twice for a step counts as it was logged last.

    Raises:
        LogFileError: a record has a step that is no whole number, or none has a step.
    """
    found: dict[int, dict[str, float]] = {}
    for where, record in records:
        key = next((k for k in _STEPS if k in record), None)
        if key is None:
            continue
        step = _number(record[key])
        if step is None or not step.is_integer():
            raise LogFileError(f"{where}: the step is {record[key]!r}, and must be a whole number")
        inner = next((record[k] for k in _NESTED if isinstance(record.get(k), Mapping)), record)
        numbers = {str(k): n for k, v in inner.items() if k not in _STEPS and (n := _number(v)) is not None}
        found.setdefault(int(step), {}).update(numbers)
    if not found:
        raise LogFileError(f"{place}: no record has a step: one of {', '.join(_STEPS)} is needed")
    return found


def _number(value: object) -> float | None:
    """Return the number, also one that is written as text; ``None`` if it is none. Booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return -math.inf if str(value).startswith("-") else math.inf
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise LogFileError(f"{path}: the file is larger than {LARGEST >> 20} MB, which is the most that is read")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LogFileError(f"{path}: not a text file: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise LogFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _of_json(text: str, path: Path) -> list[tuple[str, Record]]:
    raw = _loads(text, str(path))
    records = raw.get("log_history") if isinstance(raw, dict) else raw
    if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        raise LogFileError(f"{path}: neither a `trainer_state.json` with `log_history` nor a list of records")
    return [(f"{path}, record {i}", r) for i, r in enumerate(records, 1)]


def _of_lines(text: str, path: Path) -> list[tuple[str, Record]]:
    """Return the records; a last line without its end is being written and left out, unless it is whole."""
    found: list[tuple[str, Record]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = _loads(line, place)
        except LogFileError:
            if number == len(lines) and found:
                break
            raise
        if not isinstance(record, dict):
            raise LogFileError(f"{place}: not an object: each line is one, as in {{'step': 1, 'reward': 0.5}}")
        found.append((place, record))
    return found


def _loads(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LogFileError(f"{place}: not JSON: {error}") from error


def _of_csv(text: str, path: Path) -> list[tuple[str, Record]]:
    """Return the rows; where a semicolon parts the columns, as spreadsheets write it, a comma may part the decimals."""
    try:
        header, mark = _header(text)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row][1:]
    except csv.Error as error:
        raise LogFileError(f"{path}: not a CSV file: {error}") from error
    if mark == ";":
        rows = [[cell.replace(",", ".") for cell in row] for row in rows]
    return [(f"{path}:{i}", dict(zip(header, row, strict=False))) for i, row in enumerate(rows, 2)]


def _header(text: str) -> tuple[list[str], str]:
    """Return the names of the columns and what parts them: the first mark under which one of them is the step."""
    found = []
    for mark in _MARKS:
        names = next((row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row), [])
        found.append(([name.strip() for name in names], mark))
    return next((f for f in found if not set(_STEPS).isdisjoint(f[0])), found[0])
