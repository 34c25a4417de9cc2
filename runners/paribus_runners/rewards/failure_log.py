"""The log of what functions in worker processes print, and of how their calls fail."""

from __future__ import annotations

import logging
from collections import Counter

from paribus.masking import mask
from paribus_runners.rewards.pool import Outcome

SHOWN = 5
"""Failures of each function, and texts that it prints, that go to the log: more would fill the disk."""

log = logging.getLogger(__name__)


class FailureLog:
    """Logs the first failures and the first printed texts of each function."""

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()
        self._printed: Counter[str] = Counter()

    def note(self, who: str, failed: bool, reason: str, outcome: Outcome) -> None:
        """Log a call.

        Args:
            who: what was called, as the log names it.
            failed: whether it failed.
            reason: why, in a few words.
            outcome: of the call.
        """
        if outcome.printed and self._printed[who] < SHOWN:
            self._printed[who] += 1
            log.warning("%s printed: %s", who, mask(outcome.printed.rstrip()))
        if not failed:
            return
        self._failed[who] += 1
        if self._failed[who] <= SHOWN:
            last = "; further failures are only counted" if self._failed[who] == SHOWN else ""
            log.warning("%s failed: %s%s\n%s", who, mask(reason), last, mask(outcome.detail))
