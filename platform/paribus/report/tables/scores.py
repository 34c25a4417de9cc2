"""The tables of the designs: ladders, tricks added and removed, lists, grids and searches, beside published values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from paribus.published.tables import Published
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect, corrected
from paribus.report.analysis.measures import LATE_NOTE, start_measure, symptom_measures
from paribus.report.analysis.names import row_name
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.tables.cells import (
    HALF_WIDTH,
    NOT_APPLICABLE,
    adjusted_cell,
    effect_cell,
    finished,
    interval_notes,
    measure_columns,
    measure_row,
    pairing,
    score_cell,
    seeds_cell,
    seeds_column,
    status_cell,
    training_notes,
)
from paribus.study.plan import Row

CROSSED = "How does each arm compare with the base? The effects of the tricks have a table of their own below."


FEW = (
    "With fewer than 3 seeds the table shows each seed's value, without an interval over seeds, a test or bold: it "
    "supports no ranking."
)


def learning_table(analysis: Analysis) -> Table:
    """Return the base arm's score before and after training, and the gain, paired within each run."""
    base, score = analysis.plan.base, analysis.score
    start = start_measure(analysis.evaluate)
    seeds = len(analysis.values(base, score))
    gain = analysis.gain(base)
    cells = (
        seeds_cell(analysis, base),
        score_cell(analysis, base, start),
        score_cell(analysis, base),
        effect_cell(gain, seeds, better=score.better),
    )
    columns = (
        Column(key="seeds", label="seeds"),
        Column(key="start", label="before", unit=score.unit, note=f"`{score.metric}`, {start.note}"),
        Column(key="score", label="after", unit=score.unit, note=score.note),
        Column(key="gain", label="gain", unit=score.unit, note="after - before, within each run"),
    )
    return Table(
        key="learning",
        title="Does the base arm learn?",
        answers=f"{score.label[:1].upper() + score.label[1:]} of the base arm before and after training.",
        first="Arm",
        columns=columns,
        rows=(TableRow(label=analysis.label(base), cells=cells),),
        notes=tuple(interval_notes([TableRow(label="", cells=cells)], score=analysis.held)),
        main=True,
    )


def score_table(analysis: Analysis, design: str, rows: Sequence[Row], *, main: bool = True) -> Table:
    """Return the scores of one design, with the differences from each row's reference row and from the base."""
    kind, every, rows = rows[0].kind, rows, _once(rows)
    best = _leaders(analysis, (r.arm for r in rows))
    ranked = best < {r.arm for r in rows}
    inside = _reference(analysis, rows)
    published = published_columns(analysis, rows)
    body = [_score_row(analysis, rows, row, inside is not None, ranked and row.arm in best) for row in rows]
    for _, cells in published:
        body = [replace(row, cells=(*row.cells, cell)) for row, cell in zip(body, cells, strict=True)]
    score = analysis.score
    base_note = f"difference from `{analysis.label(analysis.plan.base)}`; {pairing(analysis)}"
    columns = (
        seeds_column(analysis),
        Column(key="score", label=score.label, unit=score.unit, note=score.note),
        *(
            [Column(key="inside", label=f"Δ {inside}", unit=score.unit, note=f"difference from the {inside}")]
            if inside
            else []
        ),
        Column(key="to_base", label="Δ base", unit=score.unit, note=base_note),
        Column(key="p", label="p (Holm)", note=_family(analysis)),
        Column(key="status", label="status"),
        *(column for column, _ in published),
    )
    return Table(
        key=f"{design}.score",
        title=f"{_heading(kind, design)}: {score.label}",
        answers=_question(kind),
        first="Arm",
        columns=columns,
        rows=tuple(body),
        notes=(
            *interval_notes(body, score=analysis.held),
            *_same_rows(analysis, every, rows),
            *_bold_note(analysis, rows, best),
            *_few(analysis, (r.arm for r in rows)),
            *training_notes(analysis, (r.arm for r in rows), [score]),
            *([UNTESTED] if published else []),
        ),
        main=main,
    )


def _reference(analysis: Analysis, rows: Sequence[Row]) -> str | None:
    """Return what the rows of a design are compared with; ``None`` if that is the base itself."""
    if rows[0].kind == "cumulative":
        return "row above"
    return None if rows[0].arm == analysis.plan.base else "first row"


def _score_row(analysis: Analysis, rows: Sequence[Row], row: Row, inside: bool, bold: bool) -> TableRow:
    by_label = {r.label: r.arm for r in rows}
    before = by_label.get(row.parent or "", rows[0].arm)
    first = row is rows[0] or before == row.arm
    expected = finished(analysis, row.arm)
    to_base = analysis.to_base.get(row.arm)
    better = analysis.score.better
    step = None if first else analysis.effect(row.arm, before, analysis.score)
    within = NOT_APPLICABLE if first else effect_cell(step, expected, better=better)
    cells = (
        seeds_cell(analysis, row.arm),
        score_cell(analysis, row.arm, bold=bold),
        *([within] if inside else []),
        effect_cell(to_base, expected, better=better) if row.arm != analysis.plan.base else NOT_APPLICABLE,
        adjusted_cell(to_base),
        status_cell(analysis, row.arm),
    )
    return TableRow(label=row_name(analysis.plan, row), cells=cells)


def behaviour_table(analysis: Analysis, design: str, rows: Sequence[Row], *, main: bool = True) -> Table:
    """Return the symptoms and costs of the same rows."""
    every, rows = rows, _once(rows)
    measures = (*symptom_measures(), *(analysis.costs[k] for k in ("generated", "waste", "seconds")))
    body = [measure_row(analysis, row_name(analysis.plan, row), row.arm, measures) for row in rows]
    return Table(
        key=f"{design}.behaviour",
        title=f"{_heading(rows[0].kind, design)}: behaviour and cost",
        answers="What do the responses look like late in training, and what did they cost?",
        first="Arm",
        columns=measure_columns(analysis, measures),
        rows=tuple(body),
        notes=(
            *interval_notes(body, HALF_WIDTH),
            *_same_rows(analysis, every, rows),
            LATE_NOTE,
            *training_notes(analysis, (r.arm for r in rows), measures),
        ),
        main=main,
    )


def _once(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows of a design; of values, where places with the base's values are the base, each arm once."""
    first = {row.arm: row for row in reversed(rows)}
    return [r for r in rows if first[r.arm] is r] if rows[0].kind in ("grid", "one_at_a_time", "list") else rows


def _same_rows(analysis: Analysis, rows: Sequence[Row], shown: Sequence[Row]) -> list[str]:
    """Return which rows are not shown because another one is the same arm."""
    left = [row for row in rows if all(row is not other for other in shown)]
    return [f"`{row.label}` is `{analysis.label(row.arm)}`: the same arm, shown once." for row in left]


def _leaders(analysis: Analysis, arms: Iterable[str]) -> frozenset[str]:
    """Return the best arm, every arm that is not significantly worse, and every arm that scores between them.

    The tests are corrected over all pairs. A precise arm can be significantly worse than the best while a noisier
    arm with a lower score is not; the precise arm counts as a leader too, so that no leader scores below an arm
    that is not one. Empty if an arm has fewer than :data:`MIN_SEEDS` seeds, or if two can't be compared.
    """
    estimates = {a: analysis.estimate(a, analysis.score) for a in dict.fromkeys(arms)}
    known = {a: e for a, e in estimates.items() if e is not None and e.n >= MIN_SEEDS}
    if len(known) < len(estimates) or len(known) < 2 or analysis.score.better == "neither":
        return frozenset()
    sign = 1 if analysis.score.better == "higher" else -1
    top = max(known, key=lambda a: sign * known[a].value)
    pairs = list(combinations(known, 2))  # all pairs, because the data also choose the best arm
    effects = dict(zip(pairs, corrected(analysis.effect(a, b, analysis.score) for a, b in pairs), strict=True))
    if None in effects.values():
        return frozenset()
    worse = {a for pair, e in effects.items() if top in pair and e is not None and _told_apart(e) for a in pair}
    lowest = min(sign * known[a].value for a in known if a == top or a not in worse)
    return frozenset(a for a in known if sign * known[a].value >= lowest)


def _told_apart(effect: Effect) -> bool:
    """Whether the test separates two arms; without noise, any difference does."""
    return effect.confirmed if effect.p_adjusted is not None else effect.estimate.value != 0


def _family(analysis: Analysis) -> str:
    """Return over how many comparisons the p values of differences from the base are corrected."""
    if not analysis.family:
        return "of Δ base; no comparison with the base could be tested"
    return f"of Δ base, over {analysis.family} comparison{'s' if analysis.family > 1 else ''} with the base"


def _bold_note(analysis: Analysis, rows: Sequence[Row], best: frozenset[str]) -> list[str]:
    scores = {v for r in rows for v in analysis.values(r.arm, analysis.score).values()}
    if best == {r.arm for r in rows} and len(scores) == 1:
        return ["No bold: all runs have the same score."]
    if best == {r.arm for r in rows}:
        return [
            "No bold: even the worst row is not significantly worse than the best (test at 5%, Holm-corrected over all "
            "pairs of rows), so every row would be bold. Separated differences stand beside the scores."
        ]
    if best:
        return [
            "Bold marks the best arm, every arm that is not significantly worse (test at 5%, Holm-corrected over all "
            "pairs of rows), and every arm that scores as well as one of these."
        ]
    few = any(len(analysis.values(r.arm, analysis.score)) < MIN_SEEDS for r in rows)
    if few:
        return ["No bold: an arm has fewer than 3 seeds, so a ranking is not supported."]
    several = len({r.arm for r in rows}) > 1 and analysis.score.better != "neither"
    return ["No bold: not all rows can be compared with each other."] if several else []


def _few(analysis: Analysis, arms: Iterable[str]) -> list[str]:
    counts = {len(analysis.values(a, analysis.score)) for a in arms} - {0}
    notes = [FEW] if counts and min(counts) < MIN_SEEDS else []
    if counts and MIN_SEEDS <= min(counts) < 5:
        notes.append("3 or 4 seeds: indicative only.")
    return notes


def _heading(kind: str, design: str) -> str:
    names = {"cumulative": "Ladder", "add_one": "Added to the base", "leave_one_out": "Removed from the full recipe"}
    return f"{names.get(kind, kind.replace('_', ' ').capitalize())} `{design}`"


def _question(kind: str) -> str:
    return {
        "cumulative": "What does each trick add, given the rows above it? The order of the rows matters.",
        "add_one": "What does each trick do to the base by itself?",
        "leave_one_out": "What does the full recipe lose without each trick?",
        "pairs": "What does each trick do alone, and what does each pair do together?",
        "factorial": CROSSED,
        "fractional": CROSSED,
        "one_at_a_time": "What does each value do to the base by itself?",
        "search": "What do the tricks do when base and tricks each have their best setting? On fresh seeds only.",
    }.get(kind, "How do the levels compare with the first row?")


UNTESTED = (
    "As far as their source says, published values are single runs, so their training variance is unknown; their "
    "model, data and evaluation differ from this study's. They are not tested, not ranked and never bold."
)


WITH_TRICKS = ("cumulative", "add_one", "leave_one_out", "pairs", "factorial", "fractional")
"""Kinds of designs whose rows consist of the base and tricks only."""


def published_columns(analysis: Analysis, rows: Sequence[Row]) -> list[tuple[Column, list[Cell]]]:
    """Return a column for each published table that has a value for one of the rows, with one cell per row."""
    found = []
    for table in analysis.data.published if rows[0].kind in WITH_TRICKS else ():
        values = [table.value_of(frozenset(row.tricks)) for row in rows]
        if any(v is not None for v in values):
            found.append((_published_column(table), [_published_cell(v) for v in values]))
    return found


def published_tables(analysis: Analysis) -> Iterable[Table]:
    """Yield each requested published table, complete, with the rows of the study that have the same tricks."""
    named: dict[frozenset[str], str] = {}
    for row in analysis.plan.rows:
        if row.kind in WITH_TRICKS:
            named.setdefault(frozenset(row.tricks), row_name(analysis.plan, row))
    for table in analysis.data.published:
        places = [named.get(frozenset(line.tricks)) for line in table.rows]
        yield Table(
            key=f"published.{table.name}",
            title=f"Published: {table.title}",
            answers=f"What does {table.source} report?",
            first="Row",
            columns=(
                Column(key="value", label=table.measure, unit=table.unit, note=f"{table.source}; {table.setting}"),
                Column(key="here", label="here", note="row of this study whose tricks have the same names"),
            ),
            rows=tuple(
                TableRow(
                    label=line.label, cells=(_published_cell(line.value), Cell(text=place) if place else NOT_APPLICABLE)
                )
                for line, place in zip(table.rows, places, strict=True)
            ),
            notes=(table.note, UNTESTED),
        )


def _published_column(table: Published) -> Column:
    note = f"{table.source}; {table.measure}, {table.setting}; only the names of the tricks are the same"
    return Column(key=f"published.{table.name}", label=f"published: {table.title}", unit=table.unit, note=note)


def _published_cell(value: float | None) -> Cell:
    return NOT_APPLICABLE if value is None else Cell(text=f"{value:g}", value=stored(value))
