"""What was declared after results were there, in words: on the first screen, in the cautions and in the provenance."""

from __future__ import annotations

from paribus.report.analysis.analysis import Analysis
from paribus.report.declared import TERMS, Declared
from paribus.text import listed, plural, time_text

HELD_BACK = {
    "margin": "`equivalent` is exploratory",
    "symptoms": "Holm's correction is used",
    "pairing": "seeds are compared by pairs, as without it",
}
"""What the report does about a term of :data:`.declared.TERMS` that was declared after results."""


def exploratory(analysis: Analysis) -> list[str]:
    """Return what is exploratory on the first screen: arms, with the family that they are corrected over, and terms."""
    declared = analysis.data.declared
    if declared is None or not declared.late:
        return []
    arms, late = len(analysis.to_base), len(declared.late_arms)
    which = f"{late} of {arms} arms" if arms > 1 else "the arm"
    parts = []
    if late:
        them = "it" if late == 1 else "them"
        parts.append(
            f"Exploratory: {which} had results before this plan was declared, so nothing is claimed of {them}."
        )
        if analysis.family:
            over = "1 arm, the only one" if analysis.family == 1 else f"{analysis.family} arms, all"
            parts.append(f"p is corrected over {over} that this store has compared with this base.")
    if declared.late_terms:
        parts.append(f"Declared after results were there: {listed(TERMS[name] for name in _terms(declared))}.")
    return parts


def cautions(analysis: Analysis) -> list[str]:
    """Return which arms and terms were declared after results, when, and what follows from it."""
    declared = analysis.data.declared
    if declared is None or not declared.late:
        return []
    when = f"when this plan was first submitted ({_time(declared.at)})"
    found = []
    if declared.late_arms:
        names = listed(f"`{analysis.label(a)}`" for a in analysis.to_base if a in declared.late_arms)
        found.append(
            f"Exploratory: the store had results of {names} {when}, and no earlier plan declared the same comparison "
            "together with its other arms, seeds and score. With results in sight one can choose what to compare, so "
            f"these p values show little; {_remedy(analysis)}."
        )
    found += [
        f"Exploratory: {TERMS[name]} was not declared yet when results came in; {HELD_BACK[name]}."
        for name in _terms(declared)
    ]
    return found


def _remedy(analysis: Analysis) -> str:
    if analysis.plan.external:
        return "runs with fresh seeds, of a study that is declared before, would show more"
    return "`paribus next` writes a plan with fresh seeds"


def declared_rows(analysis: Analysis) -> dict[str, str]:
    """Return the rows of the provenance: when the plan and its runs were declared, and what the store compares."""
    declared = analysis.data.declared
    if declared is None:
        return {}
    runs = len(analysis.plan.runs)
    before = (
        f"when {declared.known} of its {plural(runs, 'run')} had results"
        if declared.known
        else "before any of its results"
    )
    by = [f"{count} by `{name}` ({_time(at)})" for (name, at), count in declared.planned_by.items()]
    return {
        "declared": f"{_time(declared.at)}, {before}",
        "runs first planned": ", ".join(by),
        "compared with this base": (
            f"{plural(len(declared.compared), 'arm')} with results, over all plans of this store"
        ),
    }


def _terms(declared: Declared) -> list[str]:
    return [name for name in TERMS if name in declared.late_terms]


def _time(seconds: float) -> str:
    return time_text(seconds) if seconds else "time not recorded"
