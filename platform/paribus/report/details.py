"""The tables behind the main ones: effects on symptoms, values by seed, costs, runs that did not finish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paribus.report.analysis import Analysis, Effect, corrected
from paribus.report.comparisons import comparison_table
from paribus.report.efficiency import efficiency_table
from paribus.report.exact import FROM, PAIRED, sign_flip_cell, sign_flip_note
from paribus.report.health import health_table
from paribus.report.measures import LATE_RULE, Measure, gain_measure, series, symptom_measures
from paribus.report.model import Cell, Column, Table, TableRow
from paribus.report.pass_rates import pass_table
from paribus.report.tables import HALF_WIDTH, finished, interval_notes, measure_cell, seeds_cell
from paribus.report.text import (
    MISSING,
    NOT_APPLICABLE,
    by_seed,
    effect_cell,
    mean_cell,
    number,
    single_decimals,
)
from paribus.stats.compare import Correction
from paribus.stats.intervals import correlation, mean_interval
from paribus.stats.power import CAP
from paribus.stats.sequential import at_look
from paribus.study.plan import Row

SHOWN_STEPS = 7
"""Most evaluations that the table of the score over training shows."""

STARS: Mapping[Correction, str] = {
    "holm": "*: p < 0.05 after Holm's correction over {tests} tests.",
    "benjamini_hochberg": "*: q < 0.05 (Benjamini and Hochberg over {tests} tests); on average 5% or fewer are false.",
}
"""What a star in the table of effects says, and in the sentences that it gives."""

EXTREMES = (
    "Against a row: its lost seeds count with the worst score, those of the base with the best; for it the other way "
    "round. Worst and best: of any run of the study, the evaluation before training included."
)


@dataclass(frozen=True, kw_only=True)
class Single:
    """One arm that is compared with the base by itself, under the name that readers know."""

    name: str
    arm: str
    trick: bool


def singles(analysis: Analysis) -> tuple[Single, ...]:
    """Return the arms that stand for single changes: tricks alone, then lists and grids; else all arms."""
    rows = [r for r in analysis.plan.rows if r.arm != analysis.plan.base]
    chosen = [r for r in rows if r.kind == "add_one"]
    several = {"pairs", "factorial", "fractional"}  # their rows with several tricks are no single changes
    others = (r for r in rows if r.kind not in ("add_one", "cumulative", "leave_one_out"))
    chosen += [r for r in others if r.kind not in several or len(r.tricks) == 1]
    found: dict[str, Single] = {}
    for row in chosen or rows:
        found.setdefault(row.arm, _single(row))
    return tuple(found.values())


def effects(analysis: Analysis) -> dict[tuple[str, str], Effect | None]:
    """Return the differences to the base by arm and key of the measure, corrected over all of them as declared."""
    keys = [(s.arm, m) for s in singles(analysis) for m in effect_measures(analysis)]
    found = corrected((analysis.effect(a, analysis.plan.base, m) for a, m in keys), analysis.plan.symptom_correction)
    return {(arm, m.key): e for (arm, m), e in zip(keys, found, strict=True)}


def stars(analysis: Analysis, found: Mapping[tuple[str, str], Effect | None]) -> str:
    """Return what a star says: the correction over all :func:`effects` that are tested."""
    tested = sum(e is not None and e.p_adjusted is not None for e in found.values())
    return STARS[analysis.plan.symptom_correction].format(tests=tested)


def effect_measures(analysis: Analysis) -> tuple[Measure, ...]:
    """Return the columns of the table of effects."""
    return (*symptom_measures(), analysis.costs["generated"])


def effects_table(analysis: Analysis) -> Table | None:
    """Return what each single change does to the symptoms; ``None`` if there is no other arm than the base."""
    rows, found = singles(analysis), effects(analysis)
    if not rows:
        return None
    measures = effect_measures(analysis)
    columns = tuple(Column(key=m.key, label=m.label, unit=m.unit, note=m.note) for m in measures)
    body = []
    for single in rows:
        expected = finished(analysis, single.arm)
        cells = [effect_cell(found[single.arm, m.key], expected, verdict=True) for m in measures]
        body.append(TableRow(label=single.name, cells=tuple(cells)))
    how = "paired by seed" if analysis.plan.paired else "seeds not paired (Welch)"
    notes = [f"Difference to `{analysis.label(analysis.plan.base)}`, {how}. {_late_note()}"]
    if any(e is not None and e.p_adjusted is not None for e in found.values()):
        notes += [
            f"separated: the 95% interval leaves out 0. {stars(analysis, found)}",
            "not separated: in brackets about how many seeds an arm would show a difference of this size with 80% "
            f"power at two-sided 5%, by the spread seen here, up to {CAP}; rough, as this spread is that of few seeds.",
        ]
    return Table(
        key="effects",
        title="What each change moves",
        answers="Which symptoms and costs does a change move beyond seed noise?",
        first="Change",
        columns=columns,
        rows=tuple(body),
        notes=(*notes, *interval_notes(body)),
        main=True,
    )


def cost_table(analysis: Analysis) -> Table:
    """Return what each arm cost, and what it gained for it."""
    gain = gain_measure(analysis.evaluate)
    measures = (*analysis.costs.values(), gain)
    columns = [Column(key="seeds", label="seeds", note="finished / planned")]
    columns += [Column(key=m.key, label=m.label, unit=m.unit, note=m.note) for m in measures]
    rows = [
        TableRow(
            label=a.label, cells=(seeds_cell(analysis, a.key), *(measure_cell(analysis, a.key, m) for m in measures))
        )
        for a in analysis.plan.arms
    ]
    return Table(
        key="cost",
        title="Cost",
        answers="What was paid for the score: tokens, updates, time?",
        first="Configuration",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=tuple(interval_notes(rows, HALF_WIDTH)),
    )


def training_table(analysis: Analysis) -> Table | None:
    """Return the score at the evaluations, so that curves can be read as numbers; ``None`` before the first of them."""
    by_arm = {arm.key: _by_step(analysis, arm.key) for arm in analysis.plan.arms}
    steps = sorted(set().union(*by_arm.values()))
    if not steps:
        return None
    spread = [steps[round(i * (len(steps) - 1) / (SHOWN_STEPS - 1))] for i in range(SHOWN_STEPS)]
    chosen = spread if len(steps) > SHOWN_STEPS else steps
    rows = []
    for arm, found in by_arm.items():
        values = [found.get(step, {}) for step in chosen]
        estimates = [at_look(mean_interval([*v.values()]), analysis.share) if v else None for v in values]
        cells = (mean_cell(v, e, finished(analysis, arm), short=True) for v, e in zip(values, estimates, strict=True))
        rows.append(TableRow(label=analysis.label(arm), cells=tuple(cells)))
    return Table(
        key="training",
        title="Score over training",
        answers=f"What was {analysis.score.label} at each evaluation?",
        first="Configuration",
        columns=tuple(Column(key=f"step_{s}", label=f"step {s}", unit=analysis.score.unit) for s in chosen),
        rows=tuple(rows),
        notes=(
            "Single evaluations, not the score of the checkpoint rule.",
            *([f"{SHOWN_STEPS} of {len(steps)} evaluations, evenly spread."] if len(steps) > SHOWN_STEPS else []),
            *interval_notes(rows, HALF_WIDTH),
        ),
    )


def _by_step(analysis: Analysis, arm: str) -> dict[int, dict[int, float]]:
    """Return step to seed to value of the primary metric, of the runs that have a score."""
    found: dict[int, dict[int, float]] = {}
    for run in analysis.runs(arm):
        if run.seed in analysis.values(arm, analysis.score):
            for step, value in series(run, analysis.score.metric):
                found.setdefault(step, {})[run.seed] = value
    return found


def seeds_table(analysis: Analysis) -> Table:
    """Return the score of every run."""
    columns = tuple(
        Column(key=f"seed_{s}", label=f"seed {s}", unit=analysis.score.unit, note="") for s in analysis.plan.seeds
    )
    rows = [
        TableRow(label=a.label, cells=tuple(_seed_cell(analysis, a.key, s) for s in analysis.plan.seeds))
        for a in analysis.plan.arms
    ]
    return Table(
        key="seeds",
        title="Every run",
        answers=f"What did each seed reach in {analysis.score.label}? Nothing is left out.",
        first="Configuration",
        columns=columns,
        rows=tuple(rows),
        notes=(f"{analysis.score.note}. † stopped early, with its last evaluation. ✗ failed. … not finished.",),
    )


def pairs_table(analysis: Analysis) -> Table | None:
    """Return the differences to the base by seed; ``None`` if seeds are not paired or nothing can be compared."""
    if not analysis.plan.paired or not any(analysis.to_base.values()):
        return None
    base, seeds = analysis.plan.base, analysis.plan.seeds
    unit = analysis.score.unit
    exact = len(seeds) >= FROM
    columns = [
        *(Column(key=f"seed_{s}", label=f"seed {s}", unit=unit) for s in seeds),
        Column(key="pairs", label="pairs"),
        Column(key="difference", label="mean", unit=unit, note="mean of the differences with 95% t interval"),
        Column(key="rho", label="ρ", note="correlation of the paired scores; pairing helps where it is positive"),
        *([Column(key="exact_p", label="exact p", note=PAIRED)] if exact else []),
    ]
    rows = []
    for arm, effect in analysis.to_base.items():
        if effect is None:
            continue
        cells = [_difference_of(effect, s) for s in seeds]
        cells += [_count(effect.estimate.n), effect_cell(effect, effect.estimate.n), _rho(analysis, arm, base)]
        cells += [sign_flip_cell(effect, analysis.share)] if exact else []
        rows.append(TableRow(label=analysis.label(arm), cells=tuple(cells)))
    return Table(
        key="pairs",
        title="Differences to the base, seed by seed",
        answers=f"Does {analysis.score.label} move the same way in every seed?",
        first="Configuration",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(*interval_notes(rows, score=analysis.held), *sign_flip_note(len(seeds))),
    )


def losses_table(analysis: Analysis) -> Table | None:
    """Return all runs that did not come to their planned end; ``None`` if there are none."""
    lost = [r for r in analysis.data.runs if r.outcome in ("failed", "stopped_early", "cancelled")]
    if not lost:
        return None
    keys = ("seed", "outcome", "attempts", "last_step", "reason")
    rows = []
    for run in lost:
        outcome = run.outcome.replace("_", " ") + (f" ({run.state})" if run.state else "")
        texts = (str(run.seed), outcome, str(run.attempts), str(run.last_step), run.reason or "no reason recorded")
        rows.append(TableRow(label=analysis.label(run.arm), cells=tuple(Cell(text=t) for t in texts)))
    return Table(
        key="losses",
        title="Runs that did not finish",
        answers="Which runs are missing or cut short, and why?",
        first="Configuration",
        columns=tuple(Column(key=k, label=k.replace("_", " ")) for k in keys),
        rows=tuple(rows),
        notes=(
            "As planned: a run that was stopped early counts with its last evaluation before; failed and cancelled "
            "runs are left out and counted.",
        ),
    )


def sensitivity_table(analysis: Analysis) -> Table | None:
    """Return the difference to the base under other counts of lost runs; ``None`` if no finished arm is affected."""
    lost = {r.arm for r in analysis.data.runs if r.outcome in ("failed", "stopped_early")}
    affected = [a.key for a in analysis.plan.arms if a.key != analysis.plan.base and lost & {a.key, analysis.plan.base}]
    if not affected:
        return None
    cases = list(analysis.sensitivity(affected[0]))
    rows = []
    for arm in affected:
        cells = [effect_cell(e, e.estimate.n if e else 0, verdict=True) for e in analysis.sensitivity(arm).values()]
        testable = all(e is not None and e.supported for e in analysis.sensitivity(arm).values())
        verdict = Cell(text="fragile" if analysis.fragile(arm) else "stable" if testable else "not testable in full")
        rows.append(TableRow(label=analysis.label(arm), cells=(*cells, verdict)))
    unit = analysis.score.unit
    columns = [Column(key=c.replace(" ", "_"), label=c, unit=unit) for c in cases]
    return Table(
        key="sensitivity",
        title="If lost runs are counted otherwise",
        answers="Does the difference to the base depend on the runs that were lost or stopped?",
        first="Configuration",
        columns=(*columns, Column(key="verdict", label="verdict", note="fragile: separation or sign changes")),
        rows=tuple(rows),
        notes=(
            EXTREMES,
            *interval_notes(rows, score=analysis.held),
        ),
    )


def _single(row: Row) -> Single:
    trick = row.kind in ("add_one", "pairs") and len(row.tricks) == 1
    return Single(name=row.tricks[0] if trick else row.label, arm=row.arm, trick=trick)


def _late_note() -> str:
    return f"Length, truncation, entropy and zero-spread groups: training rollouts, {LATE_RULE}."


def _seed_cell(analysis: Analysis, arm: str, seed: int) -> Cell:
    marks = {"stopped_early": "†", "failed": "✗", "cancelled": "✗", "pending": "…"}
    values = analysis.values(arm, analysis.score)
    outcome = next((r.outcome for r in analysis.runs(arm) if r.seed == seed), "pending")
    mark = marks.get(outcome, "")
    if seed not in values:
        return Cell(text=mark or MISSING.text)
    estimate = analysis.estimate(arm, analysis.score)
    assert estimate is not None  # there is a value
    text = number(values[seed], single_decimals(estimate)) + mark
    return Cell(text=text, value=float(f"{values[seed]:.6g}"), n=1, seeds=by_seed({seed: values[seed]}))


def _difference_of(effect: Effect, seed: int) -> Cell:
    found = dict(effect.by_seed)
    if seed not in found:
        return NOT_APPLICABLE
    text = number(found[seed], single_decimals(effect.estimate), signed=True)
    return Cell(text=text, value=float(f"{found[seed]:.6g}"), n=1)


def _count(n: int) -> Cell:
    return Cell(text=str(n), value=float(n))


def _rho(analysis: Analysis, arm: str, base: str) -> Cell:
    first, second = analysis.values(arm, analysis.score), analysis.values(base, analysis.score)
    seeds = sorted(first.keys() & second.keys())
    rho = correlation([first[s] for s in seeds], [second[s] for s in seeds])
    return NOT_APPLICABLE if rho is None else Cell(text=number(rho, 1), value=float(f"{rho:.6g}"))


def all_details(analysis: Analysis) -> Iterable[Table]:
    """Return the tables that follow the designs, those that apply."""
    found: Sequence[Table | None] = (
        comparison_table(analysis),
        pass_table(analysis),
        cost_table(analysis),
        efficiency_table(analysis),
        health_table(analysis),
        pairs_table(analysis),
        training_table(analysis),
        seeds_table(analysis),
        losses_table(analysis),
        sensitivity_table(analysis),
    )
    return [t for t in found if t is not None]
