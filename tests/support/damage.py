"""Damaged files: bytes of real files with random mistakes, JSON with values that do not belong there, and odd texts."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

COUNT = int(os.environ.get("PARIBUS_DAMAGED_FILES", "300"))
SEED = os.environ.get("PARIBUS_DAMAGE_SEED", "0")
"""Inputs of each kind, and where they begin: ``make test-fuzz N=... SEED=...`` sets both."""

DEEP = b"[" * 3000 + b"]" * 3000
TEXTS = (
    b"", b"\n", b"\n\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"{", b"}", b"[]", b"{}", b"null", b"true",
    b"NaN", b"-", b'"', b'"\\ud800"', b'"\\u0000"', b"7", b"-0.0", b"1e999", b"9" * 400, b"9" * 5000, b"0" * 70_000,
    DEEP, DEEP + b"\n", b'{"a":' * 3000, b"[" * 70 + b"]" * 70, b'{"step": 1}', b'{"correct": 5}', b'{"values": {}}',
    b"\x89PNG\r\n\x1a\n", b"PSB1", "\N{SNOWMAN}".encode() * 9, b"\r\n", b"\x1b[2J", b"x" * 70_000, b"// comment\n{}",
    b"{'a': 1}", b'{"a": 1,}',
)  # fmt: skip
"""Whole files, and parts that mistakes put into others."""

SHORT = tuple(text for text in TEXTS if len(text) <= 1000)
"""Those that mistakes mostly take: a parser needs longer for one of the others than for a hundred of these."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 7.0, 1e308, 1e-320, float("nan"), float("inf"), 2**31, 2**53, -(2**53),
    2**63, 2**64, 10**400, "", "7", "nan", "-inf", "Infinity", "x", "\ud800", "a\0b", "\x1b[31m", "../../etc/passwd",
    "x" * 5000, [], {}, [[]], [1, "a", None], {"a": 1}, {"": {}}, [True] * 3, {"\ud800": 1, "\0": 2}, ["\udfff"],
    [[1], 2], {"a": {"b": [0.5]}},
)  # fmt: skip
"""What may stand in the place of any other value."""


def dice(kind: str, number: int) -> random.Random:
    """Return the source of chance for one input, which is the same with the same seed."""
    return random.Random(f"{SEED}/{kind}/{number}")


def put(path: Path, data: bytes) -> None:
    """Write a file in place of the one that is there; ext4 waits for the disk where a file's content is replaced."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def damaged(files: list[bytes], chance: random.Random) -> bytes:
    """Return the bytes of a file that is one of ``files`` with mistakes, or none of them at all."""
    data = chance.choice(files)
    kind = chance.random()
    if kind < 0.45:
        data = _other_values(data, chance)
        return data if chance.random() < 0.8 else _other_bytes(data, files, chance)
    if kind < 0.95:
        for _ in range(1 + int(min(chance.expovariate(0.7), 20))):
            data = _other_bytes(data, files, chance)
        return data
    return chance.choice((chance.choice(SHORT), chance.randbytes(chance.randrange(200))))


def _other_bytes(data: bytes, files: list[bytes], chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((0, 1, 1, 2, 8, 40, 400)))
    other = chance.choice(files)
    part = chance.randrange(len(other) + 1)
    put = chance.choice(
        (
            bytes([chance.randrange(256)]),
            bytes([data[start] ^ 1 << chance.randrange(8)]) if start < len(data) else b"",
            b"",
            data[start:end] * 2,
            other[part : part + 60],
            _text(chance),
        )
    )
    return data[:start] if chance.random() < 0.1 else data[:start] + put + data[end:]


def _other_values(data: bytes, chance: random.Random) -> bytes:
    """Return JSON, or one of its lines, with other values in some places; other bytes if it is not JSON."""
    lines = data.split(b"\n")
    try:
        return _dumped(other(json.loads(data), chance))
    except ValueError:
        pass
    number = chance.randrange(len(lines))
    try:
        lines[number] = _dumped(other(json.loads(lines[number]), chance))
    except ValueError:
        lines[number] = _text(chance)
    return b"\n".join(lines)


def _text(chance: random.Random) -> bytes:
    return chance.choice(TEXTS if chance.random() < 0.02 else SHORT)


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def other(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with another value, key or length in one to three places."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        value = _once(value, chance)
    return value


def _once(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return chance.choice(VALUES)
    copy: Any = value.copy()
    place = chance.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    act = chance.random()
    if act < 0.7:
        copy[place] = _once(copy[place], chance)
    elif act < 0.8:
        del copy[place]
    elif isinstance(copy, dict):
        copy[chance.choice(("x", "", "step", "\ud800", "a\0", str(place) * 2))] = copy[place]
    else:
        copy = copy * 2 if act < 0.9 else [*copy, chance.choice(VALUES)]
    return copy
