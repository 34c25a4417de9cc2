"""``series.bin``: the metric series of an attempt in a binary file, which reports and dashboards read in milliseconds.

The file is derived from ``metrics.jsonl`` and can be deleted at any time: lines that aren't in it yet are read from
``metrics.jsonl``, and a torn or damaged file is rebuilt. It is a sequence of blocks, appended as lines arrive. A block
holds consecutive metric lines, one column per metric, so that one metric can be read without the others:

======  =====================================================================================================
bytes   content
======  =====================================================================================================
4       ``PSB1``
4       length of the header
4       CRC-32 of the header
4       length of the body
header  JSON: ``{"source": bytes of metrics.jsonl that this block and those before it cover, "span": first and last
        step, "columns": {name: [first step, last step, points, offset in the body, sizes of its three parts]},
        "sources": {name: list of sources}}``; a metric that is missing in ``sources`` is ``exact``
body    for each column its points, its buckets of 16 steps and those of 256, each compressed by zlib, which adds
        a checksum
======  =====================================================================================================

Numbers are little-endian and have 8 bytes. Points: steps as differences (left out if each step follows the one before),
then values. Buckets: steps of their last points as differences, then count, NaN count, min, max, mean, last. Arrays are
stored byte-transposed (all first bytes, then all second bytes, ...), because neighbours share signs and exponents.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paribus.errors import RunFolderError
from paribus.run_folder.folder import MetricLine, RunFolder, Tail
from paribus.run_folder.json_text import field_of, fields, listed, parse_json, whole
from paribus.run_folder.metrics import SOURCES, Source
from paribus.run_folder.series import EXACT, Columns, Floats, Ints, Series, joined, points, width_for

LEVELS = (1, 16, 256)
"""Bucket widths in the file; the first holds every point."""

PREFIX = struct.Struct("<4sIII")
MAGIC = b"PSB1"
_HEADER_GUESS = 4096  # bytes; most headers are shorter
_BUCKET = (("count", "<i8"), ("nans", "<i8"), ("min", "<f8"), ("max", "<f8"), ("mean", "<f8"), ("last", "<f8"))
_SHORT = 64  # series up to this many points are cached: evaluations, which a report reads again and again

BLOCK = 1 << 19
"""Bytes of metric lines that make a block; a smaller rest is written when the attempt has ended."""


@dataclass(frozen=True)
class Column:
    """Where a metric lies in a block.

    Attributes:
        first: step of its first point.
        last: step of its last point.
        count: number of points.
        places: offset in the file and size of the part of each level.
    """

    first: int
    last: int
    count: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """The header of a block.

    Attributes:
        source: bytes of ``metrics.jsonl`` that this block and those before it cover.
        span: first and last step of its lines.
        columns: by metric.
        sources: the sources of its metrics; a metric that is missing is ``exact``.
        end: offset of the block's end in the file.
    """

    source: int
    span: tuple[int, int]
    end: int
    columns: Mapping[str, Column]
    sources: Mapping[str, frozenset[Source]]


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
    content: dict[str, Any] = {"source": source, "span": columns.span, "columns": places}
    if columns.sources:
        content["sources"] = {name: sorted(sources) for name, sources in columns.sources.items()}
    header = json.dumps(content, separators=(",", ":")).encode()
    return b"".join([PREFIX.pack(MAGIC, len(header), zlib.crc32(header), offset), header, *body])


def scan(read: Callable[[int, int], bytes], start: int, size: int) -> Iterator[Block]:
    """Yield the complete blocks of a file, up to its end or to the first damaged one.

    Args:
        read: returns a number of bytes (second argument) from an offset (first argument).
        start: offset of the first block to yield.
        size: size of the file.
    """
    while True:
        head = read(start, _HEADER_GUESS)
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
        try:
            block = _block(parse_json(header, "header"), begin, body)
        except (RunFolderError, ValueError):
            return
        start = block.end
        yield block


def _block(header: Any, begin: int, size: int) -> Block:
    """Return the block with this header and a body of ``size`` bytes at offset ``begin``.

    Raises:
        ValueError: it is not the header of a block.
    """
    raw = fields(header)
    first, last = (whole(step, "span", 0) for step in listed(field_of(raw, "span"), "span"))
    sources = fields(raw.get("sources", {}))
    columns = {n: _column(begin, size, listed(c, n)) for n, c in fields(field_of(raw, "columns")).items()}
    if any(source not in SOURCES for found in sources.values() for source in listed(found, "sources")):
        raise ValueError("a source is unknown")
    return Block(
        source=whole(field_of(raw, "source"), "source", 1),
        span=(first, last),
        end=begin + size,
        columns=columns,
        sources={name: frozenset(found) for name, found in sources.items()},
    )


def _column(begin: int, size: int, numbers: Sequence[Any]) -> Column:
    first, last, count, offset, *sizes = (whole(n, "columns") for n in numbers)
    if len(sizes) != len(LEVELS) or min(count - 1, offset, *sizes) < 0 or offset + sum(sizes) > size:
        raise ValueError("a column lies outside of its block")
    starts = accumulate(sizes, initial=begin + offset)
    return Column(first, last, count, tuple(zip(starts, sizes, strict=False)))


def decode_part(data: bytes, column: Column, level: int) -> Series:
    """Return the part of a column at ``LEVELS[level]``.

    Raises:
        zlib.error: the bytes are damaged.
        ValueError: they are not the points or buckets of this column.
    """
    raw = zlib.decompress(data)
    if level == 0:
        gaps, values = raw[: -8 * column.count], raw[-8 * column.count :]
        if len(values) != 8 * column.count or len(gaps or values) != len(values):
            raise ValueError(f"the column has not {column.count} points")
        if not gaps and column.last - column.first + 1 != column.count:
            raise ValueError("the steps of the column are missing")
        known = np.cumsum(_untransposed(gaps, "<i8")[0]) if gaps else np.arange(column.first, column.last + 1)
        return points(known, _untransposed(values, "<f8")[0])
    steps, *rest = _untransposed(raw, "<i8", 1 + len(_BUCKET))
    arrays = {name: data.view(kind) for (name, kind), data in zip(_BUCKET, rest, strict=True)}
    return Series(width=LEVELS[level], steps=np.cumsum(steps), **arrays)


def _points_to_bytes(series: Series) -> bytes:
    gaps = np.diff(series.steps, prepend=0)
    steps = b"" if (gaps[1:] == 1).all() else _transposed(gaps, "<i8")
    return zlib.compress(steps + _transposed(series.last, "<f8"), 1)


def _buckets_to_bytes(series: Series) -> bytes:
    steps = _transposed(np.diff(series.steps, prepend=0), "<i8")
    return zlib.compress(steps + b"".join(_transposed(getattr(series, name), kind) for name, kind in _BUCKET), 1)


def _transposed(values: Floats | Ints, kind: str) -> bytes:
    """Return the first byte of every number, then the second byte of every number, and so on."""
    plain = values.astype(kind).view(np.uint8).reshape(-1, 8)
    return plain.T.tobytes()


def _untransposed(data: bytes, kind: str, arrays: int = 1) -> NDArray[Any]:
    """Undo :func:`_transposed` for consecutive arrays of equal length; one row per array."""
    plain = np.frombuffer(data, np.uint8).reshape(arrays, 8, len(data) // (8 * arrays))
    return np.ascontiguousarray(plain.transpose(0, 2, 1)).view(kind)[..., 0]


def pack(folder: RunFolder, *, ended: bool = False) -> None:
    """Write the metric lines that are in no block yet into blocks; do nothing while another process does it.

    A torn block at the end, left by a killed process, is cut off and written again.

    Args:
        folder: the attempt.
        ended: whether no more lines will follow, so that a small block may be written.

    Raises:
        RunFolderError: a line is not a metric line; those before it are packed.
        OSError: the file cannot be written.
    """
    size = folder.metrics.stat().st_size if folder.metrics.exists() else 0
    if size < (1 if ended else BLOCK):
        return
    with os.fdopen(os.open(folder.series, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        blocks = list(_blocks(file.fileno(), 0))
        end, done = (blocks[-1].end, blocks[-1].source) if blocks else (0, 0)
        if done and not _ends_line(folder.metrics, done):  # metrics.jsonl was replaced
            end = done = 0
        file.truncate(end)
        file.seek(end)
        tail = Tail(folder.metrics, done)
        while size - tail.offset >= (1 if ended else BLOCK) and (lines := tail.read()):
            file.write(encode(Columns.of(lines), tail.offset))
            file.flush()


def _ends_line(metrics: Path, offset: int) -> bool:
    """Return whether a line of the file ends at this offset."""
    try:
        with metrics.open("rb") as file:
            file.seek(offset - 1)
            return file.read(1) == b"\n"
    except OSError:
        return False


def _blocks(descriptor: int, start: int) -> Iterator[Block]:
    return scan(lambda offset, size: os.pread(descriptor, size, offset), start, os.fstat(descriptor).st_size)


class AttemptSeries:
    """The series of one attempt so far; :meth:`refresh` reads what was added.

    Args:
        folder: the attempt.
        derive: whether to write ``series.bin``; without it no file is touched.

    Raises:
        RunFolderError: a line is not a metric line; the message names file and line.
    """

    def __init__(self, folder: RunFolder, *, derive: bool = True) -> None:
        self.folder = folder
        self._derive = derive
        self._file: tuple[int, ...] = ()
        self._start_over()
        self.refresh()

    def refresh(self) -> None:
        """Read what was recorded since the last call; pack the lines of an attempt that has ended.

        Raises:
            RunFolderError: as above.
        """
        ended = self.folder.result.exists() or self.folder.outcome.exists()
        self._notice_another_file()
        self._take_blocks()
        if self._derive and self._waiting() >= (1 if ended else BLOCK):
            with suppress(OSError):  # a read-only folder can still be read
                pack(self.folder, ended=ended)
            self._take_blocks()
        if self._blocks and not _ends_line(self.folder.metrics, self._blocks[-1].source):
            self._forget()
        known = len(self._lines)
        try:
            while lines := self._tail.read():
                self._lines += lines
        finally:  # lines before a damaged one count, too
            if len(self._lines) != known:
                self._open = Columns.of(self._lines)

    def _forget(self) -> None:
        """Drop the file, which is damaged or belongs to other lines; the next refresh rebuilds it."""
        if self._derive:
            with suppress(OSError):
                self.folder.series.unlink()
        self._start_over()

    def _start_over(self) -> None:
        self._blocks: list[Block] = []
        self._tail = Tail(self.folder.metrics)
        self._lines: list[MetricLine] = []
        self._open = Columns.of([])

    def _notice_another_file(self) -> None:
        """Start over if the run was deleted and trained again, which gives the same folder."""
        try:
            found = self.folder.metrics.stat()
            job = self.folder.job.stat().st_mtime_ns if self.folder.job.exists() else 0
        except OSError:
            return
        file = (found.st_dev, found.st_ino, job)
        if self._file not in ((), file) or found.st_size < self._tail.offset:
            self._start_over()
        self._file = file

    def _waiting(self) -> int:
        done = self._blocks[-1].source if self._blocks else 0
        return (self.folder.metrics.stat().st_size if self.folder.metrics.exists() else 0) - done

    def _take_blocks(self) -> None:
        fresh: list[Block] = []
        with suppress(OSError), self.folder.series.open("rb", buffering=0) as file:
            fresh += _blocks(file.fileno(), self._blocks[-1].end if self._blocks else 0)
        if fresh:
            self._blocks += fresh
            self._tail, self._lines, self._open = Tail(self.folder.metrics, fresh[-1].source), [], Columns.of([])

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last step with a metric line; ``None`` without any."""
        spans = [b.span for b in self._blocks] + ([self._open.span] if self._open.span else [])
        return (min(s for s, _ in spans), max(s for _, s in spans)) if spans else None

    @property
    def names(self) -> frozenset[str]:
        """The metrics that were recorded."""
        return self._open.names.union(*(b.columns for b in self._blocks))

    def sources_of(self, metric: str) -> frozenset[Source]:
        """Return the sources of a metric's values; empty if it was not recorded."""
        packed = (b.sources.get(metric, EXACT) for b in self._blocks if metric in b.columns)
        return self._open.sources_of(metric).union(*packed)

    def series(self, metric: str, width: int, first: int | None = None, last: int | None = None) -> Series:
        """Return a metric in buckets of this width: all buckets with a step from ``first`` to ``last``."""
        found = [b.columns[metric] for b in self._blocks if metric in b.columns]
        rest = self._open.series(metric)
        level = LEVELS.index(max(w for w in LEVELS if w <= width)) if _in_order(found, rest) else 0
        lowest = None if first is None else first // width * width
        highest = None if last is None else last // width * width + width - 1
        wanted = [c for c in found if (lowest is None or c.last >= lowest) and (highest is None or c.first <= highest)]
        try:
            parts = list(self._read(wanted, level))
        except (OSError, zlib.error, ValueError):
            self._forget()
            self._open = Columns.of(self.folder.read_metrics())
            return self.series(metric, width, first, last)
        parts += [rest.bucketed(LEVELS[level])] if len(rest) else []
        return joined(parts, LEVELS[level]).bucketed(width).between(lowest, highest)

    def _read(self, columns: Sequence[Column], level: int) -> Iterator[Series]:
        if not columns:
            return
        with self.folder.series.open("rb", buffering=0) as file:
            for column in columns:
                offset, size = column.places[level]
                yield decode_part(os.pread(file.fileno(), size, offset), column, level)


def _in_order(columns: Sequence[Column], rest: Series) -> bool:
    """Return whether steps only increase from each part to the next."""
    spans = [(c.first, c.last) for c in columns] + [(int(s), int(s)) for s in rest.steps[:1]]
    return all(before[1] < after[0] for before, after in pairwise(spans))


class RunSeries:
    """The series of a run over its attempts; implements :class:`~paribus.run_folder.series.Recorded`.

    An attempt replaces, from its first step on, what earlier attempts recorded: a resumed attempt continues after its
    checkpoint, with or without the lines before it.

    Args:
        home: home folder.
        run: fingerprint.
        token: fence token of the newest attempt that counts.
        derive: whether to write ``series.bin``, as in :class:`AttemptSeries`.

    Raises:
        RunFolderError: a line of the newest attempt with lines is not a metric line; the message names file and line.
    """

    def __init__(self, home: Path, run: str, token: int, *, derive: bool = True) -> None:
        self._attempts: list[tuple[AttemptSeries, int | None]] = []
        self._short: dict[tuple[str, int | None, int | None, int | None], Series] = {}
        before: int | None = None
        for number in range(token, 0, -1):
            if before == 0:
                break
            try:
                attempt = AttemptSeries(RunFolder.of(home, run, number), derive=derive)
            except RunFolderError:
                if self._attempts:
                    continue  # a newer attempt is intact, so the run can be read
                raise
            if attempt.span is not None and (before is None or attempt.span[0] < before):
                self._attempts.insert(0, (attempt, before))
                before = attempt.span[0]

    def refresh(self) -> None:
        """Read what the newest attempt recorded since the last call; a new attempt needs a new object.

        Raises:
            RunFolderError: as above.
        """
        self._short.clear()
        for attempt, _ in self._attempts[-1:]:
            attempt.refresh()

    def folder_at(self, step: int) -> RunFolder | None:
        """Return the folder of the attempt that counts at a step; ``None`` if no attempt has lines."""
        return next((a.folder for a, before in self._attempts if before is None or step < before), None)

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last step with a metric line; ``None`` without any."""
        spans = [a.span for a, _ in self._attempts if a.span]
        return (spans[0][0], spans[-1][1]) if spans else None

    @property
    def names(self) -> frozenset[str]:
        """The metrics that were recorded."""
        return frozenset().union(*(a.names for a, _ in self._attempts))

    def sources_of(self, metric: str) -> frozenset[Source]:
        """Return the sources of a metric's values, in all attempts that count; empty if it was not recorded."""
        none: frozenset[Source] = frozenset()
        return none.union(*(a.sources_of(metric) for a, _ in self._attempts))

    def series(
        self, metric: str, *, first: int | None = None, last: int | None = None, least: int | None = None
    ) -> Series:
        """Return a metric as :meth:`Recorded.series <paribus.run_folder.series.Recorded.series>` specifies."""
        key = metric, first, last, least
        if key in self._short:
            return self._short[key]
        lowest, highest = self.span or (0, 0)
        width = width_for(lowest if first is None else first, highest if last is None else last, least)
        parts = []
        for attempt, before in self._attempts:
            if before is None:
                parts.append(attempt.series(metric, width, first, last))
            else:
                every = attempt.series(metric, 1, None, before - 1)
                parts.append(every.bucketed(width).between(first, last))
        found = joined([p for p in parts if len(p)], width)
        if len(found) <= _SHORT:
            self._short[key] = found
        return found
