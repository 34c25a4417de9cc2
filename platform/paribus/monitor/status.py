"""The state of all studies, and of the runs of one, as plain values: what `paribus status` and a server print."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from paribus.monitor.progress import Follower, RunView
from paribus.store.budget import UNITS
from paribus.store.models import StudyRecord, StudySummary
from paribus.store.reader import Reader
from paribus.store.remarks import NOTHING, About, Subject
from paribus.store.states import LIVE, TERMINAL, RunState
from paribus.study.adaptive import stage_text

PAGE = 200
"""Runs on a page."""

_LAST = ("reward/mean", "reward/correct_frac")


def studies(reader: Reader) -> list[dict[str, Any]]:
    """Return one entry for each study name, with the counts of its newest plan."""
    newest, said = {s.name: s for s in reader.summaries()}, reader.about_studies()
    return [_study(reader, s, said.get(s.name, NOTHING)) for s in newest.values()]


def _study(reader: Reader, entry: StudySummary, about: About) -> dict[str, Any]:
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
        "note": about.note,
        "tags": list(about.tags),
        "archived": about.archived,
    }


def listed(entries: list[dict[str, Any]], tags: Collection[str], *, archived: bool) -> list[dict[str, Any]]:
    """Return the studies that a list shows: those with all of these tags, and those in the archive or the others.

    An archived study in which something may still run is listed with the others.
    """
    kept = [e for e in entries if {*tags} <= {*e["tags"]}]
    return [e for e in kept if (e["archived"] and e["state"] == "ended") is archived]


def page_of(
    reader: Reader,
    name: str,
    page: int = 1,
    states: Collection[RunState] = tuple(RunState),
    tags: Collection[str] = (),
) -> dict[str, Any]:
    """Return a study's counts, its budgets, and one entry for each run on a page, in queue order.

    Args:
        reader: the store.
        name: the study.
        page: which page, from 1.
        states: only runs in these states.
        tags: only runs with all of these tags.
    """
    study = reader.study(name)
    counts, said = reader.counts(study.id), reader.about_runs(study.id)
    about = reader.about(Subject(study=name))
    follower = Follower(reader, study)
    if tags:
        tagged = {run for run, its in said.items() if {*tags} <= {*its.tags}}
        chosen = [run for run in reader.runs_page(study.id, 0, None, states) if run.fingerprint in tagged]
        found, shown = len(chosen), chosen[PAGE * (page - 1) : PAGE * page]
    else:
        found = sum(n for state, n in counts.items() if state in states)
        shown = list(reader.runs_page(study.id, PAGE * (page - 1), PAGE, states))
    return {
        "study": name,
        "paused": study.paused,
        "stage": stage_text(study.plan),
        "budget": budgets(reader, study, counts),
        "states": {str(state): n for state, n in counts.items()},
        "note": about.note,
        "tags": list(about.tags),
        "archived": about.archived,
        "page": page,
        "pages": max(1, -(-found // PAGE)),
        "runs": [_entry(follower.view_run(r), said.get(r.fingerprint, NOTHING)) for r in shown],
    }


def remarks_of(reader: Reader, subject: Subject) -> dict[str, Any]:
    """Return note and tags of a study or run, and who changed what when, the oldest first.

    A run has ``in``: its arm and seed in the newest plan of each study that has it.
    """
    about = reader.about(subject)
    log = [asdict(remark) for remark in reader.remarks(subject)]
    for line in log:
        del line["study"], line["run"]
    plans = {s.name: s.plan for s in (reader.studies_with([subject.run]) if subject.run else ())}
    where = [
        {"study": name, "arm": plan.arm(planned.arm).label, "seed": planned.seed}
        for name, plan in plans.items()
        for planned in plan.all_runs
        if planned.fingerprint == subject.run
    ]
    return {**asdict(subject), **asdict(about), "tags": list(about.tags), "in": where, "log": log}


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


def _entry(view: RunView, about: About) -> dict[str, Any]:
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
        "stopped_at_end": view.stopped_at_end,
        "fingerprint": run.fingerprint,
        "note": about.note,
        "tags": list(about.tags),
    }
