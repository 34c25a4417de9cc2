"""The tables of the evaluation sets, where a study has more than the held-out problems of its task."""

from __future__ import annotations

from paribus.contract import EvaluationSet
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.measures import set_measures
from paribus.report.model import Column, Table, TableRow
from paribus.report.tables.cells import (
    HALF_WIDTH,
    interval_notes,
    measure_columns,
    measure_row,
    score_cell,
    seeds_cell,
    seeds_column,
)
from paribus.text import plural

SECONDARY = (
    "Only the primary metric is tested, in the tables of the designs. The other columns are secondary: no difference "
    "in them is tested, and their intervals are not corrected for the number of sets."
)


def sets_table(analysis: Analysis) -> Table | None:
    """Return avg@k of each arm on each evaluation set, a column a set; ``None`` with the held-out problems alone."""
    evaluate = analysis.evaluate
    if not evaluate.sets:
        return None
    measures = {name: set_measures(evaluate, name)[0] for name in evaluate.all_sets}
    primary = {m.metric for m in measures.values()} & {analysis.score.metric}
    shown = [m if m.metric != analysis.score.metric else analysis.score for m in measures.values()]
    shown = shown if primary else [analysis.score, *shown]
    names = [*measures] if primary else [evaluate.primary_set, *measures]
    columns = [seeds_column(analysis)]
    for name, measure in zip(names, shown, strict=True):
        is_score = measure is analysis.score
        rate = measure.metric.rpartition("/")[2].replace("_at_", "@")
        columns.append(
            Column(
                key=measure.metric,
                label=f"{name} {rate}" + (" (primary)" if is_score else ""),
                unit=measure.unit,
                note=f"{'primary' if is_score else 'secondary, not tested'}: {set_text(evaluate.all_sets[name])}",
            )
        )
    rows = [
        TableRow(
            label=analysis.label(arm.key),
            cells=(seeds_cell(analysis, arm.key), *(score_cell(analysis, arm.key, m) for m in shown)),
        )
        for arm in analysis.plan.arms
    ]
    limited = all(analysis.limited(m) for m in measures.values())
    return Table(
        key="sets",
        title="Evaluation sets",
        answers="What does each arm reach on each set of problems?",
        first="Arm",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(SECONDARY, *interval_notes(rows, score="avg@k on a set" if limited else "")),
        main=True,
    )


def set_details(analysis: Analysis) -> list[Table]:
    """Return a table for each evaluation set with all that is measured on it; none with the held-out problems alone."""
    return [_details(analysis, name) for name in analysis.evaluate.all_sets] if analysis.evaluate.sets else []


def _details(analysis: Analysis, name: str) -> Table:
    measures = set_measures(analysis.evaluate, name)
    rows = [measure_row(analysis, analysis.label(arm.key), arm.key, measures) for arm in analysis.plan.arms]
    role = "the primary metric is on it" if name == analysis.evaluate.primary_set else "secondary"
    return Table(
        key=f"sets.{name}",
        title=f"Set `{name}`",
        answers=f"Accuracy, majority, coverage, truncation and length on `{name}` ({role}).",
        first="Arm",
        columns=measure_columns(analysis, measures),
        rows=tuple(rows),
        notes=(
            f"{set_text(analysis.evaluate.all_sets[name])}; evaluations as for the score. Not tested.",
            *interval_notes(rows, HALF_WIDTH),
        ),
    )


def set_text(chosen: EvaluationSet) -> str:
    """Return a set in words; how many problems its files hold is not known here."""
    return chosen.about(f"up to {plural(chosen.problems, 'problem')}")
