"""Attaches to a study that a `paribus scheduler` serves: watches it in the store, and starts nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping

from paribus.errors import StoreError
from paribus.monitor.progress import Preparing
from paribus.scheduler.home_lock import lock_owner
from paribus.scheduler.scheduler import Ending
from paribus.store.database import Unreachable
from paribus.store.models import StudyRecord
from paribus.store.reader import Reader
from paribus.store.states import LIVE

GONE_S = 20.0
"""Seconds that a scheduler may be away, for example while it is restarted."""


class Attached:
    """Takes the place of a scheduler in the serving loop, while another process serves the study."""

    period_s = 0.5
    pause = False
    interrupted = False

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._studies: dict[int, StudyRecord] = {}
        self._seen = time.monotonic()

    @property
    def studies(self) -> Mapping[int, StudyRecord]:
        """The studies that are watched, by number."""
        return self._studies

    @property
    def idle(self) -> bool:
        """Whether no study is watched."""
        return not self._studies

    def take_up(self, study: StudyRecord) -> None:
        """Watch a study."""
        self._studies[study.id] = study

    def preparing(self, study_id: int) -> tuple[Preparing, ...]:
        """Return nothing: only the scheduler knows its set-up jobs."""
        return ()

    def turn(self) -> Mapping[int, Ending]:
        """Return the studies that have ended since the last turn, and why.

        Raises:
            StoreError: the scheduler has gone and hasn't come back, or a study was deleted.
            Unreachable: the database can't be reached.
        """
        try:
            endings = {n: ending for n, study in self._studies.items() if (ending := self._ending(study)) is not None}
        except Unreachable:
            self._check_scheduler()
            raise
        for number in endings:
            del self._studies[number]
        if self._studies:
            self._check_scheduler()
        return endings

    def _check_scheduler(self) -> None:
        now = time.monotonic()
        if lock_owner(self._reader.home) is not None:
            self._seen = now
        elif now - self._seen > GONE_S:
            raise StoreError(
                f"the scheduler of {self._reader.home} has gone. Start it again (paribus scheduler), or type the same "
                "command again, which then trains the study itself."
            )

    def _ending(self, study: StudyRecord) -> Ending | None:
        entry = next(iter(self._reader.summaries([study.id])), None)
        if entry is None:
            raise StoreError(f"the study `{study.name}` was deleted meanwhile. To train it, type the same command.")
        if not entry.open:
            return Ending.COMPLETE
        if self._reader.counts(study.id).keys() & set(LIVE):
            return None
        if entry.paused:
            return Ending.PAUSED
        return None if self._reader.within_budget(study.name) else Ending.BUDGET
