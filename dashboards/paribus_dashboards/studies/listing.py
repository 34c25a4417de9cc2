"""The list of studies, the newest first: status, best score, date, and how many runs are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from paribus.run_folder.metrics import find_metric
from paribus.store.models import StudySummary
from paribus.store.remarks import NOTHING, About
from paribus.store.states import LIVE, TERMINAL, RunState
from paribus.text import time_text
from paribus_dashboards.data.cache import Cache
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.study_now import StudyNow
from paribus_dashboards.format import spaced

READ_S = 0.4
"""Seconds that one request spends on reading scores; the next requests add the rest."""

_POINTS = 32  # of a score's curve, as the sparklines of the board


@dataclass(frozen=True, kw_only=True)
class Best:
    """The arm with the best mean score, over the newest values of its runs that have ended.

    Attributes:
        arm: its label; empty if no run has ended with a score.
        value: the mean.
        n: seeds of the mean.
        score: label of the score.
    """

    arm: str = ""
    value: float = 0.0
    n: int = 0
    score: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyRow:
    """One study.

    Attributes:
        name: its name.
        status: e.g. ``running``, ``paused`` or ``done``.
        trouble: whether runs have failed, or none runs although some wait.
        best: its best arm; ``None`` if not all scores are read yet.
        submitted: when it was last submitted.
        done: number of runs that have ended.
        runs: number of all runs.
        states: number of runs by state, in words.
        terms: priority and weight if they aren't the usual ones.
        about: its note and tags, and whether it is archived.
    """

    name: str
    status: str
    trouble: bool
    best: Best | None
    submitted: str
    done: int
    runs: int
    states: str
    terms: str
    about: About = NOTHING

    @property
    def hidden(self) -> bool:
        """Whether the list leaves it out: it is archived, and all its runs have ended."""
        return self.about.archived and self.done == self.runs


_BEST: Cache[tuple[Path, int], Best] = Cache(1024)


class _Late(Exception):
    """The time is over: nothing is kept, and the next request goes on."""


def rows(home: Home, limit_s: float | None = READ_S) -> tuple[StudyRow, ...]:
    """Return all shown studies, the newest first; later rows are without a best score once the time is over.

    Args:
        home: the home folder.
        limit_s: seconds for reading scores; ``None``: as many as it takes.

    Raises:
        StoreError: the store cannot be read.
    """
    until = None if limit_s is None else time.monotonic() + limit_s
    newest, said = sorted(home.studies(), key=lambda e: e.submitted_at, reverse=True), home.about_studies()
    return tuple(_row(home, entry, until, said.get(entry.name, NOTHING)) for entry in newest)


def chosen(found: Sequence[StudyRow], *, archived: bool, tag: str) -> tuple[StudyRow, ...]:
    """Return the studies in the archive, or the others; with a tag, unless it is empty."""
    return tuple(row for row in found if row.hidden is archived and (not tag or tag in row.about.tags))


def _row(home: Home, entry: StudySummary, until: float | None, about: About) -> StudyRow:
    counts = home.counts(entry)
    done = sum(n for state, n in counts.items() if state in TERMINAL)
    terms = [f"priority {entry.priority}"] * bool(entry.priority) + [f"weight {entry.weight:g}"] * (entry.weight != 1)
    status, trouble = status_of(counts, paused=bool(entry.paused))
    ended = tuple(sorted((s, n) for s, n in counts.items() if s in TERMINAL))
    return StudyRow(
        name=entry.name,
        status=status,
        trouble=trouble,
        best=_best(home, entry, ended, until) if done else Best(),
        submitted=time_text(entry.submitted_at),
        done=done,
        runs=sum(counts.values()),
        states=", ".join(f"{n} {spaced(state)}" for state, n in counts.items()),
        terms=", ".join(terms),
        about=about,
    )


def status_of(counts: Mapping[RunState, int], *, paused: bool) -> tuple[str, bool]:
    """Return the status of a study in a word or two, and whether it needs a look.

    Args:
        counts: number of its runs by state.
        paused: whether it is paused.
    """
    failed = sum(counts.get(s, 0) for s in (RunState.FAILED, RunState.QUARANTINED))
    lost = f", {failed} failed" if failed else ""
    if all(state in TERMINAL for state in counts):
        cancelled = counts.get(RunState.CANCELLED, 0)
        return ("cancelled" if cancelled == sum(counts.values()) else f"done{lost}"), bool(failed)
    if paused:
        return f"paused{lost}", True
    if any(counts.get(state) for state in LIVE):
        return f"running{lost}", bool(failed)
    return f"waiting{lost}", bool(failed)


def _best(home: Home, entry: StudySummary, stamp: Hashable, until: float | None) -> Best | None:
    def make() -> Best:
        if until is not None and time.monotonic() > until:
            raise _Late
        return best_of(home.study(entry.name), _newest(home, home.study(entry.name), until))

    try:
        return _BEST.get((home.folder, entry.id), stamp, make)
    except _Late:
        return None


def _newest(home: Home, study: StudyNow, until: float | None) -> Mapping[str, float]:
    """Return fingerprint to the newest score of the runs that have ended; what is read once stays in the cache."""
    metric, found = study.record.plan.evaluate.primary_metric, {}
    for run in study.runs:
        if not run.terminal or not run.token:
            continue
        late = until is not None and time.monotonic() > until
        read: Callable[..., Sequence[tuple[int, float]] | None] = home.cached_points if late else home.points
        points = read(run, metric, least=_POINTS)
        if points is None:
            raise _Late
        if points:
            found[run.fingerprint] = points[-1][1]
    return found


def best_of(study: StudyNow, newest: Mapping[str, float]) -> Best:
    """Return the arm with the best mean.

    Args:
        study: the study.
        newest: fingerprint to the newest score, of runs with a result only.
    """
    plan = study.record.plan
    metric = find_metric(plan.evaluate.primary_metric)
    by_arm: dict[str, list[float]] = {}
    for run in study.runs:
        if run.fingerprint in newest and run.recorded:
            by_arm.setdefault(run.arm, []).append(newest[run.fingerprint])
    if not by_arm:
        return Best()
    sign = -1.0 if metric is not None and metric.better == "lower" else 1.0
    arm = max(by_arm, key=lambda key: sign * fmean(by_arm[key]))
    return Best(
        arm=plan.arm(arm).label,
        value=fmean(by_arm[arm]),
        n=len(by_arm[arm]),
        score=metric.label if metric else plan.evaluate.primary_metric,
    )
