"""Follows a study that a `paribus scheduler` serves, without doing anything for it."""

from __future__ import annotations

import time
from contextlib import suppress

from paribus.errors import StoreError
from paribus.schedule.holder import holder_of
from paribus.schedule.news import News
from paribus.schedule.progress import Display
from paribus.schedule.scheduler import Ending
from paribus.store.database import Unreachable
from paribus.store.reader import Reader
from paribus.store.records import StudyRecord

LOOK_S = 0.5
"""Seconds between two looks."""

GONE_S = 20.0
"""Seconds in which a scheduler that went away may come back, as one that is restarted does."""


def follow(reader: Reader, study: StudyRecord, display: Display) -> Ending:
    """Show the progress of a study until it has come to its end, or somebody presses Ctrl-C.

    Raises:
        StoreError: the scheduler is gone and has not come back.
    """
    news, seen = News(reader, study, display.say), time.monotonic()
    display.say(f"{study.name}: left to {holder_of(reader.home) or 'its scheduler'}. Ctrl-C ends the following only.")
    try:
        while True:
            with suppress(Unreachable):  # as the scheduler does: it may come back
                view = news.view(time.monotonic())
                display.show(view)
                if (ending := _ending(reader, study, live=bool(view.live))) is not None:
                    return ending
            now = time.monotonic()
            seen = now if holder_of(reader.home) is not None else seen
            if now - seen > GONE_S:
                raise StoreError(
                    f"the scheduler of {reader.home} is gone. Start it again (paribus scheduler), or type the same "
                    "command again: it then trains the study itself."
                )
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        return Ending.LEFT


def _ending(reader: Reader, study: StudyRecord, *, live: bool) -> Ending | None:
    (entry,) = reader.entries([study.id])
    if not entry.open:
        return Ending.COMPLETE
    if live:
        return None
    if entry.paused:
        return Ending.PAUSED
    return None if reader.affords(study.name) else Ending.BUDGET
