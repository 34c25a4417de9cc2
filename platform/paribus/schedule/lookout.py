"""Lets the detectors look at an attempt while it trains; whatever happens to them never reaches the run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paribus.health.finding import Finding
from paribus.study.job import Job
from paribus.track.folder import MetricLine, RunFolder

if TYPE_CHECKING:
    from paribus.health.watch import Watch

AFTER_S = 2.0
"""Seconds after which a run is looked at: loading the detectors takes a quarter of one, much for a shorter run."""

EVERY_S = 1.0
"""Seconds between two looks: a line alone costs five milliseconds, in a chunk less than one."""

MOST = 500
"""Lines of one look, so that the supervisor renews its lease in between."""

WATCHED_ALWAYS = frozenset({"nan", "dead_run"})
"""What the supervisor judges by itself, without the detectors."""


class Lookout:
    """The detectors beside one attempt, loaded when they are first needed: after the runner was forked.

    Args:
        folder: the attempt.
        job: what it trains; a run that a detector may stop is looked at from its first line on.
        clock: seconds.
    """

    def __init__(self, folder: RunFolder, job: Job, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._job = job
        self._clock = clock
        self._from = clock() + (0.0 if set(job.stop_on) - WATCHED_ALWAYS else AFTER_S)
        self._next = 0.0
        self._waiting: list[MetricLine] = []
        self._watch: Watch | None = None
        self._broken = False

    def look(self, lines: Sequence[MetricLine], *, ended: bool = False) -> list[Finding]:
        """Take in new lines.

        Args:
            lines: by step.
            ended: whether no more will come, so that all that wait are looked at now.

        Returns:
            What has become critical.
        """
        self._waiting += lines
        now = self._clock()
        if self._broken or not self._waiting or now < self._from or (now < self._next and not ended):
            return []
        count = len(self._waiting) if ended else MOST
        chunk, self._waiting = self._waiting[:count], self._waiting[count:]
        try:
            found = self._take(chunk)
        except Exception:  # the run goes on without its lamp; `paribus health` judges it from its records
            traceback.print_exc()
            self._broken = True
            return []
        self._next = self._clock() + (0.0 if self._waiting else EVERY_S)
        return found

    def _take(self, lines: Sequence[MetricLine]) -> list[Finding]:
        if self._watch is None:
            from paribus.health.watch import Watch

            self._watch = Watch(self._folder, self._job)
        return self._watch.take(lines)
