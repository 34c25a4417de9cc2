"""The state of all studies, and of the runs of one, as plain values: what `paribus status` and a server print."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from paribus.monitor.progress import Follower, RunView
from paribus.store.budget import UNITS
from paribus.store.models import StudyRecord, StudySummary
from paribus.store.reader import Reader
from paribus.store.states import LIVE, TERMINAL, RunState
from paribus.study.adaptive import stage_text

PAGE = 200
"""Runs on a page."""

_LAST = ("reward/mean", "reward/correct_frac")


def studies(reader: Reader) -> list[dict[str, Any]]:
    """Return one entry for each study name, with the counts of its newest plan."""
    newest = {s.name: s for s in reader.summaries()}
    return [_study(reader, s) for s in newest.values()]


def _study(reader: Reader, entry: StudySummary) -> dict[str, Any]:
    counts = reader.counts(entry.id)
    running = sum(counts.get(state, 0) for state in LIVE)
    if not entry.open:
        state = "ended"
    elif entry.paused:
        state = "paused"
    elif running:
        state = "running"
    else:
        state = "queued" if reader.within_budget(entry.name) else "out of budget"
    return {
        "study": entry.name,
        "state": state,
        "priority": entry.priority,
        "weight": entry.weight,
        "runs": sum(counts.values()),
        "running": running,
        "states": {str(k): n for k, n in counts.items()},
        "paused": entry.paused,
    }


def page_of(reader: Reader, name: str, page: int = 1, states: Collection[RunState] = tuple(RunState)) -> dict[str, Any]:
    """Return a study's counts, its budgets, and one entry for each run on a page, in queue order."""
    study = reader.study(name)
    counts = reader.counts(study.id)
    found = sum(n for state, n in counts.items() if state in states)
    follower = Follower(reader, study)
    return {
        "study": name,
        "paused": study.paused,
        "stage": stage_text(study.plan),
        "budget": budgets(reader, study, counts),
        "states": {str(state): n for state, n in counts.items()},
        "page": page,
        "pages": max(1, -(-found // PAGE)),
        "runs": [_entry(follower.view_run(r)) for r in reader.runs_page(study.id, PAGE * (page - 1), PAGE, states)],
    }


def budgets(reader: Reader, study: StudyRecord, counts: Mapping[RunState, int]) -> list[dict[str, Any]]:
    """Return one entry, in hours, for each unit that a study has used or has a budget in."""
    remaining = sum(n for state, n in counts.items() if state not in TERMINAL)
    found = []
    for unit, words in UNITS.items():
        budget = reader.budget(study.name, unit)
        if budget.cap is None and budget.used + budget.reserved == 0:
            continue
        forecast = budget.forecast(remaining)
        seconds = {"cap": budget.cap, "spent": budget.spent, "in_flight": budget.live, "wasted": budget.wasted}
        seconds |= {"reserved": budget.reserved, "forecast": forecast, "expected": budget.expected(remaining)}
        hours = {part: None if s is None else s / 3600 for part, s in seconds.items()}
        found.append({"unit": words, **hours, "allows_another": budget.allows_another})
    return found


def _entry(view: RunView) -> dict[str, Any]:
    run = view.run
    return {
        "arm": run.label,
        "seed": run.seed,
        "state": str(run.state),
        "attempt": run.token,
        "step": view.step,
        "steps": view.steps,
        "health": view.status,
        "detector": view.detector,
        "reward": next((view.values[m] for m in _LAST if m in view.values), None),
        "reason": run.reason or view.trouble,
        "fingerprint": run.fingerprint,
    }
