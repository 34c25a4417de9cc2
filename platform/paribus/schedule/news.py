"""Follows a study, and tells once of each finding that has become critical."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paribus.schedule.hooks import Hooks
from paribus.schedule.progress import Follower, RunView, StudyView
from paribus.store.reader import Reader
from paribus.store.records import RunRecord, StudyRecord


class News:
    """Compares what is known of the runs with what was told.

    Args:
        reader: the store.
        study: what is followed.
        say: takes one line for people.
        hooks: where it is sent, too; absent: nowhere.
    """

    def __init__(
        self, reader: Reader, study: StudyRecord, say: Callable[[str], None], hooks: Hooks | None = None
    ) -> None:
        self._follower = Follower(reader, study)
        self._say = say
        self._hooks = hooks
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
                    self._tell(view.study, found.run, finding)
        return view

    def _tell(self, study: str, run: RunRecord, finding: Mapping[str, Any]) -> None:
        text = f"{study}: {run.label}, seed {run.seed}: {finding['detector']} is critical: {finding['evidence']}"
        self._say(text)
        if self._hooks is not None:
            who = {"study": study, "arm": run.label, "seed": run.seed, "run": run.fingerprint, "attempt": run.token}
            self._hooks.tell({"text": text, **who, "finding": finding})
