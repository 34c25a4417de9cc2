"""Metric series of attempts and runs, in files: written beside the metric lines, read in milliseconds.

``series.bin`` in a run folder holds :mod:`~paribus.track.blocks`, appended as lines arrive. It is derived: the metric
lines stay the truth, what is not in a block yet is read from them, and a file that is torn, damaged or gone is made
again.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from paribus.errors import RunFolderError
from paribus.track.blocks import LEVELS, Block, Column, decode_part, encode, scan
from paribus.track.folder import MetricLine, RunFolder
from paribus.track.series import Columns, Series, joined, width_for
from paribus.track.spool import Tail

_SHORT = 64  # points of a series that is kept in memory: evaluations, which a report asks for again and again

BLOCK = 1 << 19
"""Bytes of metric lines that make a block; fewer wait for the end of the attempt."""


def pack(folder: RunFolder, *, ended: bool = False) -> None:
    """Put the metric lines that are in no block yet into blocks; does nothing while another process does it.

    A torn block at the end, left by a process that was killed, is cut off and made again.

    Args:
        folder: the attempt.
        ended: whether no lines will follow, so that a small block may be made.

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
        if done > size:  # the lines are not those that were packed
            end = done = 0
        file.truncate(end)
        file.seek(end)
        tail = Tail(folder.metrics, done)
        while size - tail.offset >= (1 if ended else BLOCK) and (lines := tail.read()):
            file.write(encode(Columns.of(lines), tail.offset))
            file.flush()


def _blocks(descriptor: int, start: int) -> Iterator[Block]:
    return scan(lambda offset, size: os.pread(descriptor, size, offset), start, os.fstat(descriptor).st_size)


class AttemptSeries:
    """The series of one attempt, as far as they have come; :meth:`refresh` looks for more.

    Raises:
        RunFolderError: a line is not a metric line; the message names file and line.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._blocks: list[Block] = []
        self._tail = Tail(folder.metrics)
        self._lines: list[MetricLine] = []
        self._open = Columns.of([])
        self.refresh()

    def refresh(self) -> None:
        """Take in what was recorded since; the lines of an attempt that ended are packed if they are not.

        Raises:
            RunFolderError: as above.
        """
        ended = self.folder.result.exists() or self.folder.outcome.exists()
        try:
            self._take_blocks()
            if self._waiting() >= (1 if ended else BLOCK):
                with suppress(OSError):  # a folder that cannot be written is read all the same
                    pack(self.folder, ended=ended)
                self._take_blocks()
            if self._waiting() < 0:
                self._forget()
            fresh = list(iter(self._tail.read, []))
        except RunFolderError:
            list(self.folder.read_metrics())  # which names the line
            raise
        if fresh:
            self._lines += [line for lines in fresh for line in lines]
            self._open = Columns.of(self._lines)

    def _forget(self) -> None:
        """Do without the file, which is damaged or belongs to other lines, and have it made again the next time."""
        with suppress(OSError):
            self.folder.series.unlink()
        self._blocks, self._tail, self._lines = [], Tail(self.folder.metrics), []

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
        """Metrics that occur."""
        return self._open.names.union(*(b.columns for b in self._blocks))

    def series(self, metric: str, width: int, first: int | None = None, last: int | None = None) -> Series:
        """Return a metric in buckets of this width, those that hold steps from ``first`` to ``last``, whole."""
        found = [b.columns[metric] for b in self._blocks if metric in b.columns]
        rest = self._open.series(metric)
        level = LEVELS.index(max(w for w in LEVELS if w <= width)) if _in_order(found, rest) else 0
        lowest = None if first is None else first // width * width
        highest = None if last is None else last // width * width + width - 1
        wanted = [c for c in found if (lowest is None or c.last >= lowest) and (highest is None or c.first <= highest)]
        try:
            parts = list(self._read(wanted, level))
        except (OSError, zlib.error):
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
    """Return whether no step comes again, or before an earlier one, in what follows."""
    spans = [(c.first, c.last) for c in columns] + [(int(s), int(s)) for s in rest.steps[:1]]
    return all(before[1] < after[0] for before, after in pairwise(spans))


class RunSeries:
    """The series of a run over its attempts; a :class:`~paribus.track.series.Recorded`.

    An attempt replaces, from its first step on, what earlier ones recorded: a resumed attempt goes on after its
    checkpoint, with or without the lines before it.

    Args:
        home: home folder.
        run: fingerprint.
        token: newest attempt that counts.

    Raises:
        RunFolderError: a line of the newest attempt with lines is not a metric line; the message names file and line.
    """

    def __init__(self, home: Path, run: str, token: int) -> None:
        self._attempts: list[tuple[AttemptSeries, int | None]] = []
        self._short: dict[tuple[str, int | None, int | None, int | None], Series] = {}
        before: int | None = None
        for number in range(token, 0, -1):
            if before == 0:
                break
            try:
                attempt = AttemptSeries(RunFolder.of(home, run, number))
            except RunFolderError:
                if self._attempts:
                    continue  # all that counts is whole
                raise
            if attempt.span is not None and (before is None or attempt.span[0] < before):
                self._attempts.insert(0, (attempt, before))
                before = attempt.span[0]

    def refresh(self) -> None:
        """Take in what the newest attempt recorded since; a new attempt is seen by a new object only.

        Raises:
            RunFolderError: as above.
        """
        self._short.clear()
        for attempt, _ in self._attempts[-1:]:
            attempt.refresh()

    def folder_at(self, step: int) -> RunFolder | None:
        """Return the folder of the attempt that counts at a step; ``None`` where none has lines."""
        return next((a.folder for a, before in self._attempts if before is None or step < before), None)

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last step with a metric line; ``None`` without any."""
        spans = [a.span for a, _ in self._attempts if a.span]
        return (spans[0][0], spans[-1][1]) if spans else None

    @property
    def names(self) -> frozenset[str]:
        """Metrics that occur."""
        return frozenset().union(*(a.names for a, _ in self._attempts))

    def series(
        self, metric: str, *, first: int | None = None, last: int | None = None, least: int | None = None
    ) -> Series:
        """Return a metric as :class:`~paribus.track.series.Recorded` says."""
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
