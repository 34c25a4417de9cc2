"""Series of runs that many pages read at once."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from paribus.track.folder import RunFolder
from paribus.track.rollup import RunSeries
from paribus.track.series import Series


class SharedSeries:
    """The series of a run, asked for by many threads; a :class:`paribus.track.series.Recorded`."""

    def __init__(self, series: RunSeries) -> None:
        self._series = series
        self._stamp: Hashable = ()
        self._lock = threading.Lock()

    def follow(self, stamp: Hashable) -> None:
        """Take in what was recorded since, unless the file is as it was.

        Raises:
            RunFolderError: a metric line cannot be read.
        """
        with self._lock:
            if stamp != self._stamp:
                self._series.refresh()
                self._stamp = stamp

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last step with a metric line; ``None`` without any."""
        with self._lock:
            return self._series.span

    @property
    def names(self) -> frozenset[str]:
        """Metrics that occur."""
        with self._lock:
            return self._series.names

    def folder_at(self, step: int) -> RunFolder | None:
        """Return the folder of the attempt that counts at a step; ``None`` where none has lines."""
        with self._lock:
            return self._series.folder_at(step)

    def series(
        self, metric: str, *, first: int | None = None, last: int | None = None, least: int | None = None
    ) -> Series:
        """Return a metric as :class:`paribus.track.series.Recorded` says."""
        with self._lock:
            return self._series.series(metric, first=first, last=last, least=least)
