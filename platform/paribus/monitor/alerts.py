"""Follows a study and reports each finding once when it becomes critical."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paribus.monitor.progress import Follower, RunView, StudyView
from paribus.monitor.webhooks import Webhooks
from paribus.store.models import RunRecord, StudyRecord
from paribus.store.store import Reader


class Alerts:
    """Compares the findings about a study's runs with those already reported.

    Args:
        reader: the store.
        study: the study to follow.
        say: shows one line to the user.
        webhooks: also receive each alert; ``None``: nothing else does.
    """

    def __init__(
        self, reader: Reader, study: StudyRecord, say: Callable[[str], None], webhooks: Webhooks | None = None
    ) -> None:
        self._follower = Follower(reader, study)
        self._say = say
        self._webhooks = webhooks
        self._live: tuple[RunView, ...] = ()
        self._reported: set[tuple[str, str]] = set()

    def view(self, now: float) -> StudyView:
        """Return the study now; report new findings about runs in progress, and about those that have just ended.

        Args:
            now: seconds on any monotonic clock.
        """
        view = self._follower.view(now)
        live = {v.run.fingerprint for v in view.live}
        ended = [self._follower.view_run(v.run) for v in self._live if v.run.fingerprint not in live]
        self._live = view.live
        for run in (*view.live, *ended):
            for detector, finding in run.critical.items():
                key = (run.run.fingerprint, detector)
                if key not in self._reported:
                    self._reported.add(key)
                    self._report(view.study, run.run, finding)
        return view

    def _report(self, study: str, run: RunRecord, finding: Mapping[str, Any]) -> None:
        text = f"{study}: {run.label}, seed {run.seed}: {finding['detector']} is critical: {finding['evidence']}"
        self._say(text)
        if self._webhooks is not None:
            where = {"study": study, "arm": run.label, "seed": run.seed, "run": run.fingerprint, "attempt": run.token}
            self._webhooks.send({"text": text, **where, "finding": finding})
