"""Blocks of metric series as bytes: every point, and buckets of 16 and of 256 steps. Pure.

A block holds what some consecutive metric lines say, one column a metric, so that one metric can be read without the
others. It is laid out like a file of safetensors, with a checksum:

======  =====================================================================================================
bytes   content
======  =====================================================================================================
4       ``PSB1``
4       length of the header
4       its CRC-32
4       length of the body
header  JSON: ``{"source": bytes of the metric file that are in blocks up to this one, "span": first and last
        step, "columns": {name: [first step, last step, points, offset in the body, sizes of its three parts]}}``
body    for each column its points, its buckets of 16 and those of 256 steps, each packed by zlib, which has a
        checksum of its own
======  =====================================================================================================

Numbers are little-endian, of 8 bytes. Points: steps as differences (left out where each follows the one before), then
values. Buckets: steps of their last points, likewise, then count, NaN count, min, max, mean, last. Of an array the
first bytes of all numbers come first, then the second ones: signs and exponents of neighbours are much alike.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paribus.track.series import Columns, Floats, Ints, Series, points

LEVELS = (1, 16, 256)
"""Widths that are kept, the first for every point."""

PREFIX = struct.Struct("<4sIII")
MAGIC = b"PSB1"
_GUESS = 4096  # bytes that hold most headers
_BUCKET = (("count", "<i8"), ("nans", "<i8"), ("min", "<f8"), ("max", "<f8"), ("mean", "<f8"), ("last", "<f8"))


@dataclass(frozen=True)
class Column:
    """Where a metric lies in a block.

    Attributes:
        first: step of its first point.
        last: step of its last point.
        count: points.
        places: offset from the start of the file and size of the part of each level.
    """

    first: int
    last: int
    count: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """The header of a block.

    Attributes:
        source: bytes of the metric file that are in blocks up to this one.
        span: first and last step of its lines.
        columns: by metric.
        end: offset of its end in the file.
    """

    source: int
    span: tuple[int, int]
    end: int
    columns: Mapping[str, Column]


def encode(columns: Columns, source: int) -> bytes:
    """Return the block that holds these columns; ``source`` as in :class:`Block`."""
    body, places = [], {}
    offset = 0
    for name, series in columns.by_name.items():
        parts = [_points_to_bytes(series), *(_buckets_to_bytes(series.bucketed(w)) for w in LEVELS[1:])]
        ends = int(series.steps[0]), int(series.steps[-1])
        places[name] = [*ends, len(series), offset, *map(len, parts)]
        offset += sum(map(len, parts))
        body += parts
    header = json.dumps({"source": source, "span": columns.span, "columns": places}, separators=(",", ":")).encode()
    return b"".join([PREFIX.pack(MAGIC, len(header), zlib.crc32(header), offset), header, *body])


def scan(read: Callable[[int, int], bytes], start: int, size: int) -> Iterator[Block]:
    """Yield the whole blocks of a file, up to its end or to what is no block.

    Args:
        read: gives so many bytes from an offset on.
        start: offset of the first of these blocks.
        size: size of the file.
    """
    while True:
        head = read(start, _GUESS)
        if len(head) < PREFIX.size:
            return
        magic, length, checksum, body = PREFIX.unpack_from(head)
        begin = start + PREFIX.size + length
        if magic != MAGIC or begin + body > size:
            return
        header = head[PREFIX.size : PREFIX.size + length]
        header += read(start + len(head), length - len(header)) if len(header) < length else b""
        if not header or zlib.crc32(header) != checksum:
            return
        raw = json.loads(header)
        columns = {name: _column(begin, *numbers) for name, numbers in raw["columns"].items()}
        start = begin + body
        yield Block(source=raw["source"], span=tuple(raw["span"]), end=start, columns=columns)


def _column(begin: int, first: int, last: int, count: int, offset: int, *sizes: int) -> Column:
    starts = accumulate(sizes, initial=begin + offset)
    return Column(first, last, count, tuple(zip(starts, sizes, strict=False)))


def decode_part(data: bytes, column: Column, level: int) -> Series:
    """Return the part of a column at ``LEVELS[level]``.

    Raises:
        zlib.error: the bytes are damaged.
    """
    raw = zlib.decompress(data)
    if level == 0:
        gaps, values = raw[: -8 * column.count], raw[-8 * column.count :]
        known = np.cumsum(_gathered(gaps, "<i8")[0]) if gaps else np.arange(column.first, column.last + 1)
        return points(known, _gathered(values, "<f8")[0])
    steps, *rest = _gathered(raw, "<i8", 1 + len(_BUCKET))
    arrays = {name: data.view(kind) for (name, kind), data in zip(_BUCKET, rest, strict=True)}
    return Series(width=LEVELS[level], steps=np.cumsum(steps), **arrays)


def _points_to_bytes(series: Series) -> bytes:
    gaps = np.diff(series.steps, prepend=0)
    steps = b"" if (gaps[1:] == 1).all() else _scattered(gaps, "<i8")
    return zlib.compress(steps + _scattered(series.last, "<f8"), 1)


def _buckets_to_bytes(series: Series) -> bytes:
    steps = _scattered(np.diff(series.steps, prepend=0), "<i8")
    return zlib.compress(steps + b"".join(_scattered(getattr(series, name), kind) for name, kind in _BUCKET), 1)


def _scattered(values: Floats | Ints, kind: str) -> bytes:
    """Return the first byte of every number, then the second of every number, and so on."""
    plain = values.astype(kind).view(np.uint8).reshape(-1, 8)
    return plain.T.tobytes()


def _gathered(data: bytes, kind: str, arrays: int = 1) -> NDArray[Any]:
    """Undo :func:`_scattered`, for arrays of one length that follow each other; one row each."""
    plain = np.frombuffer(data, np.uint8).reshape(arrays, 8, len(data) // (8 * arrays))
    return np.ascontiguousarray(plain.transpose(0, 2, 1)).view(kind)[..., 0]
