"""What a study looks like while it runs: counts, the runs in progress, time left."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from paribus.errors import RunFolderError
from paribus.health.alive import nan
from paribus.health.finding import Lamp, plain, worst
from paribus.store.reader import Reader
from paribus.store.records import RunRecord, StudyRecord
from paribus.store.states import LIVE, TERMINAL, RunState
from paribus.track.folder import RunFolder, read_json
from paribus.track.spool import Tail


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run and the newest value of each of its metrics.

    Attributes:
        run: the run.
        step: the newest.
        steps: planned ones.
        values: metric to its newest value.
        lamp: how the run is, as far as it was judged.
        detector: its worst finding; empty if there is none.
        critical: detector to finding, as ``health.json`` has it, of all that is critical.
    """

    run: RunRecord
    step: int
    steps: int
    values: Mapping[str, float]
    lamp: Lamp
    detector: str = ""
    critical: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """A study at one moment.

    Attributes:
        study: name of the study.
        counts: runs by state.
        live: the runs that an attempt holds.
        done: share of the study's steps that are trained, 0 to 1.
        left_s: seconds to the end at the pace since the start; ``None`` before there is one.
    """

    study: str
    counts: Mapping[RunState, int]
    live: tuple[RunView, ...]
    done: float
    left_s: float | None


class Display(Protocol):
    """Where it is shown what happens."""

    def say(self, line: str) -> None:
        """Show one line about something that happened."""

    def show(self, view: StudyView) -> None:
        """Show the progress."""


class Follower:
    """Follows the metric lines of a study's newest attempts, each line read once; lets go what has ended."""

    def __init__(self, reader: Reader, study: StudyRecord) -> None:
        self._reader = reader
        self._study = study
        self._steps = {a.key: a.recipe.schedule.steps for a in study.plan.all_arms}
        self._runs: dict[tuple[str, int], _Followed] = {}
        self._live: frozenset[tuple[str, int]] = frozenset()
        self._begun: tuple[float, int] | None = None

    def view_run(self, run: RunRecord) -> RunView:
        """Return what the newest attempt of a run has written."""
        key = (run.fingerprint, run.token)
        if key not in self._runs:
            self._runs[key] = _Followed(RunFolder.of(self._reader.home, *key))
        followed = self._runs[key]
        if run.token > 0:
            followed.read()
        return RunView(
            run=run,
            step=followed.step,
            steps=self._steps[run.arm],
            values=dict(followed.values),
            lamp=followed.lamp,
            detector=followed.detector,
            critical=followed.critical,
        )

    def view(self, now: float) -> StudyView:
        """Return the study now.

        Args:
            now: seconds on any clock that only goes forward.
        """
        live = tuple(self.view_run(r) for r in self._reader.runs_of(self._study.id, LIVE) if r.state in LIVE)
        before, self._live = self._live, frozenset((v.run.fingerprint, v.run.token) for v in live)
        kept = before | self._live  # what was live the last time may have written something since then
        self._runs = {key: followed for key, followed in self._runs.items() if key in kept}
        counts: dict[RunState, int] = {}
        total = ended = 0
        for (arm, state), count in self._reader.tally(self._study.id).items():
            counts[state] = counts.get(state, 0) + count
            total += self._steps[arm] * count
            ended += self._steps[arm] * count if state in TERMINAL else 0
        trained = ended + sum(v.step for v in live)
        done, left_s = trained / total if total else 1.0, self._left(now, trained, total)
        return StudyView(study=self._study.name, counts=counts, live=live, done=done, left_s=left_s)

    def _left(self, now: float, trained: int, total: int) -> float | None:
        if self._begun is None:
            self._begun = (now, trained)
        since, before = self._begun
        return (total - trained) * (now - since) / (trained - before) if trained > before else None


class _Followed:
    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tail = Tail(folder.metrics)
        self.step = 0
        self.values: dict[str, float] = {}
        self.lamp: Lamp = "unknown"
        self.detector = ""
        self.critical: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        try:
            lines = self._tail.read()
        except RunFolderError:
            self.lamp = "critical"
            return
        for line in lines:
            self.step = line.step
            self.values.update(line.values)
        judged = nan(lines)
        if judged.state == "critical":
            self.critical[judged.detector] = plain(judged)
        if lines and not self.critical:
            self.lamp = worst([judged])
        self._read_verdict()
        if self.critical:
            self.lamp, self.detector = "critical", self.detector or next(iter(self.critical))

    def _read_verdict(self) -> None:
        """Take over what the supervisor has written down; a short run has nothing of it."""
        with suppress(RunFolderError, KeyError, TypeError):
            known = read_json(self._folder.health)
            found = {f["detector"]: f for f in known["findings"] if f["state"] == "critical"}
            self.critical = {**self.critical, **found}
            self.lamp, self.detector = known["lamp"], known["detector"]
