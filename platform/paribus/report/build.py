"""Builds the model of a report: every table, figure and sentence of a study, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paribus.report import sentences
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.interim import with_interim_note
from paribus.report.figures.alt_text import described
from paribus.report.figures.curves import curves, pass_figure
from paribus.report.figures.forests import contribution_figure, forest_figure, matrix_figures
from paribus.report.inputs import StudyData
from paribus.report.model import Figure, ReportModel, Table
from paribus.report.provenance import provenance
from paribus.report.tables.appendix import all_details
from paribus.report.tables.effects import contribution_table, design_effects, effects_table, order_tables
from paribus.report.tables.scores import behaviour_table, learning_table, published_tables, score_table
from paribus.report.tables.search_ranking import search_table
from paribus.study.adaptive import stage_text


def build_report(data: StudyData) -> ReportModel:
    """Return the report of a study, finished or not.

    Raises:
        ParibusError: the data lack provenance.
    """
    analysis = Analysis(data)
    ended = sum(r.outcome != "pending" for r in data.runs)
    screening = data.plan.ranking is not None and not data.plan.ranking.confirmed
    complete = ended == len(data.runs) and not screening
    finished = sum(r.outcome == "finished" for r in data.runs)
    status = (
        f"{'complete' if complete else 'incomplete'}: {ended} of {len(data.runs)} runs ended, {finished} as planned"
    )
    status += f"; {stage_text(data.plan)}" if screening else ""
    status += f"; plus {len(data.screened)} runs of the search" if data.screened else ""
    tables = tuple(with_interim_note(analysis, t) for t in _tables(analysis))
    figures = (described(f) for f in _figures(analysis))
    there = {table.key for table in tables}
    return ReportModel(
        study=data.plan.study,
        title=f"Ablation `{data.plan.study}`",
        question=data.plan.question,
        status=status,
        complete=complete,
        summary=tuple(sentences.summary(analysis)),
        words=tuple(sentences.words(analysis)),
        warnings=tuple(sentences.warnings(analysis)),
        tables=tables,
        figures=tuple(
            f if f.table in there else replace(f, table="") for f in figures
        ),  # before the first run ends there is no table
        provenance=provenance(analysis),
    )


def _tables(analysis: Analysis) -> Iterable[Table]:
    yield learning_table(analysis)
    rows = analysis.plan.rows
    for design in dict.fromkeys(r.design for r in rows):
        chosen = [r for r in rows if r.design == design]
        if chosen[0].kind not in ("add_one", "leave_one_out"):
            yield score_table(analysis, design, chosen)
            yield behaviour_table(analysis, design, chosen)
            yield from design_effects(analysis, design, chosen)
    yield from order_tables(analysis)
    screen = search_table(analysis)
    if screen is not None:
        yield screen
    both = contribution_table(analysis)
    if both is not None:
        yield both
    tricks = list(_trick_tables(analysis, main=both is None))
    effects = effects_table(analysis)
    yield from (t for t in tricks if t.main)
    if effects is not None:
        yield effects
    yield from (t for t in tricks if not t.main)
    yield from all_details(analysis)
    yield from published_tables(analysis)


def _figures(analysis: Analysis) -> Iterable[Figure]:
    found = (
        forest_figure(analysis),
        contribution_figure(analysis),
        *matrix_figures(analysis),
        *curves(analysis),
        pass_figure(analysis),
    )
    yield from (f for f in found if f is not None)


def _trick_tables(analysis: Analysis, *, main: bool) -> Iterable[Table]:
    """Return scores and behaviour of tricks added and removed, as main tables unless one table shows both designs."""
    rows = analysis.plan.rows
    for design in dict.fromkeys(r.design for r in rows if r.kind in ("add_one", "leave_one_out")):
        chosen = [r for r in rows if r.design == design]
        yield score_table(analysis, design, chosen, main=main)
        yield behaviour_table(analysis, design, chosen, main=main)
