"""The metrics in a ``.wandb`` file, which W&B's library writes beside every run, offline ones too.

A file is a log of records (:mod:`.wandb_log`), each a message in the encoding of protocol buffers. Of W&B's messages
the reader needs a few fields, whose numbers are part of their public format, so W&B itself need not be installed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import LogFileError
from paribus.health.wandb_log import recover

SUFFIX = ".wandb"
"""Ending of these files."""

LARGEST = 1 << 30
"""Bytes of the largest file that is read."""

_RUN, _HISTORY = 17, 2  # in a Record
_ITEM, _STEP = 1, 2  # in a HistoryRecord
_KEY, _NESTED, _JSON = 1, 2, 16  # in an item of it; newer versions have the value in one of the following
_BOOLEAN, _INTEGER, _FLOAT, _TEXT, _OTHER = 4, 5, 6, 7, 8
_NUMBER = 1  # in a HistoryStep
_NAME = 8  # the name that W&B shows, in a RunRecord
_DEPTH = 8  # of mappings in a value
_DOUBLE = struct.Struct("<d")


@dataclass(frozen=True, kw_only=True)
class History:
    """What a file holds.

    Attributes:
        name: what W&B calls the run; empty where nothing does.
        records: the records of its history with their places: names and values, and ``_step``.
        cut: whether bytes that are no whole record follow the last one.
    """

    name: str
    records: Sequence[tuple[str, Mapping[str, Any]]]
    cut: bool


def read_history(path: Path) -> History:
    """Return the history in a file.

    Raises:
        LogFileError: it cannot be read, or is none of W&B's.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise LogFileError(f"{path}: the file is larger than {LARGEST >> 20} MB, the limit")
        with path.open("rb") as file:
            size, found = path.stat().st_size, list(recover(file))
    except OSError as error:
        raise LogFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not found:
        raise LogFileError(
            f"{path}: no record of W&B is in it: the run has only begun (W&B writes 32 KiB at once), the file is "
            "damaged, or it is not W&B's"
        )
    name, records = "", []
    for number, (data, _) in enumerate(found, 1):
        place = f"{path}, record {number}"
        try:
            for field, content in _fields(data):
                if field == _RUN and isinstance(content, bytes):
                    name = _text(_fields(content), _NAME) or name
                elif field == _HISTORY and isinstance(content, bytes):
                    records.append((place, _history(content)))
        except (ValueError, RecursionError) as error:
            raise LogFileError(f"{place}: cannot be read as a record of W&B: {error}") from error
    return History(name=name, records=records, cut=found[-1][1] < size)


def _history(data: bytes) -> dict[str, Any]:
    """Return the values of a record, and its step."""
    values: dict[str, Any] = {}
    step = None
    for field, content in _fields(data):
        if field == _ITEM and isinstance(content, bytes):
            item = list(_fields(content))
            name = _text(item, _KEY) or ".".join(_texts(item, _NESTED))
            values |= _flat(name, _value(item), 0)
        elif field == _STEP and isinstance(content, bytes):
            step = next((c for f, c in _fields(content) if f == _NUMBER and isinstance(c, int)), 0)
    if step is not None:
        values.setdefault("_step", step)
    return values


def _value(item: list[tuple[int, bytes | int]]) -> Any:
    """Return the value of an item, in any of its forms."""
    for field, content in item:
        if field in (_JSON, _OTHER) and isinstance(content, bytes):
            return json.loads(content or b"null")
        if field == _FLOAT and isinstance(content, bytes) and len(content) == _DOUBLE.size:
            return _DOUBLE.unpack(content)[0]
        if field == _TEXT and isinstance(content, bytes):
            return content.decode()
        if field == _INTEGER and isinstance(content, int):
            return (content >> 1) ^ -(content & 1)  # sint64: 0, -1, 1, -2, ...
        if field == _BOOLEAN and isinstance(content, int):
            return bool(content)
    return None


def _flat(name: str, value: Any, depth: int) -> dict[str, Any]:
    """Return a value under its name; of a mapping each value, with a dot between the names, as W&B shows them."""
    if not isinstance(value, Mapping) or depth == _DEPTH:
        return {name: value}
    return {k: v for key, each in value.items() for k, v in _flat(f"{name}.{key}", each, depth + 1).items()}


def _texts(fields: list[tuple[int, bytes | int]], wanted: int) -> list[str]:
    return [content.decode() for field, content in fields if field == wanted and isinstance(content, bytes)]


def _text(fields: Any, wanted: int) -> str:
    return next(iter(_texts(list(fields), wanted)), "")


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and content of each field of a message: bytes, or a number.

    Raises:
        ValueError: the bytes are no message.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(data):
            raise ValueError("a field that is longer than its record")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; seven bits a byte, the lowest first."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number that is cut")
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    raise ValueError("a number of more than ten bytes")


def file_in(folder: Path) -> Path | None:
    """Return the W&B file of a run's folder, of W&B's own folder, or of one that holds that; ``None`` without one.

    Raises:
        LogFileError: it has several runs.
    """
    places = ("", "*run-*/", "wandb/*run-*/")
    found: dict[Path, Path] = {}
    with suppress(OSError):
        for place in places:
            for file in sorted(folder.glob(f"{place}*{SUFFIX}")):
                found.setdefault(file.resolve(), file)  # `latest-run` leads to one of the others
    if len(found) > 1:
        shown = ", ".join(str(f.parent if f.parent != folder else f) for f in list(found.values())[:3])
        raise LogFileError(f"{folder}: has {len(found)} runs of W&B, such as {shown}; name one of them")
    return next(iter(found.values()), None)


def run_name(target: Path) -> str:
    """Return what W&B calls the run in a file or folder; empty if it is none of W&B's, or has no name."""
    with suppress(LogFileError):
        file = target if target.suffix == SUFFIX else file_in(target) if target.is_dir() else None
        return read_history(file).name if file is not None else ""
    return ""
