"""A study while it runs: counts of runs, the runs in progress, time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Protocol

from paribus.errors import RunFolderError
from paribus.health.finding import Status, plain, read_health, worst
from paribus.health.liveness import nan
from paribus.run_folder.folder import RunFolder, Tail
from paribus.run_folder.metrics import GENERATED, SAMPLED
from paribus.store.models import RunRecord, StudyRecord
from paribus.store.reader import Reader
from paribus.store.states import LIVE, TERMINAL, RunState


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run in progress, with the newest value of each of its metrics.

    Attributes:
        run: the run.
        step: the newest step.
        steps: planned steps.
        values: metric to its newest value.
        status: the run's health so far.
        detector: detector of its worst finding; empty without findings.
        critical: critical findings by detector, as in ``health.json``.
        trouble: why its metric lines cannot be read, with file and line; empty if they can.
        stopped_at_end: whether it was stopped after all its steps, with a score there: it counts as finished.
    """

    run: RunRecord
    step: int
    steps: int
    values: Mapping[str, float]
    status: Status
    detector: str = ""
    critical: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trouble: str = ""
    stopped_at_end: bool = False


@dataclass(frozen=True, kw_only=True)
class Preparing:
    """Something that runs share and that is being made before the first of them starts.

    Attributes:
        about: what, for example ``tiny for search``.
        seconds: since its job was submitted.
        line: the last line that the runner has printed about it; empty if there is none.
    """

    about: str
    seconds: float
    line: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """A study at one moment.

    Attributes:
        study: name of the study.
        counts: runs by state.
        live: the runs in progress.
        done: trained share of the study's steps, 0 to 1. Runs that were interrupted keep their steps.
        left_s: seconds to the end, at the pace since the first step of this session; ``None`` before the next one.
        preparing: what must be made before the first run starts.
    """

    study: str
    counts: Mapping[RunState, int]
    live: tuple[RunView, ...]
    done: float
    left_s: float | None
    preparing: tuple[Preparing, ...] = ()


class Display(Protocol):
    """Where progress and messages are shown."""

    def say(self, line: str) -> None:
        """Show one line."""

    def show(self, view: StudyView) -> None:
        """Show the progress."""


class Follower:
    """Reads the metric lines of a study's newest attempts, each line once; forgets runs that have ended."""

    def __init__(self, reader: Reader, study: StudyRecord) -> None:
        self._reader = reader
        self._study = study
        self._steps = {a.key: a.recipe.schedule.steps for a in study.plan.all_arms}
        self._runs: dict[tuple[str, int], _Followed] = {}
        self._live: frozenset[tuple[str, int]] = frozenset()
        self._reached: dict[str, int] | None = None
        self._least: int | None = None
        self._first_step: tuple[float, int] | None = None
        self._newest = (0.0, 0)

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
            steps=max(self._steps[run.arm], followed.step),  # a tracked program need not say how many
            values=dict(followed.values),
            status=followed.status,
            detector=followed.detector,
            critical=followed.critical,
            trouble=followed.trouble,
            stopped_at_end=run.state == RunState.STOPPED_EARLY and self._is_whole(run, followed),
        )

    def _is_whole(self, run: RunRecord, followed: _Followed) -> bool:
        plan = self._study.plan
        score = followed.newest.get(plan.evaluate.primary_metric, inf)
        spent = (v if isfinite(v := followed.values.get(metric, 0.0)) else None for metric in (GENERATED, SAMPLED))
        return isfinite(score) and plan.has_all_steps(run.arm, followed.step, *spent)

    def view(self, now: float) -> StudyView:
        """Return the study at ``now``: seconds on any monotonic clock."""
        live = tuple(self.view_run(r) for r in self._reader.runs_of(self._study.id, LIVE) if r.state in LIVE)
        before, self._live = self._live, frozenset((v.run.fingerprint, v.run.token) for v in live)
        kept = before | self._live  # runs that have just ended may have written lines since the last view
        self._runs = {key: followed for key, followed in self._runs.items() if key in kept}
        counts: dict[RunState, int] = {}
        total = ended = 0
        for (arm, state), count in self._reader.counts_by_arm(self._study.id).items():
            counts[state] = counts.get(state, 0) + count
            total += self._steps[arm] * count
            ended += self._steps[arm] * count if state in TERMINAL else 0
        trained = min(total, ended + sum(self._steps_reached(live).values()))
        done, left_s = trained / total if total else 1.0, self._left(now, trained, total)
        return StudyView(study=self._study.name, counts=counts, live=live, done=done, left_s=left_s)

    def _steps_reached(self, live: Sequence[RunView]) -> dict[str, int]:
        """Return the steps of the runs in progress, and of those that an interruption has put back into the queue.

        A run that goes on keeps the steps of its last attempt until the new one writes its first line.
        """
        if self._reached is None:  # what an earlier session has trained
            queued = self._reader.runs_of(self._study.id, [RunState.QUEUED])
            self._reached = {run.fingerprint: self.view_run(run).step for run in queued if run.token > 0}
        for view in live:
            self._reached[view.run.fingerprint] = view.step or self._reached.get(view.run.fingerprint, 0)
        gone = self._reached.keys() - {view.run.fingerprint for view in live}
        for fingerprint, state in self._reader.states_of(list(gone)).items() if gone else ():
            if state in TERMINAL:
                del self._reached[fingerprint]
        return self._reached

    def _left(self, now: float, trained: int, total: int) -> float | None:
        """Return the seconds left; what comes before the first step, such as preparation, says nothing of the pace."""
        if self._least is None or trained < self._least:
            self._least = trained
        if self._first_step is None:
            self._first_step = (now, trained) if trained > self._least else None
            return None
        since, before = self._first_step
        if trained != self._newest[1]:
            self._newest = (now, trained)
        if trained <= before:
            return None
        seen = trained - before
        # until the next step is overdue, waiting for it doesn't change the pace
        pace = max((self._newest[0] - since) / seen, (now - since) / (seen + 1))
        return (total - trained) * pace


class _Followed:
    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tail = Tail(folder.metrics)
        self.step = 0
        self.values: dict[str, float] = {}
        self.newest: Mapping[str, float] = {}
        self.status: Status = "unknown"
        self.detector = ""
        self.critical: dict[str, dict[str, Any]] = {}
        self.trouble = ""

    def read(self) -> None:
        try:
            lines = self._tail.read()
        except RunFolderError as error:
            self.status, self.trouble = "critical", str(error)
            return
        except OSError:  # the next look reads it
            return
        for line in lines:
            self.step = line.step
            self.values.update(line.values)
            self.newest = line.values
        found = nan(lines)
        if found.state == "critical":
            self.critical[found.detector] = plain(found)
        if lines and not self.critical:
            self.status = worst([found])
        self._read_health_file()
        if self.critical:
            self.status, self.detector = "critical", self.detector or next(iter(self.critical))

    def _read_health_file(self) -> None:
        """Use what the supervisor has written; a run shorter than two seconds has no such file."""
        known = read_health(self._folder)
        if known is not None:
            self.critical |= {f.detector: plain(f) for f in known.raised if f.state == "critical"}
            self.status, self.detector = known.status, known.detector
