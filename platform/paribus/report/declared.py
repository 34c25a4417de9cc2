"""What a plan declared after results were there, and how many arms the store has compared with its base."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from paribus.store.models import StudyRecord
from paribus.store.reader import Reader
from paribus.study.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Declared:
    """When a plan was declared, and what was known then.

    Attributes:
        at: its first submission, in seconds since 1970; that of the plan that it grew from, if it did.
        known: number of its runs that had a result then.
        late_arms: keys of the arms with such runs, whose comparison no earlier plan had declared before its results.
        late_terms: what else no plan had declared before these results, of :data:`TERMS`.
        compared: keys of the arms with a result that the plans of this store compare with the same runs of the base.
        planned_by: name of each plan and time of its first submission, to the number of this plan's runs that it
            planned first.
    """

    at: float
    known: int = 0
    late_arms: frozenset[str] = frozenset()
    late_terms: frozenset[str] = frozenset()
    compared: frozenset[str] = frozenset()
    planned_by: Mapping[tuple[str, float], int]

    @property
    def late(self) -> bool:
        """Whether anything was declared after results were there."""
        return bool(self.late_arms or self.late_terms)


TERMS: Mapping[str, str] = {
    "margin": "the margin",
    "symptoms": "the correction of the symptoms",
    "pairing": "the rule for pairs",
}
"""What a study file declares about its tests, beside arms, seeds and score, in words."""


def read_declared(reader: Reader, study: StudyRecord) -> Declared | None:
    """Return what was declared after results; ``None`` if the store does not know when the plan was first submitted."""
    fingerprints = [run.fingerprint for run in study.plan.runs]
    plans = reader.studies_with(fingerprints)
    recorded = reader.recorded_at([run.fingerprint for each in plans for run in each.plan.runs])
    return declared(study, plans, recorded, reader.first_planned(fingerprints))


def declared(
    study: StudyRecord,
    plans: Sequence[StudyRecord],
    recorded: Mapping[str, float],
    planned_by: Mapping[tuple[str, float], int],
) -> Declared | None:
    """Return what a plan declared after results were there. A pure function; see :func:`read_declared`.

    An arm counts as declared before its results if an earlier plan was, with the same base, seeds and score, and if
    this plan has all arms of that one: so that arms may be added, and none left out once results are seen.

    Args:
        study: the plan.
        plans: all plans with runs of this one, itself included.
        recorded: fingerprint of each run with a result to its time.
        planned_by: see :class:`Declared`.
    """
    every = [_Known(each, plans, recorded) for each in plans]
    mine = _Known(study, plans, recorded)
    if not mine.at:
        return None
    plan, known = study.plan, mine.known
    others = [each for each in every if each.at and each.plan.base == plan.base]
    late_arms = frozenset(
        arm for arm in _arms_of(plan, known) - {plan.base} if not any(_declares(o, mine, arm) for o in others)
    )
    seen = {r.fingerprint for r in plan.runs if r.arm != plan.base} & known  # the base alone shows nothing
    early = [each for each in others if seen and not each.has_seen(seen)]
    same = {name: any(_term(e.plan, name) == _term(plan, name) for e in early) for name in TERMS}
    late_terms = frozenset(
        name for name, was in same.items() if seen and not was and _term(plan, name) != _term_default(name)
    )
    return Declared(
        at=mine.at,
        known=len(known),
        late_arms=late_arms,
        late_terms=late_terms,
        compared=_compared(plan, others, recorded),
        planned_by=planned_by,
    )


class _Known:
    """A plan, when it was declared, and which of its runs had a result then."""

    def __init__(self, study: StudyRecord, plans: Iterable[StudyRecord], recorded: Mapping[str, float]) -> None:
        self.plan = study.plan
        self.recorded = recorded
        origins = (p for p in plans if (p.name, p.plan.fingerprint) == (study.name, study.plan.origin))
        self.at = next(origins, study).first_submitted_at

    @cached_property
    def known(self) -> frozenset[str]:
        """Fingerprints of the runs of this plan that had a result when it was declared."""
        return frozenset(r.fingerprint for r in self.plan.runs if self.recorded.get(r.fingerprint, math.inf) < self.at)

    def has_seen(self, runs: Iterable[str]) -> bool:
        """Whether one of these runs had a result when this plan was declared."""
        return any(self.recorded.get(fingerprint, math.inf) < self.at for fingerprint in runs)


def _declares(other: _Known, mine: _Known, arm: str) -> bool:
    """Whether a plan declared the comparison before its results, and this plan leaves no arm with results out.

    A rule for pairs that was declared may not be dropped; one that was added is among the :data:`TERMS`.
    """
    same = _comparison(other.plan) == _comparison(mine.plan)
    same = same and other.plan.pairing in (_term_default("pairing"), mine.plan.pairing)
    runs = [r.fingerprint for r in mine.plan.runs if r.arm == arm]
    kept = _arms_of(other.plan, other.recorded) <= {a.key for a in mine.plan.arms}
    return arm in {a.key for a in other.plan.arms} and kept and same and not other.has_seen(runs)


def _comparison(plan: Plan) -> tuple[object, ...]:
    """Return what makes another comparison of the same arms; of a study that adds seeds its rule, not how far it is."""
    seeds = frozenset(plan.seeds) if plan.interim is None else (plan.interim, min(plan.seeds, default=0))
    return (seeds, plan.paired, plan.evaluate.primary_metric, plan.evaluate.checkpoint)


def _term(plan: Plan, name: str) -> object:
    terms: Mapping[str, object] = {
        "margin": plan.margin,
        "symptoms": plan.symptom_correction,
        "pairing": plan.pairing,
    }
    return terms[name]


def _term_default(name: str) -> object:
    """Return the value with which a study file declares nothing."""
    return {"margin": None, "symptoms": "holm", "pairing": "always"}[name]


def _arms_of(plan: Plan, fingerprints: Iterable[str]) -> frozenset[str]:
    wanted = set(fingerprints)
    return frozenset(run.arm for run in plan.runs if run.fingerprint in wanted)


def _compared(plan: Plan, others: Iterable[_Known], recorded: Mapping[str, float]) -> frozenset[str]:
    """Return the arms with a result of the plans that have runs of the same base."""
    base = {run.fingerprint for run in plan.runs if run.arm == plan.base}
    found = set[str]()
    for other in others:
        runs = other.plan.runs
        if any(run.arm == other.plan.base and run.fingerprint in base for run in runs):
            found |= {run.arm for run in runs if run.fingerprint in recorded}
    return frozenset(found - {plan.base})
