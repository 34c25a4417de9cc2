"""Adaptive studies: submits the plan of a study file, or the plan that it has grown to, and lets it grow further.

A study grows by plans of the same name that hold all its runs and more. Each is submitted in one transaction, and only
when no run of the one before is open. So after a kill, the newest plan is in the store, or the same question gets the
same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, Unpack

from paribus.store.models import StudyRecord, Terms
from paribus.store.store import Store
from paribus.study.plan import Plan
from paribus.study.search import refuse_without_optuna

NextPlan: TypeAlias = Callable[[Store, StudyRecord], Plan | None]
"""Returns the plan that a study's rule asks for after its results so far, or ``None``."""


@dataclass(frozen=True)
class Adaptive:
    """Submits and grows studies by a rule.

    Attributes:
        next_plan: the rule; :func:`paribus.report.adaptive.grown`, which this package may not import, as it needs the
            report's statistics. By default no study grows.
    """

    next_plan: NextPlan = lambda _store, _study: None

    def submit(self, store: Store, plan: Plan, **terms: Unpack[Terms]) -> StudyRecord:
        """Submit the plan of a study file; if the study has grown, its newest plan with the file's current terms.

        Raises:
            MissingExtra: the plan has a search, and Optuna is not installed.
        """
        refuse_without_optuna(plan)
        study = store.add_study(store.latest_version(plan) if plan.adaptive else plan, **terms)
        while (later := self.grow(store, study)) is not None:
            study = later
        return study

    def grow(self, store: Store, study: StudyRecord) -> StudyRecord | None:
        """Submit the study's next plan; ``None`` if it is paused or gone, has an open run, or needs no other plan."""
        entry = next(iter(store.summaries([study.id])), None)
        if not study.plan.adaptive or entry is None or entry.open or entry.paused:
            return None
        plan = self.next_plan(store, study)
        return None if plan is None else store.add_study(plan)


def growth_text(before: StudyRecord, after: StudyRecord) -> str:
    """Return how many runs a study has grown by, as a sentence."""
    more = len(after.plan.all_runs) - len(before.plan.all_runs)
    return f"the results so far ask for {more} more run{'s' if more > 1 else ''}"
