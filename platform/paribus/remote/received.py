r"""What a server has sent, checked before it is used: a laptop believes its server no more than the reverse.

Every answer has a largest size, a time by which it must be there, one depth, and for each field a type and a range.
Numbers are finite. Fields that are not known are dropped, so a newer server may send more. Characters that control a
terminal, or turn the direction of text, are shown as ``\x1b`` or ``\u202e`` and have no effect.
"""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paribus.errors import RunFolderError
from paribus.run_folder.json_text import field_of, fields, listed, parse_json, shown, text, whole

Check = Callable[[Any, str], Any]
"""Takes a value and its name; returns the value as it may be used, or raises ``ValueError``."""

MOST_JSON = 64 << 20
"""Most bytes of an answer."""

MOST_ERROR = 1 << 20
"""Most bytes of an error."""

_MOST_LINE, _MOST_TEXT = 2_000, 1 << 20
_MOST_ROWS = 100_000
_PIECE = 1 << 16


class TooMuch(ValueError):
    """A server has sent more than any answer has; the message says how much that is."""


class Readable(Protocol):
    """A body that arrives, such as that of ``http.client``; ``length`` is what is still to come, if that is known."""

    length: int | None

    def read1(self, size: int, /) -> bytes:
        """Return what has arrived, at most ``size`` bytes; nothing at the end."""
        ...


def read(body: Readable, most: int, limit_s: float) -> bytes:
    """Return a body whole.

    Raises:
        TooMuch: it has more than ``most`` bytes.
        TimeoutError: it takes longer than ``limit_s`` seconds, however little of it comes at a time.
        OSError: the connection broke.
    """
    end, data = time.monotonic() + limit_s, bytearray()
    while piece := body.read1(_PIECE):
        data += piece
        if len(data) > most:
            raise TooMuch(f"more than {most:,} bytes")
        if time.monotonic() > end:
            raise TimeoutError(f"not all of the answer came within {limit_s:.0f} s")
    if body.length:
        raise ConnectionError(f"the connection ended {body.length:,} bytes before the answer")
    return bytes(data)


def parse(data: bytes) -> dict[str, Any]:
    """Return the object that a JSON text is.

    Raises:
        ValueError: it is no JSON, no object, or nested too deep.
    """
    try:
        return fields(parse_json(data, "the answer"))
    except RunFolderError as error:
        raise ValueError(str(error)) from None


def visible(value: str, *, lines: bool = False) -> str:
    """Return a text in which characters that print as nothing, or move something, are escapes.

    Args:
        value: the text.
        lines: whether it may have several lines.
    """
    if value.isprintable():
        return value
    return "".join(
        c if _prints(c) or (lines and c == "\n") else c.encode("unicode_escape").decode("ascii") for c in value
    )


def _prints(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of any width


# ---- checks of values --------------------------------------------------------------------------------


def line(value: Any, name: str) -> str:
    """Return a text of one line, visible."""
    return _limited(value, name, _MOST_LINE, lines=False)


def lines(value: Any, name: str) -> str:
    """Return a text of any lines, visible."""
    return _limited(value, name, _MOST_TEXT, lines=True)


def _limited(value: Any, name: str, most: int, *, lines: bool) -> str:
    if len(found := text(value, name)) > most:
        raise ValueError(f"`{name}` has {len(found):,} characters, more than {most:,}")
    return visible(found, lines=lines)


def count(value: Any, name: str) -> int:
    """Return a whole number from 0."""
    return whole(value, name, 0)


def flag(value: Any, name: str) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` is {shown(value)}, not true or false")
    return value


def finite(value: Any, name: str) -> float:
    """Return a finite number; a text such as ``"nan"`` is refused."""
    if type(value) is float and math.isfinite(value):
        return value
    return float(whole(value, name))


def maybe(check: Check) -> Check:
    """Return a check that also takes ``null``."""
    return lambda value, name: None if value is None else check(value, name)


def rows(check: Check, most: int = _MOST_ROWS) -> Check:
    """Return a check of a list of at most ``most`` values."""

    def checked(value: Any, name: str) -> list[Any]:
        if len(found := listed(value, name)) > most:
            raise ValueError(f"`{name}` has {len(found):,} entries, more than {most:,}")
        return [check(each, f"{name}[{n}]") for n, each in enumerate(found)]

    return checked


@dataclass(frozen=True)
class Later:
    """A field that servers of an earlier version don't send: what it is then."""

    check: Check
    default: Any


def record(**checks: Check | Later) -> Check:
    """Return a check of an object with these fields; others are dropped."""

    def one(raw: Mapping[str, Any], key: str, check: Check | Later) -> Any:
        if isinstance(check, Later):
            return check.check(raw[key], key) if key in raw else check.default
        return check(field_of(raw, key), key)

    def checked(value: Any, name: str) -> dict[str, Any]:
        try:
            raw = fields(value)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from None
        return {key: one(raw, key, check) for key, check in checks.items()}

    return checked


def counts(value: Any, name: str) -> dict[str, int]:
    """Return an object of whole numbers."""
    if len(found := fields(value)) > 100:
        raise ValueError(f"`{name}` has {len(found):,} entries, more than 100")
    return {(said := line(key, name)): count(number, said) for key, number in found.items()}


# ---- the answers -------------------------------------------------------------------------------------

_TAGS = rows(line, 1000)
_ABOUT: Mapping[str, Later] = {"note": Later(lines, ""), "tags": Later(_TAGS, [])}
_ARCHIVED = Later(flag, False)

STUDIES = record(
    served_by=maybe(record(command=line, process=count, engine=line)),
    studies=rows(record(
        study=line, state=line, priority=whole, weight=finite, runs=count, running=count, states=counts, paused=lines,
        archived=_ARCHIVED, **_ABOUT,
    )),
)  # fmt: skip
"""All studies: `paribus status`."""

_BUDGET = record(
    unit=line, cap=maybe(finite), spent=finite, in_flight=finite, wasted=finite, reserved=finite,
    forecast=maybe(finite), expected=maybe(finite), allows_another=flag,
)  # fmt: skip

_RUN = record(
    arm=line, seed=whole, state=line, attempt=count, step=count, steps=count, health=line, detector=line,
    reward=maybe(finite), reason=lines, fingerprint=line, stopped_at_end=Later(flag, False), **_ABOUT,
)  # fmt: skip

STUDY = record(
    study=line, paused=lines, stage=lines, budget=rows(_BUDGET, 10), states=counts, page=count, pages=count,
    runs=rows(_RUN), archived=_ARCHIVED, **_ABOUT,
)  # fmt: skip
"""A page of the runs of a study: `paribus status STUDY`."""

SUBMITTED = record(study=line, runs=counts, again=flag, priority=whole, weight=finite, paused=lines)
"""`paribus submit`."""

CANCELLED = record(
    runs=record(queued=count, running=count, shared=count, ended=count), serving=flag, trouble=lines,
)  # fmt: skip
"""`paribus cancel`."""

RETRIED = record(runs=record(queued=count, kept=count, lifted=flag))
"""`paribus retry`."""

REMARKS = record(
    study=line, run=line, note=lines, author=line, at=finite, tags=_TAGS, archived=flag,
    **{"in": rows(record(study=line, arm=line, seed=whole))},
    log=rows(record(at=finite, author=line, kind=line, text=lines)),
)  # fmt: skip
"""`paribus note` and `paribus tag`."""

REPORT = record(text=lines, notes=rows(lines, 10_000), paths=rows(line, 10_000))
"""What `paribus report` prints about the files that it has written."""


def error_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an error, checked; ``problems`` if it has some.

    Raises:
        ValueError: it is no error of a server.
    """
    problem = record(message=lines, path=line, line=count, column=count)
    found: dict[str, Any] = record(code=line, message=lines, exit_code=lambda v, name: whole(v, name, 1, 125))(
        raw, "error"
    )
    if "problems" in raw:
        found["problems"] = rows(problem, 10_000)(raw["problems"], "problems")
    return found
