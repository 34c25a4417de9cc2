"""Ceiling or efficiency as a table: what each curve says of its ceiling, and when it reaches a score of the base."""

from __future__ import annotations

import math
from dataclasses import replace

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.ceilings import AXES, Axis, Ceilings
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.model import Cell, Column, Table, TableRow, rounded, stored
from paribus.report.tables.cells import (
    MISSING,
    MOST_DECIMALS,
    NOT_APPLICABLE,
    decimals_for,
    effect_cell,
    estimate_cell,
    interval_text,
    number,
    pairing,
    side_of,
    verdict_text,
)
from paribus.stats.sigmoid import REACHED, WIDEST
from paribus.text import listed, plural

NOT_IDENTIFIED = "not identified"

FORM = (
    "Ceiling A of R(c) = R0 + (A - R0) / (1 + (C_mid / c)^B), the sigmoid of ScaleRL (arXiv 2510.13786), fitted by "
    "least squares to the mean curve of all runs that finished with a finite score"
)

RULE = (
    "A curve identifies a ceiling if the 95% profile interval of A, over this form and a stretched exponential, is at "
    f"most {WIDEST:.0%} of the rise, the fit has covered at least {REACHED:.0%} of the rise at its end, and its last "
    "half follows the form. It is the ceiling of this training: what a longer one would do is not known."
)

INTERVAL = (
    "[low, high]: 95% Student t interval over pseudo-values of the training seeds (jackknife: one seed left out at a "
    "time), for a ceiling with the profile interval added, for a difference of ceilings never narrower than it, for a "
    "cost never narrower than the gap of evaluations implies. No interval with fewer than 3 seeds."
)

AXIS_NAMES = {"steps": "steps", "tokens": "tokens", "time": "device time"}


def ceilings_table(analysis: Analysis, found: Ceilings) -> Table | None:
    """Return the fits of all arms; ``None`` if no curve has enough evaluations."""
    if all(found.fit(arm).whole is None for arm in found.arms):
        return None
    level, base, score = found.level, analysis.plan.base, analysis.score
    there = "" if level is None else number(level, decimals_for(None, level))
    columns = [
        Column(key="ceiling", label="ceiling", unit=score.unit, note=FORM),
        Column(key="to_base", label="Δ ceiling", unit=score.unit, note=f"against the base; {pairing(analysis)}"),
        Column(key="reached", label="covered", note="share of the rise that the fitted curve has covered at its end"),
    ]
    if level is not None:
        columns += [
            Column(key="cost", label=f"steps to {there}", note="half of what the base gained; from the fitted curve"),
            *(Column(key=f"{a}_ratio", label=f"{AXIS_NAMES[a]}, x base", note=_ratio_note(a, there)) for a in AXES),
        ]
    rows = [TableRow(label=analysis.label(arm), cells=tuple(_cells(analysis, found, arm))) for arm in found.arms]
    tested = found.family
    return Table(
        key="ceilings",
        title="Ceiling or efficiency",
        answers=f"Does an arm reach a higher {score.label} in the end, or the same one sooner?",
        first="Arm",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(
            RULE,
            *_reasons(analysis, found),
            *([INTERVAL] if any(c.low is not None for row in rows for c in row.cells) else []),
            *([f"*: p < 0.05 after Holm's correction over the {tested} tests of this table."] if tested else []),
            *_lost_notes(analysis, found),
            f"Everything is compared with `{analysis.label(base)}`. undecided is not evidence that nothing moves.",
        ),
    )


def _reasons(analysis: Analysis, found: Ceilings) -> list[str]:
    """Return why curves identify no ceiling, the arms of each reason together."""
    by_reason: dict[str, list[str]] = {}
    for arm in found.arms:
        if found.fit(arm).why:
            by_reason.setdefault(found.fit(arm).why, []).append(f"`{analysis.label(arm)}`")
    parts = [f"{listed(arms)}: {why}" for why, arms in by_reason.items()]
    return [f"The curve does not identify a ceiling: {'; '.join(parts)}."] if parts else []


def _ratio_note(axis: str, level: str) -> str:
    return f"{AXIS_NAMES[axis]} until {level}, over that of the base; below 1 is sooner"


LOST = (
    "A run that failed, was stopped or ended without a finite score is lost: it is in no curve. It reached the score "
    "if one of its own evaluations did, else it counts as never. The runs that are left are no fair sample, so an "
    "arm with lost runs is not tested here, and none is if the base has some."
)


def _lost_notes(analysis: Analysis, found: Ceilings) -> list[str]:
    """Return which runs are in no curve, and which evaluations are left out of one."""
    lost = {arm: len(found.lost(arm)) for arm in found.arms if found.lost(arm)}
    counts = [f"`{analysis.label(arm)}` {n} of {plural(len(analysis.runs(arm)), 'run')}" for arm, n in lost.items()]
    notes = [LOST, f"Lost: {listed(counts)}."] if lost else []
    fits = {arm: found.fit(arm) for arm in found.arms if found.fit(arm).left_out}
    gaps = [f"`{analysis.label(arm)}` {f.left_out} of {f.left_out + f.points}" for arm, f in fits.items()]
    left_out = f"Evaluations left out, because not all runs of a curve have them: {listed(gaps)}."
    return [*notes, *([left_out] if gaps else [])]


def _cells(analysis: Analysis, found: Ceilings, arm: str) -> list[Cell]:
    fit, own = found.fit(arm), arm == analysis.plan.base
    if fit.whole is None:
        cells = [Cell(text=NOT_IDENTIFIED), NOT_APPLICABLE, MISSING]
    else:
        effect = None if own else found.effects[arm, "ceiling"]
        delta = NOT_APPLICABLE if effect is None else _delta_cell(effect, analysis.score.better)
        covered = Cell(text=f"{fit.whole.reached:.0%}", value=rounded(fit.whole.reached))
        cells = [ceiling_cell(found, arm), delta, covered]
    if found.level is not None:
        cells += [_cost_cell(found, arm), *(_ratio_cell(found, arm, axis, own=own) for axis in AXES)]
    return cells


def ceiling_cell(found: Ceilings, arm: str) -> Cell:
    """Return the ceiling of an arm, or that its curve identifies none."""
    estimate = found.ceiling(arm)
    if estimate is None:
        return Cell(text=NOT_IDENTIFIED)
    few = estimate.n < MIN_SEEDS
    return estimate_cell(interval_text(estimate), estimate, bounds=not few, note="too few seeds" if few else "")


def _delta_cell(effect: Effect, better: str) -> Cell:
    cell = effect_cell(effect, effect.estimate.n, better=better, verdict=True)
    if not effect.supported or effect.p_adjusted is not None or effect.untestable:
        return cell
    return replace(cell, note="runs lost, no test", p=None, verdict="untested", side="")


def _cost_cell(found: Ceilings, arm: str) -> Cell:
    cost, note = found.cost(arm), _lost_runs(found, arm)
    if cost is None:
        return Cell(text="not reached", note=note) if found.fit(arm).whole else MISSING
    return Cell(text=number(cost, 0 if cost >= 10 else 1), note=note, value=rounded(cost))


def _lost_runs(found: Ceilings, arm: str) -> str:
    """Return which lost runs of an arm reached the score by themselves; empty if none is lost."""
    lost, never = len(found.lost(arm)), found.never(arm)
    if not lost:
        return ""
    runs = plural(lost, "lost run")
    return f"{runs}: {'never' if never == lost else f'{never} never'}" if never else f"{runs} reached it too"


def _ratio_cell(found: Ceilings, arm: str, axis: Axis, *, own: bool) -> Cell:
    effect = None if own else found.effects[arm, axis]
    if effect is None:
        return NOT_APPLICABLE
    return ratio_cell(effect)


def ratio_cell(effect: Effect) -> Cell:
    """Return the cell of a ratio from the difference of its logarithms."""
    e = effect.estimate
    ends = [None if x is None else _exp(x) for x in (e.low, e.high)]
    known = effect.supported and bool(e.sd)
    return Cell(
        text=ratio_text(effect),
        note=verdict_text(effect),
        value=stored(_exp(e.value)),
        low=stored(ends[0]) if known else None,
        high=stored(ends[1]) if known else None,
        n=e.n,
        p=stored(e.p) if effect.supported else None,
        p_adjusted=stored(effect.p_adjusted),
        correction=effect.correction or "",
        verdict="untested" if not known else "separated" if effect.separated else "not_separated",
        side=side_of(effect, "lower"),
    )


def ratio_text(effect: Effect) -> str:
    """Return ``0.62 [0.41, 0.95]``: a ratio with its interval."""
    e = effect.estimate
    value = _exp(e.value)
    if e.low is None or e.high is None or not e.sd:
        return _ratio(value)
    ends, more = [_exp(e.low), _exp(e.high)], 0
    while e.separated and any(_ratio(end, more) == _ratio(1.0, more) for end in ends) and more < MOST_DECIMALS:
        more += 1
    return f"{_ratio(value, more)} [{', '.join(_ratio(end, more) for end in ends)}]"


def _ratio(value: float, more: int = 0) -> str:
    if value > 999:
        return "more than 999"
    return f"{value:.{(0 if value >= 100 else 1 if value >= 10 else 2) + more}f}"


def _exp(value: float) -> float:
    return math.exp(min(max(value, -300.0), 300.0))
