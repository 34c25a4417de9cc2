"""The tables behind the main ones: pass rates, costs, values by seed, runs that were lost or stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paribus.evaluate import reachable
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.ceilings import Ceilings
from paribus.report.analysis.effect import Effect
from paribus.report.analysis.lost_runs import fragile, is_lost, sensitivity
from paribus.report.analysis.measures import error_at, gain_measure, series
from paribus.report.model import Cell, Column, Table, TableRow, rounded
from paribus.report.tables.ceilings import ceilings_table
from paribus.report.tables.cells import (
    HALF_WIDTH,
    MARKS,
    MISSING,
    NOT_APPLICABLE,
    by_seed,
    effect_cell,
    finished,
    interval_notes,
    mean_cell,
    measure_columns,
    measure_row,
    number,
    seeds_cell,
    seeds_column,
    single_decimals,
    training_notes,
)
from paribus.report.tables.health import health_table
from paribus.report.tables.robustness import FROM, PAIRED, robustness_table, sign_flip_cell, sign_flip_note
from paribus.report.tables.samples import samples_tables
from paribus.report.tables.sets import set_details
from paribus.stats.intervals import Estimate, correlation, mean_interval
from paribus.stats.multiple_testing import at_look


def pass_table(analysis: Analysis) -> Table | None:
    """Return pass@k by k; ``None`` with one response per problem, or without counts."""
    ks = pass_ks(analysis)
    found = pass_means(analysis, ks)
    if not found:
        return None
    rows = []
    for arm in (a.key for a in analysis.plan.arms):
        each = found.get(arm, [])
        cells = [mean_cell(values, estimate, finished(analysis, arm), short=False) for values, estimate in each]
        cells = cells or [MISSING] * len(ks)
        rows.append(TableRow(label=analysis.label(arm), cells=(seeds_cell(analysis, arm), *cells)))
    columns = (
        seeds_column(analysis),
        *(Column(key=f"pass_at_{k}", label=f"pass@{k}", unit="fraction") for k in ks),
    )
    return Table(
        key="pass_at_k",
        title="Solved within k responses",
        answers="Does an arm solve more problems, or the same ones more often?",
        first="Arm",
        columns=columns,
        rows=tuple(rows),
        notes=(
            f"Unbiased pass@k from {ks[-1]} responses per problem, evaluations as for the score.",
            *interval_notes(rows),
        ),
    )


def pass_ks(analysis: Analysis) -> list[int]:
    """Return the k of pass@k: powers of 2 up to the responses per problem, and that number itself."""
    return [*reachable(analysis.primary_settings.samples)]


def pass_means(analysis: Analysis, ks: list[int]) -> dict[str, list[tuple[dict[int, float], Estimate]]]:
    """Return for each arm with counts, and each k, the values by seed and their mean; empty with one response."""
    if len(ks) < 2:
        return {}
    rates = {a.key: analysis.pass_rates(a.key, ks) for a in analysis.plan.arms}
    found = {}
    for arm, by_run in rates.items():
        if by_run:
            each = [{seed: run[i] for seed, run in by_run.items()} for i in range(len(ks))]
            found[arm] = [(v, at_look(mean_interval([*v.values()]), analysis.share)) for v in each]
    return found


SHOWN_STEPS = 7
"""Maximum number of evaluations in the table of the score over training."""


EXTREMES = (
    "Against an arm: its lost seeds count with the worst score, those of the base with the best; for it, the other way "
    "round. Worst and best are taken over all runs of the study, including their evaluations before training. A run "
    "whose last evaluation is not a finite number counts as lost."
)


BY_BUDGET = (
    "Runs end by their budget, each at a step of its own: the evaluation at that step, which the score "
    "holds, is in the curve over tokens."
)


def cost_table(analysis: Analysis) -> Table:
    """Return what each arm cost, and what it gained for it."""
    gain = gain_measure(analysis.evaluate)
    measures = (*analysis.costs.values(), gain)
    rows = [measure_row(analysis, analysis.label(a.key), a.key, measures) for a in analysis.plan.arms]
    return Table(
        key="cost",
        title="Cost",
        answers="What did the score cost in tokens, updates and time?",
        first="Arm",
        columns=measure_columns(analysis, measures),
        rows=tuple(rows),
        notes=(
            *interval_notes(rows, HALF_WIDTH),
            *training_notes(analysis, (a.key for a in analysis.plan.arms), measures),
        ),
    )


def training_table(analysis: Analysis) -> Table | None:
    """Return the score at the evaluations, which is the numbers of the curves; ``None`` before the first evaluation."""
    by_arm = {arm.key: _by_step(analysis, arm.key) for arm in analysis.plan.arms}
    by_budget = any(analysis.ends_by_budget(arm.key) for arm in analysis.plan.arms)
    steps = sorted(set().union(*by_arm.values()))
    if by_budget:  # the last evaluation of each run lies at another step
        steps = [step for step in steps if step % analysis.primary_settings.every == 0]
    if not steps:
        return None
    spread = [steps[round(i * (len(steps) - 1) / (SHOWN_STEPS - 1))] for i in range(SHOWN_STEPS)]
    chosen = spread if len(steps) > SHOWN_STEPS else steps
    rows = []
    for arm, found in by_arm.items():
        values = [found.get(step, {}) for step in chosen]
        estimates = [at_look(mean_interval([*v.values()]), analysis.share) if v else None for v in values]
        noises = [_noise_at(analysis, arm, step) for step in chosen]
        cells = (
            mean_cell(v, e, finished(analysis, arm), short=True, noise=noise)
            for v, e, noise in zip(values, estimates, noises, strict=True)
        )
        rows.append(TableRow(label=analysis.label(arm), cells=tuple(cells)))
    return Table(
        key="training",
        title="Score over training",
        answers=f"What was {analysis.score.label} at each evaluation?",
        first="Arm",
        columns=tuple(Column(key=f"step_{s}", label=f"step {s}", unit=analysis.score.unit) for s in chosen),
        rows=tuple(rows),
        notes=(
            "Single evaluations, not the score by the checkpoint rule.",
            *([BY_BUDGET] if by_budget else []),
            *([f"{SHOWN_STEPS} of {len(steps)} evaluations, evenly spread."] if len(steps) > SHOWN_STEPS else []),
            *interval_notes(rows, HALF_WIDTH),
        ),
    )


def _by_step(analysis: Analysis, arm: str) -> dict[int, dict[int, float]]:
    """Return step to seed to value of the primary metric, for the runs that have a score."""
    found: dict[int, dict[int, float]] = {}
    for run in analysis.runs(arm):
        if run.seed in analysis.values(arm, analysis.score):
            for step, value in series(run, analysis.score.metric):
                found.setdefault(step, {})[run.seed] = value
    return found


def _noise_at(analysis: Analysis, arm: str, step: int) -> float | None:
    """Return the largest evaluation noise of the arm's runs at a step; ``None`` without counts per problem."""
    errors = (error_at(run, analysis.score.metric, step) for run in analysis.runs(arm))
    return max((error for error in errors if error is not None), default=None)


def seeds_table(analysis: Analysis) -> Table:
    """Return the score of every run."""
    plan, unit = analysis.plan, analysis.score.unit
    seeds = {arm.key: plan.seeds for arm in plan.arms}
    columns = tuple(Column(key=f"seed_{s}", label=f"seed {s}", unit=unit) for s in plan.seeds)
    if not plan.paired:  # each run has a seed of its own
        seeds = {arm.key: tuple(sorted(r.seed for r in analysis.runs(arm.key))) for arm in plan.arms}
        most = max(map(len, seeds.values()))
        columns = tuple(Column(key=f"run_{k}", label=f"run {k}", unit=unit) for k in range(1, most + 1))
    rows = []
    for arm, own in seeds.items():
        cells = [_seed_cell(analysis, arm, s) for s in own]
        cells += [NOT_APPLICABLE] * (len(columns) - len(cells))
        rows.append(TableRow(label=analysis.label(arm), cells=tuple(cells)))
    return Table(
        key="seeds",
        title="Every run",
        answers=f"What did each seed reach in {analysis.score.label}? No run is left out.",
        first="Arm",
        columns=columns,
        rows=tuple(rows),
        notes=(f"{analysis.score.note}. † stopped early, with its last evaluation. ✗ failed. … not finished.",),
    )


def pairs_table(analysis: Analysis) -> Table | None:
    """Return the differences from the base by seed; ``None`` if seeds are not paired or nothing can be compared."""
    if not analysis.paired or not any(analysis.to_base.values()):
        return None
    base, seeds = analysis.plan.base, analysis.plan.seeds
    unit = analysis.score.unit
    exact = len(seeds) >= FROM
    tested = any(effect is not None and effect.supported for effect in analysis.to_base.values())
    meant = "mean of the differences with 95% t interval" if tested else "too few pairs for a mean with an interval"
    columns = [
        *(Column(key=f"seed_{s}", label=f"seed {s}", unit=unit) for s in seeds),
        Column(key="pairs", label="pairs"),
        Column(key="difference", label="mean" if tested else "differences", unit=unit, note=meant),
        Column(key="rho", label="ρ", note="correlation of the paired scores; pairing helps where it is positive"),
        *([Column(key="exact_p", label="exact p", note=PAIRED)] if exact else []),
    ]
    rows = []
    for arm, effect in analysis.to_base.items():
        if effect is None:
            continue
        cells = [_difference_of(effect, s) for s in seeds]
        cells += [
            Cell(text=str(effect.estimate.n), value=float(effect.estimate.n)),
            effect_cell(effect, effect.estimate.n, better=analysis.score.better),
            _rho(analysis, arm, base),
        ]
        cells += [sign_flip_cell(effect, analysis.share)] if exact else []
        rows.append(TableRow(label=analysis.label(arm), cells=tuple(cells)))
    return Table(
        key="pairs",
        title="Differences from the base, seed by seed",
        answers=f"Does {analysis.score.label} move the same way in every seed?",
        first="Arm",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(*interval_notes(rows, score=analysis.held), *(sign_flip_note(len(seeds)) if tested else ())),
    )


AT_END = "A run that was stopped at its last step has all its steps and its score there: it counts as finished."


def losses_table(analysis: Analysis) -> Table | None:
    """Return all runs that failed or were stopped, if only at their last step; ``None`` without one."""
    lost = [r for r in analysis.data.runs if r.outcome in ("failed", "stopped_early", "cancelled") or r.stopped_at_end]
    if not lost:
        return None
    at_end = any(r.stopped_at_end for r in lost)
    keys = ("seed", "outcome", "attempts", "last_step", "reason")
    rows = []
    for run in lost:
        outcome = "stopped at the last step" if run.stopped_at_end else run.outcome.replace("_", " ")
        outcome += f" ({run.state})" if run.state else ""
        texts = (str(run.seed), outcome, str(run.attempts), str(run.last_step), run.reason or "no reason recorded")
        rows.append(TableRow(label=analysis.label(run.arm), cells=tuple(Cell(text=t) for t in texts)))
    return Table(
        key="losses",
        title="Runs that were lost or stopped",
        answers="Which runs are missing or cut short, and why?",
        first="Arm",
        columns=tuple(Column(key=k, label=k.replace("_", " ")) for k in keys),
        rows=tuple(rows),
        notes=(
            "As planned, a run that was stopped early counts with its last evaluation; failed and cancelled runs are "
            "left out of the means and listed here.",
            *([AT_END] if at_end else []),
        ),
    )


def sensitivity_table(analysis: Analysis) -> Table | None:
    """Return the difference from the base if lost runs are counted differently; ``None`` if no arm is affected."""
    lost = {r.arm for r in analysis.data.runs if is_lost(analysis, r)}
    affected = [a.key for a in analysis.plan.arms if a.key != analysis.plan.base and lost & {a.key, analysis.plan.base}]
    if not affected:
        return None
    cases = list(sensitivity(analysis, affected[0]))
    rows = []
    for arm in affected:
        counted = [*sensitivity(analysis, arm).values()]
        better = analysis.score.better
        cells = [effect_cell(e, e.estimate.n if e else 0, better=better, verdict=True) for e in counted]
        testable = all(e is not None and e.supported for e in counted)
        verdict = Cell(text="fragile" if fragile(analysis, arm) else "stable" if testable else "not testable in full")
        rows.append(TableRow(label=analysis.label(arm), cells=(*cells, verdict)))
    unit = analysis.score.unit
    columns = [Column(key=c.replace(" ", "_"), label=c, unit=unit) for c in cases]
    return Table(
        key="sensitivity",
        title="If lost runs are counted differently",
        answers="Does the difference from the base depend on the runs that were lost or stopped?",
        first="Arm",
        columns=(
            *columns,
            Column(key="verdict", label="verdict", note="fragile: whether it is separated, or its sign, changes"),
        ),
        rows=tuple(rows),
        notes=(
            EXTREMES,
            *interval_notes(rows, score=analysis.held),
        ),
    )


def _seed_cell(analysis: Analysis, arm: str, seed: int) -> Cell:
    values = analysis.values(arm, analysis.score)
    outcome = next((r.outcome for r in analysis.runs(arm) if r.seed == seed), "pending")
    mark = MARKS.get(outcome, "")
    if seed not in values:
        return Cell(text=mark or MISSING.text)
    estimate = analysis.estimate(arm, analysis.score)
    assert estimate is not None  # this seed has a value
    text = number(values[seed], single_decimals(estimate)) + mark
    return Cell(text=text, value=rounded(values[seed]), n=1, seeds=by_seed({seed: values[seed]}))


def _difference_of(effect: Effect, seed: int) -> Cell:
    found = dict(effect.by_seed)
    if seed not in found:
        return NOT_APPLICABLE
    text = number(found[seed], single_decimals(effect.estimate), signed=True)
    return Cell(text=text, value=rounded(found[seed]), n=1)


def _rho(analysis: Analysis, arm: str, base: str) -> Cell:
    first, second = analysis.values(arm, analysis.score), analysis.values(base, analysis.score)
    seeds = sorted(first.keys() & second.keys())
    rho = correlation([first[s] for s in seeds], [second[s] for s in seeds])
    return NOT_APPLICABLE if rho is None else Cell(text=number(rho, 1), value=rounded(rho))


def all_details(analysis: Analysis, ceilings: Ceilings) -> Iterable[Table]:
    """Return the tables behind those of the designs that apply to this study."""
    found: Sequence[Table | None] = (
        robustness_table(analysis),
        pass_table(analysis),
        *set_details(analysis),
        cost_table(analysis),
        health_table(analysis),
        pairs_table(analysis),
        training_table(analysis),
        ceilings_table(analysis, ceilings),
        seeds_table(analysis),
        losses_table(analysis),
        sensitivity_table(analysis),
        *samples_tables(analysis),
    )
    return [t for t in found if t is not None]
