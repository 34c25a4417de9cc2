"""JSON that another program wrote: any bytes give a value, or one error that says where. Checks of its fields.

Every reader of a run's files uses these, because a trainer may be killed in the middle of a write, or be wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from paribus.errors import RunFolderError
from paribus.text import printable

MOST_NESTED = 64
"""Most lists and objects inside one another; functions that walk through values call themselves for each."""

LARGEST = 1 << 53
"""Whole numbers are below this: exact as a number of JSON, and within 64 bits."""

_SHOWN = 120
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_UNPAIRED = re.compile("[\ud800-\udfff]")
_NOT_FINITE = frozenset({"nan", "inf", "-inf", "infinity", "-infinity"})


def parse_json(data: bytes, place: str, line: int | None = None) -> Any:
    """Return the value of a JSON text; unpaired surrogates, which no file or database takes, become U+FFFD.

    Args:
        data: the text, in UTF-8.
        place: path of the file, for the message.
        line: the line of the file that ``data`` is; ``None``: all of the file.

    Raises:
        RunFolderError: ``data`` is not JSON, or nested more than :data:`MOST_NESTED` deep; the message begins with
            ``place`` and the line.
    """
    try:
        value = json.loads(data.decode())
        if data.count(b"[") + data.count(b"{") > MOST_NESTED or _HALF_PAIR.search(data):
            value = _plain(value, MOST_NESTED)
    except json.JSONDecodeError as error:
        where = f"{place}:{line or error.lineno}"
        raise RunFolderError(f"{where}: not JSON: {error.msg}, at character {error.colno}") from None
    except UnicodeDecodeError as error:
        at = line or data.count(b"\n", 0, error.start) + 1
        raise RunFolderError(f"{place}:{at}: not UTF-8: byte {data[error.start]:#04x}") from None
    except RecursionError:
        raise RunFolderError(f"{place}:{line or 1}: not readable: nested more than {MOST_NESTED} deep") from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise RunFolderError(f"{place}:{line or 1}: not readable: {error}") from None
    return value


def _plain(value: Any, room: int) -> Any:
    if room < 0:
        raise RecursionError
    if isinstance(value, str):
        return value if value.isascii() else _UNPAIRED.sub("\ufffd", value)
    if isinstance(value, list):
        return [_plain(v, room - 1) for v in value]
    if isinstance(value, dict):
        return {_plain(k, room): _plain(v, room - 1) for k, v in value.items()}
    return value


def shown(value: object) -> str:
    """Return a value for a message: short, and without characters that control a terminal."""
    text = repr(value) if not isinstance(value, str) else repr(value[: _SHOWN + 1])
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return printable(text)


def fields(value: Any) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not an object")
    return value


def field_of(raw: Mapping[str, Any], name: str) -> Any:
    """Return a field of an object.

    Raises:
        ValueError: the field is missing.
    """
    if name not in raw:
        raise ValueError(f"`{name}` is missing")
    return raw[name]


def whole(value: Any, name: str, low: int = -LARGEST + 1, high: int = LARGEST - 1) -> int:
    """Return a whole number from ``low`` to ``high``.

    Raises:
        ValueError: it is something else, such as a text or a truth value.
    """
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"`{name}` is {shown(value)}, not a whole number from {low} to {high}")
    return value


def number(value: Any, name: str) -> float:
    """Return a number; ``"nan"``, ``"inf"`` and ``"-inf"`` are numbers, too.

    Raises:
        ValueError: it is something else, such as a text or a truth value.
    """
    if type(value) is float:
        return value
    if type(value) is int and -_MOST <= value <= _MOST:
        return float(value)
    if isinstance(value, str) and value.lower() in _NOT_FINITE:
        return float(value)
    raise ValueError(f"`{shown(name)[1:-1]}` is {shown(value)}, not a number")


_MOST = int(math.ldexp(1.0, 1023))  # a greater whole number may have no floating-point number


def text(value: Any, name: str) -> str:
    """Return a text.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"`{name}` is {shown(value)}, not a text")
    return value


def listed(value: Any, name: str) -> list[Any]:
    """Return a list.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is {shown(value)}, not a list")
    return value
