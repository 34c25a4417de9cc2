"""The tables of the designs: the ladder, tricks added and removed, lists and grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paribus.report.analysis import MIN_SEEDS, Analysis, Effect, corrected, difference
from paribus.report.measures import LATE_RULE, Measure, evaluation_error, start_measure, symptom_measures
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.text import MISSING, NOT_APPLICABLE, effect_cell, interval_text, mean_cell, p_text
from paribus.stats.intervals import mean_interval
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
FEW = "Below 3 seeds the values of the seeds are printed, without interval, test or bold: ranking not supported."


def interval_notes(rows: Iterable[TableRow], note: str = INTERVALS) -> list[str]:
    """Return how to read the intervals of a table, if there are any."""
    return [note] if any(c.low is not None for r in rows for c in r.cells) else []


def learning_table(analysis: Analysis) -> Table:
    """Return score before and after training of the base arm, and the gain, paired within each run."""
    base, score = analysis.plan.base, analysis.score
    start = start_measure(analysis.evaluate)
    seeds = len(analysis.values(base, score))
    gain = difference(analysis.values(base, score), analysis.values(base, start), paired=True)
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
        notes=tuple(interval_notes([TableRow(label="", cells=cells)])),
        main=True,
    )


def score_table(analysis: Analysis, design: str, rows: Sequence[Row], *, main: bool = True) -> Table:
    """Return the scores of one design, with the difference to the row that each changes and to the base."""
    kind = rows[0].kind
    leaders = analysis.leaders(r.arm for r in rows)
    inside = _reference(analysis, rows)
    body = [_score_row(analysis, rows, row, inside is not None, row.arm in leaders) for row in rows]
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
    )
    return Table(
        key=f"{design}.score",
        title=f"{_heading(kind, design)}: {score.label}",
        answers=_question(kind),
        first="Configuration",
        columns=columns,
        rows=tuple(body),
        notes=(*interval_notes(body), *_bold_note(analysis, rows, leaders), *_few(analysis, (r.arm for r in rows))),
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


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """One trick: what it adds to the base, and what the full recipe loses without it."""

    trick: str
    alone: Effect | None
    in_full: Effect | None
    mean: Effect | None


def contributions(analysis: Analysis) -> tuple[Contribution, ...]:
    """Return add-one and leave-one-out effects by trick; empty if the study has neither design."""
    added = {r.tricks[0]: r.arm for r in analysis.plan.rows if r.kind == "add_one" and len(r.tricks) == 1}
    full, removed = _knockouts(analysis.plan.rows)
    tricks = list(dict.fromkeys([*added, *removed]))
    base, score = analysis.plan.base, analysis.score
    alone = corrected(analysis.effect(added[t], base, score) if t in added else None for t in tricks)
    in_full = corrected(analysis.effect(full, removed[t], score) if full and t in removed else None for t in tricks)
    triples = zip(tricks, alone, in_full, strict=True)
    return tuple(Contribution(trick=t, alone=a, in_full=f, mean=_middle(a, f)) for t, a, f in triples)


def contribution_table(analysis: Analysis) -> Table | None:
    """Return tricks added to the base beside tricks removed from the full recipe; ``None`` without both designs."""
    found = contributions(analysis)
    if not found:
        return None
    score, planned = analysis.score, len(analysis.plan.seeds)
    shown = {
        "alone": ("added to the base", "base + trick - base"),
        "in_full": ("in the full recipe", "full recipe - full recipe without the trick"),
        "mean": ("mean of both", "order-free estimate; see the note"),
    }
    keys = [k for k in shown if any(getattr(c, k) for c in found)]
    if len(keys) < 2:
        return None
    columns = [Column(key=k, label=shown[k][0], unit=score.unit, note=shown[k][1]) for k in keys]
    body = [
        TableRow(label=c.trick, cells=tuple(_contribution_cell(getattr(c, k), planned, k) for k in keys)) for c in found
    ]
    pairs = f"Differences in {score.label}; {_pairing(analysis)}. p: Holm over the rows of its column."
    return Table(
        key="contributions",
        title="Each trick alone, and in the full recipe",
        answers="What does a trick add by itself, and what is lost without it?",
        first="Trick",
        columns=tuple(columns),
        rows=tuple(body),
        notes=(pairs, *interval_notes(body), *_additive_note(analysis, found)),
        main=True,
    )


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


def _knockouts(rows: Iterable[Row]) -> tuple[str | None, Mapping[str, str]]:
    """Return the arm of the full recipe, and trick to the arm that lacks it."""
    all_rows = list(rows)
    knocked = [r for r in all_rows if r.kind == "leave_one_out"]
    tricks = {t for r in knocked for t in r.tricks}
    full = next((r.arm for r in all_rows if set(r.tricks) == tricks), None) if tricks else None
    missing = ((tricks - set(r.tricks), r.arm) for r in knocked)
    return full, {next(iter(m)): arm for m, arm in missing if len(m) == 1}


def _middle(alone: Effect | None, in_full: Effect | None) -> Effect | None:
    """Return the mean of both effects, seed by seed; ``None`` where seeds are not paired."""
    if alone is None or in_full is None:
        return None
    first, second = dict(alone.by_seed), dict(in_full.by_seed)
    halves = {s: (first[s] + second[s]) / 2 for s in first if s in second}
    return difference(halves, dict.fromkeys(halves, 0.0), paired=True) if halves else None


def _contribution_cell(effect: Effect | None, planned: int, key: str) -> Cell:
    if effect is None:
        return MISSING
    cell = effect_cell(effect, planned)
    note = f"p = {p_text(effect.p_adjusted)}" if effect.p_adjusted is not None and key != "mean" else ""
    return Cell(**{**vars(cell), "note": note.replace("= <", "< ")})


def _additive_note(analysis: Analysis, found: Sequence[Contribution]) -> list[str]:
    """Return the caveat of the order-free estimate with its lack-of-fit check."""
    if not any(c.mean for c in found):
        return []
    note = "The mean of both is free of the order of the tricks, and valid only without three-way interactions."
    full, removed = _knockouts(analysis.plan.rows)
    full_effect = analysis.effect(full, analysis.plan.base, analysis.score) if full else None
    sums = [dict(c.mean.by_seed) for c in found if c.mean and c.trick in removed]
    if full_effect is None or len(sums) < len(removed):
        return [note]
    common = [s for s, _ in full_effect.by_seed if all(s in x for x in sums)]
    if len(common) < MIN_SEEDS:
        return [note]
    gaps = [dict(full_effect.by_seed)[s] - sum(x[s] for x in sums) for s in common]
    gap = mean_interval(gaps)
    fit = "which does not speak against it" if not gap.separated else "which speaks against it: do not add the effects"
    check = f"Check: full recipe - base - sum of these means is {interval_text(gap, signed=True)}, {fit}."
    return [note, check]


def _base_note(analysis: Analysis) -> str:
    return f"difference to `{analysis.label(analysis.plan.base)}`; {_pairing(analysis)}"


def _pairing(analysis: Analysis) -> str:
    if analysis.plan.paired:
        return "paired by seed, paired t"
    return "seeds not paired, Welch's t"


def _bold_note(analysis: Analysis, rows: Sequence[Row], leaders: frozenset[str]) -> list[str]:
    if leaders:
        return ["Bold: the best, and all that a Holm-corrected test at 5% does not tell from it."]
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
        "fractional": "How do the cells compare with the base? Effects of tricks: see the next table but one.",
        "one_at_a_time": "What does each value do to the base by itself?",
    }.get(kind, "How do the levels compare with the first row?")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
