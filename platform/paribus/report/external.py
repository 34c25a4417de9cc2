"""What a report says of runs that Paribus did not start, and what it cannot know of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paribus.errors import ParibusError
from paribus.report.analysis.analysis import Analysis
from paribus.report.inputs import StudyData
from paribus.study.plan import Plan
from paribus.text import listed

UNKNOWN = (
    "problems", "responses per problem", "evaluation temperature", "evaluation top-p", "max new tokens",
    "evaluated every",
)  # fmt: skip
"""Rows of the provenance that an external plan has no values for."""


def external_words(analysis: Analysis) -> list[str]:
    """Return where the runs come from and what their score is; nothing for runs that Paribus trained."""
    found = [run.external for run in analysis.data.runs if run.external]
    if not found:
        return []
    imported = sum(each.origin == "imported" for each in found)
    logs = _of("logs", (each.trainer for each in found if each.origin == "imported"))
    kinds = [f"imported from {logs}"] if imported else []
    kinds += ["tracked while their program trained"] if imported < len(found) else []
    names = sorted({f"`{each.score}`" for each in found if each.score})
    score = f"The score is the trainer's own {listed(names) or 'number'}, not an evaluation by Paribus."
    noise = "" if analysis.held else " It has no counts per problem, so intervals show the spread of seeds alone."
    return [f"Not trained by Paribus: {listed(kinds)}. {score}{noise}"]


def runs_per_arm(analysis: Analysis) -> set[int]:
    """Return the numbers of runs that arms have: as planned, or where Paribus did not plan them, as there are."""
    plan = analysis.plan
    return {len(analysis.runs(a.key)) for a in plan.arms} if plan.external else {len(plan.seeds)}


def _of(what: str, trainers: Iterable[str]) -> str:
    named = sorted({t for t in trainers if t})
    return f"{what} of {listed(named)}" if named else what


def external_rows(plan: Plan, rows: Mapping[str, str]) -> dict[str, str]:
    """Return the rows of the provenance without what an external plan cannot know."""
    if not plan.external:
        return dict(rows)
    found = {name: text for name, text in rows.items() if name not in UNKNOWN}
    rule = plan.evaluate.checkpoint
    return {**found, "checkpoint rule": f"{rule}, applied afterwards", "evaluation": "the trainer's own: not known"}


def refuse_external(*studies: StudyData) -> None:
    """Refuse studies whose recipes and evaluations are not known.

    Raises:
        ParibusError: Paribus did not train one of them.
    """
    if named := [f"`{each.plan.study}`" for each in studies if each.plan.external]:
        raise ParibusError(
            f"{listed(named)}: Paribus did not train these runs. Their recipes are not known and their scores are not "
            "evaluations by Paribus, so nothing of another study is compared with them. Imported runs are compared "
            "inside one study: `paribus import --study`."
        )
