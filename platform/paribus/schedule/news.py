"""Follows a study, and tells once of each finding that has become critical."""

from __future__ import annotations

from collections.abc import Callable

from paribus.schedule.progress import Follower, RunView, StudyView
from paribus.store.reader import Reader
from paribus.store.records import StudyRecord


class News:
    """Compares what is known of the runs with what was told.

    Args:
        reader: the store.
        study: what is followed.
        say: takes one line for people.
    """

    def __init__(self, reader: Reader, study: StudyRecord, say: Callable[[str], None]) -> None:
        self._follower = Follower(reader, study)
        self._say = say
        self._live: tuple[RunView, ...] = ()
        self._told: set[tuple[str, str]] = set()

    def view(self, now: float) -> StudyView:
        """Return the study now; tell what is new of the runs in progress, and of those that were the last time.

        Args:
            now: seconds on any clock that only goes forward.
        """
        view = self._follower.view(now)
        live = {v.run.fingerprint for v in view.live}
        gone = [self._follower.view_run(v.run) for v in self._live if v.run.fingerprint not in live]
        self._live = view.live
        for found in (*view.live, *gone):
            for detector, finding in found.critical.items():
                key = (found.run.fingerprint, detector)
                if key not in self._told:
                    self._told.add(key)
                    name = f"{found.run.label}, seed {found.run.seed}"
                    self._say(f"{view.study}: {name}: {detector} is critical: {finding['evidence']}")
        return view
