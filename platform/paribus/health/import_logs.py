"""Reads the metrics of other trainers, with canonical names.

Files: TRL's ``trainer_state.json``, JSON lines, JSON lists, CSV. Trackers: TensorBoard event files and MLflow runs,
whose packages are optional. ``mapping.yaml`` maps each trainer's metric names to the canonical ones.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from paribus.errors import LogFileError, MissingExtra
from paribus.health.signals import SIGNALS
from paribus.run_folder.folder import MetricLine
from paribus.run_folder.metrics import Source, find_metric
from paribus.yaml_file.document import plain, read_document

PARIBUS = "paribus"
"""The trainer of logs that use the canonical names."""

LARGEST = 1 << 30
"""Bytes of the largest file that is read."""

_STEPS = ("step", "_step", "global_step", "train/global_step", "training/global_step", "trainer/global_step")
_MARKS = (",", ";", "\t")
_NESTED = ("data", "metrics", "values")

Record = Mapping[str, Any]


_CHANGES: Mapping[str, Callable[[float], float]] = {
    "": lambda x: x,
    "one_minus": lambda x: 1 - x,
    "minus_one": lambda x: x - 1,
    "percent": lambda x: x / 100,
}


@dataclass(frozen=True, kw_only=True)
class KeyMapping:
    """Where a canonical metric comes from in one trainer's logs.

    Attributes:
        keys: names in the log, or patterns with ``*``; the first that exists is used.
        tag: the source of the values, ``exact`` or ``proxy``.
        change: how the value is converted, a key of ``_CHANGES``.
    """

    keys: tuple[str, ...]
    tag: Source = "exact"
    change: str = ""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """How the metrics of one log are mapped.

    Attributes:
        trainer: the trainer whose names they are.
        keys: name in the log to canonical metric and its mapping.
        unread: names without a canonical metric, sorted.
    """

    trainer: str
    keys: Mapping[str, tuple[str, KeyMapping]]
    unread: tuple[str, ...]

    @property
    def proxies(self) -> tuple[str, ...]:
        """The canonical metrics whose values are only close to their definition."""
        return tuple(sorted(name for name, source in self.keys.values() if source.tag == "proxy"))

    def read(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the canonical metrics of one record."""
        found = ((self.keys[k], v) for k, v in values.items() if k in self.keys)
        return {name: _CHANGES[source.change](v) for (name, source), v in found}


@cache
def mappings() -> Mapping[str, Mapping[str, KeyMapping]]:
    """Return trainer to canonical metric to where it comes from."""
    raw: Any = plain(read_document(Path(__file__).parent / "mapping.yaml").checked())
    return {
        trainer: {m: KeyMapping(**{**s, "keys": tuple(s["keys"])}) for m, s in table.items()}
        for trainer, table in raw.items()
    }


def map_keys(keys: Iterable[str], place: str, trainer: str | None = None) -> Mapped:
    """Return how to read a log with these metric names.

    Args:
        keys: all metric names of the log.
        place: the log, for messages.
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        LogFileError: no name is known.
    """
    names = sorted(set(keys))
    tables = {name: _mapped(name, names) for name in (PARIBUS, *mappings()) if trainer in (None, name)}
    best = max(tables.values(), key=lambda m: len(m.keys))
    if not best.keys:
        shown = ", ".join(f"`{n}`" for n in names[:5]) or "no metrics"
        wanted = trainer or ", ".join(tables)
        raise LogFileError(
            f"{place}: has no metric of {wanted}, but {shown}. docs/reference/health.md lists the known names"
        )
    return best


def _mapped(trainer: str, names: list[str]) -> Mapped:
    found: dict[str, tuple[str, KeyMapping]] = {}
    if trainer == PARIBUS:
        found = {n: (n, KeyMapping(keys=(n,))) for n in names if find_metric(n) is not None or n in SIGNALS}
    known = {**{_as_in_trackers(n): n for n in names}, **{n: n for n in names}}  # unchanged names take precedence
    for metric, source in mappings().get(trainer, {}).items():
        hits = [known[k] for pattern in source.keys for k in sorted(known) if fnmatchcase(k, pattern)]
        if hits:
            found[hits[0]] = (metric, source)
    return Mapped(trainer=trainer, keys=found, unread=tuple(n for n in names if n not in found))


def _as_in_trackers(name: str) -> str:
    """Undo the renaming by the loggers of transformers for W&B and TensorBoard: ``train/`` and ``eval/``."""
    return f"eval_{name[5:]}" if name.startswith("eval/") else name.removeprefix("train/")


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log in canonical metrics.

    Attributes:
        lines: one per step, by step.
        mapped: how the names were mapped.
    """

    lines: tuple[MetricLine, ...]
    mapped: Mapped


def read_log(path: Path, trainer: str | None = None) -> Log:
    """Return the metrics in a file, with canonical names.

    Args:
        path: ``.json``, ``.jsonl`` or ``.csv``.
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        LogFileError: the file cannot be read, or has no known metrics.
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
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        LogFileError: no name is known.
    """
    mapped = map_keys({k for values in steps.values() for k in values}, place, trainer)
    proxies: dict[str, Source] = dict.fromkeys(mapped.proxies, "proxy")
    read = ((step, mapped.read(steps[step])) for step in sorted(steps))
    lines = (
        MetricLine(step=s, time_ms=0, values=v, sources={k: proxies[k] for k in proxies if k in v})
        for s, v in read
        if v
    )
    return Log(lines=tuple(lines), mapped=mapped)


def by_step(records: Iterable[tuple[str, Record]], place: str) -> dict[int, dict[str, float]]:
    """Return step to numbers; if a metric is logged twice for a step, the later value counts.

    Raises:
        LogFileError: a step is not a whole number, or no record has a step.
    """
    found: dict[int, dict[str, float]] = {}
    for where, record in records:
        key = next((k for k in _STEPS if k in record), None)
        if key is None:
            continue
        step = _number(record[key])
        if step is None or not step.is_integer():
            raise LogFileError(f"{where}: the step is {record[key]!r}; it must be a whole number")
        inner = next((record[k] for k in _NESTED if isinstance(record.get(k), Mapping)), record)
        numbers = {str(k): n for k, v in inner.items() if k not in _STEPS and (n := _number(v)) is not None}
        found.setdefault(int(step), {}).update(numbers)
    if not found:
        raise LogFileError(f"{place}: no record has a step; it must have one of the keys {', '.join(_STEPS)}")
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


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise LogFileError(f"{path}: the file is larger than {LARGEST >> 20} MB, the limit")
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
    return [(f"{path}:{i}", dict(zip(header, row, strict=False))) for i, row in enumerate(rows, 2)]


def _header(text: str) -> tuple[list[str], str]:
    """Return the column names and the separator: the first one that gives a step column."""
    found = []
    for mark in _MARKS:
        names = next((row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row), [])
        found.append(([name.strip() for name in names], mark))
    return next((f for f in found if not set(_STEPS).isdisjoint(f[0])), found[0])


def read_tensorboard(path: Path, trainer: str | None = None) -> Log:
    """Return the scalars of a TensorBoard event file, or of all event files in a folder.

    Raises:
        MissingExtra: TensorBoard is not installed.
        LogFileError: the file is damaged or has no scalars, or no name is known.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise MissingExtra("tensorboard", "reading TensorBoard event files") from error
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    try:
        events.Reload()
    except Exception as error:  # damaged files raise errors of the protobuf parser
        raise LogFileError(f"{path}: not a TensorBoard event file: {error}") from error
    steps: dict[int, dict[str, float]] = {}
    for key in events.Tags()["scalars"]:
        for point in events.Scalars(key):
            steps.setdefault(int(point.step), {})[key] = float(point.value)
    if not steps:
        raise LogFileError(f"{path}: has no scalars")
    return canonical(steps, str(path), trainer)


def read_mlflow(identity: str, uri: str, trainer: str | None = None) -> Log:
    """Return the metrics of an MLflow run.

    Args:
        identity: the run's id.
        uri: tracking URI.
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        MissingExtra: MLflow is not installed.
        LogFileError: the run does not exist or has no metrics, the server cannot be reached, or no name is known.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingExtra("mlflow", "reading an MLflow run") from error
    place = f"MLflow run {identity} at {uri}"
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise LogFileError(f"{place}: this file does not exist; set MLFLOW_TRACKING_URI, or --home")
    steps: dict[int, dict[str, float]] = {}
    try:
        client = MlflowClient(tracking_uri=uri)
        for key in client.get_run(identity).data.metrics:
            for point in client.get_metric_history(identity, key):
                steps.setdefault(int(point.step), {})[key] = float(point.value)
    except (MlflowException, OSError) as error:
        raise LogFileError(f"{place}: {str(error).splitlines()[0]}") from error
    if not steps:
        raise LogFileError(f"{place}: has no metrics")
    return canonical(steps, place, trainer)
