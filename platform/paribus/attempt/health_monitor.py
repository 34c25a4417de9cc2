"""Runs the detectors on an attempt while it trains; an error in a detector never reaches the run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paribus.contract import Job
from paribus.health.finding import Finding
from paribus.run_folder.folder import MetricLine, RunFolder

if TYPE_CHECKING:
    from paribus.health.live import LiveJudge

AFTER_S = 2.0
"""Seconds before the first look: loading the detectors takes 0.25 s, which is much for a shorter run."""

EVERY_S = 1.0
"""Seconds between two looks: a single line costs five milliseconds, a line in a chunk less than one."""

MOST = 500
"""Most lines per look, so that the supervisor can renew its lease in between."""

WATCHED_ALWAYS = frozenset({"nan", "dead_run"})
"""What the supervisor checks itself, without loading the detectors."""


class HealthMonitor:
    """The detectors for one attempt, loaded when first needed, after the runner has been forked.

    Args:
        folder: the attempt's folder.
        job: its job; a run that a detector may stop is watched from its first line on.
        clock: returns seconds.
    """

    def __init__(self, folder: RunFolder, job: Job, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._job = job
        self._clock = clock
        self._from = clock() + (0.0 if set(job.stop_on) - WATCHED_ALWAYS else AFTER_S)
        self._next = 0.0
        self._waiting: list[MetricLine] = []
        self._judge: LiveJudge | None = None
        self._broken = False

    def look(self, lines: Sequence[MetricLine], *, ended: bool = False) -> list[Finding]:
        """Run the detectors on new lines.

        Args:
            lines: by step.
            ended: whether the run has ended, so that all waiting lines count now.

        Returns:
            The findings that have become critical.
        """
        self._waiting += lines
        now = self._clock()
        if self._broken or not self._waiting or now < self._from or (now < self._next and not ended):
            return []
        count = len(self._waiting) if ended else MOST
        chunk, self._waiting = self._waiting[:count], self._waiting[count:]
        try:
            found = self._take(chunk)
        except Exception:  # the run continues without a status; `paribus health` computes it from its records
            traceback.print_exc()
            self._broken = True
            return []
        self._next = self._clock() + (0.0 if self._waiting else EVERY_S)
        return found

    def _take(self, lines: Sequence[MetricLine]) -> list[Finding]:
        if self._judge is None:
            from paribus.health.live import LiveJudge

            self._judge = LiveJudge(self._folder, self._job)
        return self._judge.take(lines)
