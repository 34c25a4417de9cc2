"""Studies that grow: what is submitted is the plan of a study file, or what has grown from it.

A study grows by plans of the same name that hold all its runs and more. Each is submitted in one transaction when no
run of the one before is open, so that after a kill the newest one, or the answer to the same question, is there again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, Unpack

from paribus.store.records import StudyRecord, Terms
from paribus.store.store import Store
from paribus.study.plan import Plan

Grown: TypeAlias = Callable[[Store, StudyRecord], Plan | None]
"""The plan that the rule of a study asks for, or ``None``: see :func:`paribus.report.growth.grown`."""


def ungrown(store: Store, study: StudyRecord) -> None:
    """Ask for nothing: for studies of which all runs are known."""


def submit(store: Store, plan: Plan, grown: Grown, **terms: Unpack[Terms]) -> StudyRecord:
    """Submit the plan of a study file; of a study that has grown the newest plan, with what the file says now."""
    study = store.add_study(store.newest_of(plan) if plan.grows else plan, **terms)
    while (later := grow(store, study, grown)) is not None:
        study = later
    return study


def grow(store: Store, study: StudyRecord, grown: Grown) -> StudyRecord | None:
    """Submit what the rule of a study asks for; ``None`` while a run is open or it is paused, or if that is nothing."""
    (entry,) = store.entries([study.id])
    if not study.plan.grows or entry.open or entry.paused:
        return None
    plan = grown(store, study)
    return None if plan is None else store.add_study(plan)


def added_text(before: StudyRecord, after: StudyRecord) -> str:
    """Return how much a study has grown."""
    more = len(after.plan.all_runs) - len(before.plan.all_runs)
    return f"the results so far ask for {more} more run{'s' if more > 1 else ''}"
