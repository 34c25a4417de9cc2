"""Files that trainers and trackers write, as records: a step, and the metrics of that step.

TRL's folders and ``trainer_state.json``, JSON lines, JSON lists, consoles of verl and transformers, CSV of W&B,
TensorBoard and MLflow, also compressed with gzip; folders of MLflow, and W&B's own files.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import LogFileError
from paribus.health import wandb_history
from paribus.health.consoles import Record, read_console
from paribus.run_folder.json_text import shown

LARGEST = 1 << 30
"""Bytes of the largest file that is read, after decompression."""

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".log", ".txt", ".out", ".gz", wandb_history.SUFFIX)
"""Endings of the files that can be logs."""

STEPS = ("step", "_step", "global_step", "train/global_step", "training/global_step", "trainer/global_step", "Step",
         "rollout/step", "train/step", "eval/step", "global_step/max_steps", "train/learning_round")  # fmt: skip
_OF_ALL = re.compile(r"\s*(\d+)\s*/\s*\d+\s*")
"""A step of all steps, as ms-swift logs it: ``240/960``."""
_MARKS = (",", ";", "\t")
_MARKED = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte-order marks, as PowerShell and spreadsheets write them, and what follows them."""
_RUNS = ("run_id", "run_uuid", "run_name", "run")
"""Columns of CSV files that say whose row it is."""

_NESTED = ("data", "metrics", "values")

_MOST_STEP = 2.0**53
"""From here on a float no longer has all whole numbers."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """What was read of a log.

    Attributes:
        records: with their places.
        notes: what the reader assumed, as sentences.
        trouble: what looks like metrics and cannot be read; empty: nothing.
    """

    records: Sequence[tuple[str, Record]]
    notes: tuple[str, ...] = ()
    trouble: str = ""


def find_log(folder: Path) -> Path | None:
    """Return the log in a folder: of TRL's checkpoints the newest, an MLflow run, or a file of W&B."""
    states = [*folder.glob("trainer_state.json"), *folder.glob("checkpoint-*/trainer_state.json")]
    if states:
        return max(states, key=lambda p: _checkpoint(p.parent.name))
    if (folder / "metrics").is_dir():
        return folder
    runs = sorted(
        {p.parent.parent for p in folder.glob("*/*/metrics/*")} | {p.parent.parent for p in folder.glob("*/metrics/*")}
    )
    if len(runs) > 1:
        shown = ", ".join(str(r) for r in runs[:3])
        raise LogFileError(f"{folder}: has {len(runs)} runs of MLflow, such as {shown}; name one of them")
    return runs[0] if runs else wandb_history.file_in(folder)


def event_folder(folder: Path) -> Path | None:
    """Return the folder with TensorBoard event files at or below a folder, at most three levels deep.

    Writers put more event files below the folder of a run, of its settings for example: those are left out.

    Raises:
        LogFileError: several folders have event files: they are several runs.
    """
    files = [f for depth in ("", "*/", "*/*/", "*/*/*/") for f in folder.glob(f"{depth}*tfevents*")]
    known = {f.parent for f in files}
    runs = sorted(run for run in known if known.isdisjoint(run.parents))
    if len(runs) > 1:
        named = ", ".join(str(run) for run in runs[:3])
        raise LogFileError(f"{folder}: has {len(runs)} runs of TensorBoard, such as {named}; name one of them")
    return runs[0] if runs else None


def _checkpoint(name: str) -> float:
    """Return the step of a checkpoint's folder; the folder of the training comes last."""
    found = re.fullmatch(r"checkpoint-(\d+)", name)
    return float(found[1]) if found else math.inf


def read_file(path: Path) -> Read:
    """Return the records of a file, or of an MLflow run's folder, with their places.

    Raises:
        LogFileError: it cannot be read, or is no log.
    """
    if path.is_dir():
        return Read(records=_of_mlflow(path))
    if path.suffix == wandb_history.SUFFIX:
        return _of_wandb(path)
    text, name = _text(path), path.with_suffix("") if path.suffix == ".gz" else path
    if not text.strip():
        raise LogFileError(f"{path}: the file is empty. Has the trainer written nothing yet?")
    if name.suffix == ".csv":
        return Read(records=_of_csv(text, path))
    if name.suffix == ".json":
        return Read(records=_of_json(text, path))
    if name.suffix not in (".log", ".txt", ".out"):
        return Read(records=_of_lines(text, path))
    console = read_console(text, path, STEPS)
    if not console.records:
        bad = f"; {console.trouble}" if console.trouble else ""
        raise LogFileError(f"{path}: no line has metrics as verl or transformers print them, or as JSON{bad}")
    return Read(records=console.records, notes=console.notes, trouble=console.trouble)


def _of_wandb(path: Path) -> Read:
    """Return the history of a W&B file; W&B's own count of log calls is no step where the trainer logs one."""
    found = wandb_history.read_history(path)
    own = [key for key in STEPS if key != "_step"]
    records = [
        (place, {k: v for k, v in r.items() if k != "_step" or not any(key in r for key in own)})
        for place, r in found.records
    ]
    cut = f"{path}: ends with bytes that are no whole record, as of a run that was killed or goes on; what stands "
    return Read(records=records, notes=(f"{cut}before is read",) if found.cut else ())


def by_step(records: Iterable[tuple[str, Record]], place: str) -> dict[int, dict[str, float]]:
    """Return step to numbers; if a metric is logged twice for a step, the later value counts.

    Raises:
        LogFileError: a step is not a whole number, or no record has a step.
    """
    found: dict[int, dict[str, float]] = {}
    for where, record in records:
        key = next((k for k in STEPS if k in record), None)
        if key is None:
            continue
        of_all = _OF_ALL.fullmatch(record[key]) if isinstance(record[key], str) else None
        step = _number(of_all[1] if of_all else record[key])
        if step is None or not step.is_integer() or abs(step) >= _MOST_STEP:
            raise LogFileError(f"{where}: the step is {shown(record[key])}; it must be a whole number below 2^53")
        inner = next((record[k] for k in _NESTED if isinstance(record.get(k), Mapping)), record)
        numbers = {str(k): n for k, v in inner.items() if k not in STEPS and (n := _number(v)) is not None}
        found.setdefault(int(step), {}).update(numbers)
    if not found:
        raise LogFileError(f"{place}: no record has a step; it must have one of the keys {', '.join(STEPS)}")
    return found


def _number(value: object) -> float | None:
    """Return a number, or a text that is one, as a float; else ``None``. Booleans aren't numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return -math.inf if str(value).startswith("-") else math.inf
    except ValueError:
        return None


def _encoding(start: bytes) -> str:
    """Return the encoding of a text by its byte-order mark; UTF-8 without one."""
    return next((name for mark, name in _MARKED if start.startswith(mark)), "utf-8-sig")


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise LogFileError(f"{path}: the file is larger than {LARGEST >> 20} MB, the limit")
        if path.suffix != ".gz":
            with path.open("rb") as plain:
                encoding = _encoding(plain.read(4))
            return path.read_text(encoding=encoding)
        with gzip.open(path) as file:
            size = 0
            while piece := file.read(1 << 20):  # its size is known before it is in memory
                if (size := size + len(piece)) > LARGEST:
                    raise LogFileError(
                        f"{path}: the file is larger than {LARGEST >> 20} MB without compression, the limit"
                    )
            file.seek(0)
            data = file.read()
            return data.decode(_encoding(data[:4]))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise LogFileError(f"{path}: not a gzip file: {error}") from error
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise LogFileError(
            f"{path}: not a text file, or one in an unknown encoding: {where}; save a text as UTF-8"
        ) from error
    except OSError as error:
        raise LogFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _of_json(text: str, path: Path) -> list[tuple[str, Record]]:
    raw = _loads(text, str(path))
    records = raw.get("log_history") if isinstance(raw, dict) else raw
    if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        raise LogFileError(f"{path}: neither a `trainer_state.json` with `log_history` nor a list of records")
    return [(f"{path}, record {i}", r) for i, r in enumerate(records, 1)]


def _of_lines(text: str, path: Path) -> list[tuple[str, Record]]:
    """Return the records; an incomplete last line is ignored, as it is still being written."""
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
            raise LogFileError(f'{place}: not an object; each line must be one, such as {{"step": 1, "reward": 0.5}}')
        found.append((place, record))
    return found


def _loads(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LogFileError(f"{place}: not JSON: {error}") from error


def _of_csv(text: str, path: Path) -> list[tuple[str, Record]]:
    """Return the rows; if semicolons separate columns, as some spreadsheets write them, decimals can have a comma."""
    try:
        header, mark = _header(text)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row][1:]
    except csv.Error as error:
        raise LogFileError(f"{path}: not a CSV file: {error}") from error
    if mark == ";":
        rows = [[cell.replace(",", ".") for cell in row] for row in rows]
    _check_one_run(header, rows, path)
    places = [f"{path}:{i}" for i in range(2, len(rows) + 2)]
    if {"step", "value"} <= {h.lower() for h in header}:
        return [(p, _long_row(dict(zip(header, row, strict=False)), path)) for p, row in zip(places, rows, strict=True)]
    names = _panel_names(header, path)
    return [
        (p, {names[h]: cell for h, cell in zip(header, row, strict=False) if h in names})
        for p, row in zip(places, rows, strict=True)
    ]


def _check_one_run(header: Sequence[str], rows: Iterable[Sequence[str]], path: Path) -> None:
    """Raise an error if a column says that rows are of several runs: together they would be judged as one."""
    column = next((i for name in _RUNS for i, h in enumerate(header) if h.lower() == name), None)
    if column is None:
        return
    runs = dict.fromkeys(row[column] for row in rows if len(row) > column and row[column])
    if len(runs) > 1:
        named = ", ".join(shown(run) for run in list(runs)[:3])
        raise LogFileError(
            f"{path}: has rows of {len(runs)} runs (column `{header[column]}`), such as {named}; export one of them"
        )


def _long_row(row: Mapping[str, str], path: Path) -> Record:
    """Return a row with one value: its metric has a column, as MLflow's, or is in the file's name, as TensorBoard's."""
    lower = {k.lower(): v for k, v in row.items()}
    if not {"step", "value"} <= lower.keys():  # a row that was cut
        return {}
    named = next((lower[k] for k in ("key", "metric", "tag") if k in lower), None)
    if named is None:
        tag = path.name.removesuffix(".gz").removesuffix(".csv").rpartition("tag-")[2]
        named = tag.replace("_", "/", 1) if "tag-" in path.name else tag
    return {"step": lower["step"], named: lower["value"]}


def _panel_names(header: Iterable[str], path: Path) -> dict[str, str]:
    """Return column to metric; W&B's panels have columns `RUN - METRIC`, and the least and largest value beside."""
    columns = [h for h in header if not h.endswith(("__MIN", "__MAX"))]
    parts = {h: h.rpartition(" - ") for h in columns}
    runs = {before for before, mark, _ in parts.values() if mark}
    if len(runs) > 1:
        raise LogFileError(
            f"{path}: has columns of {len(runs)} runs, such as {shown(sorted(runs)[0])}; export one of them"
        )
    return {h: name for h, (_, _, name) in parts.items()}


def _header(text: str) -> tuple[list[str], str]:
    """Return the column names and the separator: the first one that gives a step column."""
    found = []
    for mark in _MARKS:
        names = next((row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row), [])
        found.append(([name.strip() for name in names], mark))
    return next((f for f in found if not set(STEPS).isdisjoint(f[0])), found[0])


def _of_mlflow(folder: Path) -> list[tuple[str, Record]]:
    """Return the metrics of a run that MLflow keeps as files: a file a metric, with lines `time value step`."""
    found: list[tuple[str, Record]] = []
    for path in sorted((folder / "metrics").rglob("*")):
        name = str(path.relative_to(folder / "metrics"))
        if path.is_file():
            for number, line in enumerate(_text(path).splitlines(), 1):
                parts = line.split()
                if len(parts) < 3:
                    raise LogFileError(f"{path}:{number}: must have a time, a value and a step")
                found.append((f"{path}:{number}", {"step": parts[2], name: parts[1]}))
    return found
