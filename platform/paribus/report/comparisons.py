"""How sure a difference to the base is: one spread for all arms, other problems, equivalence, outlying runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from paribus.report.analysis import MIN_SEEDS, Analysis, Effect
from paribus.report.exact import UNPAIRED, permutation_cell, permutation_note, testable
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.tables import finished, interval_notes
from paribus.report.text import (
    MISSING,
    NOT_APPLICABLE,
    decimals_for,
    effect_cell,
    interval_text,
    number,
    p_text,
)
from paribus.stats.compare import ALPHA
from paribus.stats.many import Pooled, dunnett_p, dunnett_quantile, pooled
from paribus.stats.problems import over_problems, parts
from paribus.stats.robust import better_share, iqm_interval
from paribus.stats.sequential import adjusted, level_at

ROBUST_FROM = 10
"""Seeds an arm from which interquartile means and probabilities of improvement are printed."""


def comparison_table(analysis: Analysis) -> Table | None:
    """Return each arm against the base in other ways than the main tables; ``None`` where nothing is testable."""
    arms = [arm for arm, e in analysis.to_base.items() if e is not None and e.supported]
    if not arms:
        return None
    spread = one_spread(analysis)
    columns = _columns(analysis, spread)
    keys = [c.key for c in columns]
    rows = tuple(
        TableRow(label=analysis.label(arm), cells=tuple(_cell(analysis, arm, key, spread) for key in keys))
        for arm in arms
    )
    return Table(
        key="comparisons",
        title="How sure is the difference to the base?",
        answers="Does it hold for all arms at once, on other problems, and is it large enough to matter?",
        first="Configuration",
        columns=columns,
        rows=rows,
        notes=(*interval_notes(rows, score=analysis.held), *_notes(analysis, spread, keys)),
    )


def one_spread(analysis: Analysis) -> Pooled | None:
    """Return the spread over seeds pooled over all arms; ``None`` below three arms or where arms differ in seeds."""
    found = [analysis.values(a.key, analysis.score) for a in analysis.plan.arms]
    counts = {len(v) for v in found}
    if len(found) < 3 or len(counts) != 1 or min(counts) < MIN_SEEDS:
        return None
    seeds = [sorted(v) for v in found]
    if analysis.plan.paired and any(s != seeds[0] for s in seeds):
        return None
    return pooled([[v[s] for s in order] for v, order in zip(found, seeds, strict=True)], paired=analysis.plan.paired)


def _columns(analysis: Analysis, spread: Pooled | None) -> tuple[Column, ...]:
    unit, base = analysis.score.unit, f"difference to `{analysis.label(analysis.plan.base)}`"
    found = [Column(key="difference", label="Δ base", unit=unit, note=f"{base}, as in the main tables")]
    if spread is not None and spread.equal:
        note = f"{base}; Dunnett's intervals hold for all arms at once, with one spread for all; p by the same test"
        found.append(Column(key="at_once", label="all at once", unit=unit, note=note))
    if any(analysis.answers(a.key, analysis.score) for a in analysis.plan.arms):
        note = f"{base}; seeds and problems both as a sample: for problems like these, not these alone"
        found.append(Column(key="problems", label="other problems", unit=unit, note=note))
    if not analysis.plan.paired and any(testable(*counts) for counts in _counts(analysis)):
        found.append(Column(key="exact_p", label="exact p", note=UNPAIRED))
    note = "smallest true difference that this study shows with 80% power, by the upper 80% bound of the spread"
    found.append(Column(key="detectable", label="detectable", unit=unit, note=note))
    if analysis.plan.margin is not None:
        note = f"two one-sided tests against ±{analysis.plan.margin:g}, p by Holm over the rows"
        found.append(Column(key="equivalent", label=f"within ±{analysis.plan.margin:g}?", note=note))
    if min(len(analysis.values(a.key, analysis.score)) for a in analysis.plan.arms) >= ROBUST_FROM:
        note = "interquartile mean of the arm with its 95% t interval (Tukey and McLaughlin)"
        found.append(Column(key="iqm", label="IQM", unit=unit, note=note))
        note = "probability of improvement: share of all pairs of runs of arm and base in which the arm is higher"
        found.append(Column(key="higher", label="P(higher)", unit="fraction", note=note))
    return tuple(found)


def _cell(analysis: Analysis, arm: str, key: str, spread: Pooled | None) -> Cell:
    effect = analysis.to_base[arm]
    assert effect is not None  # only such arms have a row
    values, base = analysis.values(arm, analysis.score), analysis.values(analysis.plan.base, analysis.score)
    match key:
        case "difference":
            return effect_cell(effect, finished(analysis, arm))
        case "at_once":
            assert spread is not None  # else there is no such column
            return _at_once(analysis, effect, spread)
        case "problems":
            return _on_other_problems(analysis, arm, effect)
        case "exact_p":
            return permutation_cell(values.values(), base.values(), analysis.share)
        case "detectable":
            return _size(effect.detectable)
        case "equivalent":
            p = analysis.equivalence.get(arm)
            words = "equivalent" if p is not None and p < ALPHA else "not shown"
            return Cell(text=words, note=f"p = {p_text(p)}".replace("= <", "< ") if p is not None else "", p_adjusted=p)
        case "iqm":
            estimate = iqm_interval([*values.values()], level=level_at(analysis.share))
            ends = stored(estimate.low), stored(estimate.high)
            return Cell(
                text=interval_text(estimate), value=stored(estimate.value), low=ends[0], high=ends[1], n=estimate.n
            )
        case _:
            share = better_share([*values.values()], [*base.values()])
            return Cell(text=number(share, 2), value=stored(share), n=len(values))


def _counts(analysis: Analysis) -> set[tuple[int, int]]:
    """Return the numbers of scores of each arm that is compared, and of the base."""
    base = len(analysis.values(analysis.plan.base, analysis.score))
    return {(len(analysis.values(a, analysis.score)), base) for a, e in analysis.to_base.items() if e and e.supported}


def _at_once(analysis: Analysis, effect: Effect, spread: Pooled) -> Cell:
    e, comparisons = effect.estimate, len(analysis.plan.arms) - 1
    errors = [(spread.sd * math.sqrt(2 / e.n), spread.df), *([e.noise] if e.noise else [])]
    half = max(dunnett_quantile(comparisons=comparisons, df=round(df), level=e.level) * se for se, df in errors)
    p = max(dunnett_p(e.value / se, comparisons=comparisons, df=round(df)) for se, df in errors)
    p = adjusted(p, analysis.share)
    found = replace(e, se=max(se for se, _ in errors), low=e.value - half, high=e.value + half)
    note = f"p = {p_text(p)}".replace("= <", "< ")
    return Cell(
        text=interval_text(found, signed=True),
        note=note,
        value=stored(e.value),
        low=stored(found.low),
        high=stored(found.high),
        n=e.n,
        p_adjusted=stored(p),
    )


def _on_other_problems(analysis: Analysis, arm: str, effect: Effect) -> Cell:
    from scipy import special

    paired = analysis.plan.paired
    terms = [(1.0, arm, analysis.score), (-1.0, analysis.plan.base, analysis.score)]
    tables = analysis.tables(terms, [analysis.values(a, analysis.score) for _, a, _ in terms], paired=paired)
    if tables is None:
        return MISSING
    both = over_problems(parts(tables))
    e, se = effect.estimate, math.sqrt(float(both.variance))
    if not se:
        return NOT_APPLICABLE
    # what holds for more problems than these is not known better than what holds for these
    half = max(float(special.stdtrit(float(both.df), (1 + e.level) / 2)) * se, e.half_width or 0.0)
    found = replace(e, se=se, sd=se, low=e.value - half, high=e.value + half)
    ends = stored(found.low), stored(found.high)
    return Cell(text=interval_text(found, signed=True), value=stored(e.value), low=ends[0], high=ends[1], n=e.n)


def _size(value: float | None) -> Cell:
    if value is None:
        return NOT_APPLICABLE
    return Cell(text=number(value, decimals_for(value, value) + 1), value=stored(value))


def _notes(analysis: Analysis, spread: Pooled | None, keys: Sequence[str]) -> list[str]:
    notes = []
    if spread is None:
        notes.append("No intervals for all arms at once: fewer than three arms, or arms with different seeds.")
    else:
        ratio = f"the largest spread of an arm is {spread.ratio:.1f} times the smallest"
        chance = f"equal spreads show this ratio or more in {spread.ratio_p:.0%} of studies"
        fit = f"One spread for all arms: sd {spread.sd:.2g}, {spread.df} degrees of freedom; {ratio}, {chance}."
        refused = f"No intervals for all arms at once: {ratio}; {chance}, and below 25% spreads are not pooled."
        notes.append(fit if "at_once" in keys else refused)
    if not analysis.plan.paired:
        notes += [text for counts in sorted(_counts(analysis)) for text in permutation_note(*counts)]
    if "equivalent" in keys:
        notes.append("not shown: neither a difference nor its absence is; `equivalent` alone says that there is none.")
    return notes
