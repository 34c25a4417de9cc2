"""Submits a study file to a store: the one way, for `paribus submit` and for a server that was sent the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paribus.report.adaptive import grown
from paribus.scheduler.adaptive import Adaptive
from paribus.store.models import Terms
from paribus.store.states import RECORDED, RunState
from paribus.store.store import Store
from paribus.store.trained import TrainedModels
from paribus.study.expand import draft_file
from paribus.study.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A study that was submitted.

    Attributes:
        study: its name.
        runs: what the submission means for its runs, e.g. ``24 runs: 18 new, 6 with a result already``; of a plan that
            was there before, numbers of runs by state.
        again: whether this plan was there before.
        priority: studies with a higher priority are served first.
        weight: share among studies of the same priority.
        paused: why none of its runs is started; empty if it is not paused.
    """

    study: str
    runs: Mapping[str, int]
    again: bool
    priority: int
    weight: float
    paused: str


def submit_file(file: Path, home: Path, terms: Terms, changes: Sequence[str] = (), *, sent: bool = False) -> Submission:
    """Make the plan of a study file and submit it.

    Args:
        file: the study file.
        home: home folder; created if it does not exist.
        terms: priority and weight, as far as they were asked for.
        changes: values of ``--set``, as in :func:`paribus.study.load.read_study`.
        sent: the file comes from another machine, as there.

    Raises:
        ParibusError: the study is wrong or cannot be trained here, or the store cannot be used.
    """
    draft = draft_file(file, changes, sent=sent, models=TrainedModels(home))
    plan = draft.checked()
    with Store.open(home) as store:
        before = _submitted(store, plan)
        known = store.states_of([run.fingerprint for run in plan.runs])
        record = Adaptive(grown).submit(store, plan, **terms)
        runs = {str(k): n for k, n in store.counts(record.id).items()} if before else _counts(plan, known)
    return Submission(
        study=plan.study,
        runs=runs,
        again=before,
        priority=record.priority,
        weight=record.weight,
        paused=record.paused,
    )


def _submitted(store: Store, plan: Plan) -> bool:
    """Return whether the newest plan of this name in the store is this plan, or one that it has grown to."""
    newest = {entry.name: entry.id for entry in store.summaries()}.get(plan.study)
    if newest is None:
        return False
    found = store.study_by_id(newest).plan
    return plan.fingerprint in (found.fingerprint, found.origin)


def _counts(plan: Plan, known: Mapping[str, RunState]) -> dict[str, int]:
    """Return the numbers of runs by what the submission means for them.

    ``known`` are the states of its runs that the store had before, by fingerprint.
    """
    done = sum(state in RECORDED for state in known.values())
    return {
        "new": len(plan.runs) - len(known),
        "shared with other studies": len(known) - done,
        "with a result already": done,
    }
