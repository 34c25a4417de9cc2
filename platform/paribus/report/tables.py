"""The tables of the designs: the ladder, tricks added and removed, lists and grids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from paribus.report.analysis import MIN_SEEDS, Analysis
from paribus.report.measures import LATE_RULE, Measure, evaluation_error, start_measure, symptom_measures
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.reference import UNTESTED, reference_columns
from paribus.report.text import NOT_APPLICABLE, effect_cell, mean_cell, p_text
from paribus.study.plan import Row

MARKS = {"stopped_early": "†", "failed": "✗", "cancelled": "✗", "pending": "…"}

INTERVALS = (
    "[low, high]: 95% Student t interval over training seeds, not cut at the ends of a metric's range; rounded to one "
    "significant digit of the standard error."
)
HALF_WIDTH = (
    "±: half the length of the 95% Student t interval over training seeds, never a standard deviation; rounded to one "
    "significant digit of the standard error."
)
CELLS = "How do the cells compare with the base? Effects of tricks: see the next table but one."
FEW = "Below 3 seeds the values of the seeds are printed, without interval, test or bold: ranking not supported."


FLOOR = (
    "No interval of {score} is narrower, and no p smaller, than the sampling of the evaluations alone demands: right "
    "answers by seed and problem tell it (two-way analysis of variance)."
)


def interval_notes(rows: Iterable[TableRow], note: str = INTERVALS, score: str = "") -> list[str]:
    """Return how to read the intervals of a table, if there are any; ``score`` names what is held to its evaluation."""
    notes = [note, *([FLOOR.format(score=score)] if score else [])]
    return notes if any(c.low is not None for r in rows for c in r.cells) else []


def learning_table(analysis: Analysis) -> Table:
    """Return score before and after training of the base arm, and the gain, paired within each run."""
    base, score = analysis.plan.base, analysis.score
    start = start_measure(analysis.evaluate)
    seeds = len(analysis.values(base, score))
    gain = analysis.gain(base)
    cells = (
        seeds_cell(analysis, base),
        score_cell(analysis, base, start),
        score_cell(analysis, base),
        effect_cell(gain, seeds),
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
        answers=f"{_capital(score.label)} of the base arm before and after training.",
        first="Configuration",
        columns=columns,
        rows=(TableRow(label=analysis.label(base), cells=cells),),
        notes=tuple(interval_notes([TableRow(label="", cells=cells)], score=analysis.held)),
        main=True,
    )


def score_table(analysis: Analysis, design: str, rows: Sequence[Row], *, main: bool = True) -> Table:
    """Return the scores of one design, with the difference to the row that each changes and to the base."""
    kind = rows[0].kind
    leaders = analysis.leaders(r.arm for r in rows)
    ranked = leaders < {r.arm for r in rows}
    inside = _reference(analysis, rows)
    published = reference_columns(analysis, rows)
    body = [_score_row(analysis, rows, row, inside is not None, ranked and row.arm in leaders) for row in rows]
    for _, cells in published:
        body = [replace(row, cells=(*row.cells, cell)) for row, cell in zip(body, cells, strict=True)]
    score = analysis.score
    columns = (
        Column(key="seeds", label="seeds", note="finished / planned"),
        Column(key="score", label=score.label, unit=score.unit, note=score.note),
        *(
            [Column(key="inside", label=f"Δ {inside}", unit=score.unit, note=f"difference to the {inside}")]
            if inside
            else []
        ),
        Column(key="to_base", label="Δ base", unit=score.unit, note=_base_note(analysis)),
        Column(key="p", label="p (Holm)", note=f"of Δ base, over {analysis.family} comparisons with the base"),
        Column(key="status", label="status"),
        *(column for column, _ in published),
    )
    return Table(
        key=f"{design}.score",
        title=f"{_heading(kind, design)}: {score.label}",
        answers=_question(kind),
        first="Configuration",
        columns=columns,
        rows=tuple(body),
        notes=(
            *interval_notes(body, score=analysis.held),
            *_bold_note(analysis, rows, leaders),
            *_few(analysis, (r.arm for r in rows)),
            *([UNTESTED] if published else []),
        ),
        main=main,
    )


def _reference(analysis: Analysis, rows: Sequence[Row]) -> str | None:
    """Return what the rows are compared with inside their design; ``None`` where that is the base itself."""
    if rows[0].kind == "cumulative":
        return "row above"
    return None if rows[0].arm == analysis.plan.base else "first row"


def _score_row(analysis: Analysis, rows: Sequence[Row], row: Row, inside: bool, bold: bool) -> TableRow:
    by_label = {r.label: r.arm for r in rows}
    before = by_label.get(row.parent or "", rows[0].arm)
    first = row is rows[0] or before == row.arm
    expected = finished(analysis, row.arm)
    to_base = analysis.to_base.get(row.arm)
    p = to_base.p_adjusted if to_base else None
    within = NOT_APPLICABLE if first else effect_cell(analysis.effect(row.arm, before, analysis.score), expected)
    cells = (
        seeds_cell(analysis, row.arm),
        score_cell(analysis, row.arm, bold=bold),
        *([within] if inside else []),
        effect_cell(to_base, expected) if row.arm != analysis.plan.base else NOT_APPLICABLE,
        Cell(text=p_text(p), value=stored(p)) if p is not None else NOT_APPLICABLE,
        status_cell(analysis, row.arm),
    )
    return TableRow(label=row.label, cells=cells)


def behaviour_table(analysis: Analysis, design: str, rows: Sequence[Row], *, main: bool = True) -> Table:
    """Return symptoms and costs of the same rows."""
    measures = behaviour_measures(analysis)
    columns = [Column(key="seeds", label="seeds", note="finished / planned")]
    columns += [Column(key=m.key, label=m.label, unit=m.unit, note=m.note) for m in measures]
    body = []
    for row in rows:
        cells = [measure_cell(analysis, row.arm, m) for m in measures]
        body.append(TableRow(label=row.label, cells=(seeds_cell(analysis, row.arm), *cells)))
    late = "Length, truncation, entropy and zero-spread groups: training rollouts, "
    return Table(
        key=f"{design}.behaviour",
        title=f"{_heading(rows[0].kind, design)}: behaviour and cost",
        answers="What do the responses look like late in training, and what was paid for them?",
        first="Configuration",
        columns=tuple(columns),
        rows=tuple(body),
        notes=(*interval_notes(body, HALF_WIDTH), f"{late}{LATE_RULE}."),
        main=main,
    )


def behaviour_measures(analysis: Analysis) -> tuple[Measure, ...]:
    """Return the columns of the table of behaviour and cost."""
    return (*symptom_measures(), *(analysis.costs[k] for k in ("generated", "waste", "seconds")))


def seeds_cell(analysis: Analysis, arm: str) -> Cell:
    """Return ``3/3``, finished over planned, with the marks of runs that did not finish."""
    runs = analysis.runs(arm)
    done = finished(analysis, arm)
    marks = "".join(dict.fromkeys(MARKS[r.outcome] for r in runs if r.outcome != "finished"))
    return Cell(text=f"{done}/{len(runs)}{marks}", value=float(done), n=len(runs))


def status_cell(analysis: Analysis, arm: str) -> Cell:
    """Return ``ok``, or what became of the runs that did not finish, and whether the verdict depends on it."""
    outcomes = [r.outcome for r in analysis.runs(arm)]
    words = {"stopped_early": "stopped early", "failed": "failed", "cancelled": "cancelled", "pending": "not finished"}
    parts = [f"{outcomes.count(k)} {w}" for k, w in words.items() if k in outcomes]
    if arm != analysis.plan.base and analysis.fragile(arm):
        parts.append("fragile")
    return Cell(text=", ".join(parts) or "ok")


def score_cell(analysis: Analysis, arm: str, measure: Measure | None = None, *, bold: bool = False) -> Cell:
    """Return the arm's score; of a single seed with the noise of its evaluation."""
    measure = measure or analysis.score
    values = analysis.values(arm, measure)
    noise = None
    if len(values) == 1 and measure.rule == "score":
        (run,) = (r for r in analysis.runs(arm) if r.seed in values)
        noise = evaluation_error(run, analysis.evaluate)
    cell = mean_cell(values, analysis.estimate(arm, measure), finished(analysis, arm), short=False, noise=noise)
    return Cell(**{**vars(cell), "bold": bold})


def measure_cell(analysis: Analysis, arm: str, measure: Measure) -> Cell:
    """Return the arm's mean in a measure, as value and half-width."""
    values = analysis.values(arm, measure)
    return mean_cell(values, analysis.estimate(arm, measure), finished(analysis, arm), short=True)


def finished(analysis: Analysis, arm: str) -> int:
    """Return the number of runs of the arm that came to their planned end."""
    return sum(r.outcome == "finished" for r in analysis.runs(arm))


def _base_note(analysis: Analysis) -> str:
    return f"difference to `{analysis.label(analysis.plan.base)}`; {pairing(analysis)}"


def pairing(analysis: Analysis) -> str:
    """Return how two arms are compared."""
    if analysis.plan.paired:
        return "paired by seed, paired t"
    return "seeds not paired, Welch's t"


def _bold_note(analysis: Analysis, rows: Sequence[Row], leaders: frozenset[str]) -> list[str]:
    if leaders == {r.arm for r in rows}:
        return [
            "No bold: every row would have it, as the worst is not told from the best by a test at 5%, Holm-corrected "
            "over all pairs of rows. What was separated stands beside the scores."
        ]
    if leaders:
        return [
            "Bold: the best, all that a test at 5%, Holm-corrected over all pairs of rows, does not tell from it, and "
            "every row as good as one of these."
        ]
    few = any(len(analysis.values(r.arm, analysis.score)) < MIN_SEEDS for r in rows)
    return ["No bold: an arm has fewer than 3 seeds, so a ranking is not supported."] if few else []


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
        "pairs": "What does each trick do alone, and each two of them together?",
        "factorial": CELLS,
        "fractional": CELLS,
        "one_at_a_time": "What does each value do to the base by itself?",
        "search": "What do the tricks do when base and trick each have their best setting? Fresh seeds only.",
    }.get(kind, "How do the levels compare with the first row?")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
