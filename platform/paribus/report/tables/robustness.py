"""How sure a difference from the base is: one spread for all arms, other problems, equivalence, exact tests."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import comb

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import Effect
from paribus.report.analysis.one_spread import OneSpread, one_spread
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.tables.cells import (
    MISSING,
    NOT_APPLICABLE,
    decimals_for,
    effect_cell,
    estimate_cell,
    finished,
    interval_notes,
    interval_text,
    number,
    p_cell,
    p_words,
)
from paribus.stats.dunnett import UNEQUAL, Pooled
from paribus.stats.intervals import (
    MOST_SPLITS,
    better_share,
    iqm_interval,
    least_permutation_p,
    permutation_p,
    sign_flip_p,
)
from paribus.stats.multiple_testing import ALPHA, adjusted, at_look
from paribus.stats.problems import over_problems, parts

ROBUST_FROM = 10
"""Seeds per arm from which interquartile means and probabilities of improvement are printed."""

NOT_POOLED = "every arm needs the same seeds and a spread of its own"
"""What one spread for all arms needs."""


def robustness_table(analysis: Analysis) -> Table | None:
    """Return further comparisons of each arm with the base; ``None`` if nothing can be tested."""
    arms = [arm for arm, e in analysis.to_base.items() if e is not None and e.supported]
    if not arms:
        return None
    whole = one_spread(analysis)
    columns = _columns(analysis, whole)
    keys = [c.key for c in columns]
    rows = tuple(
        TableRow(label=analysis.label(arm), cells=tuple(_cell(analysis, arm, key, whole) for key in keys))
        for arm in arms
    )
    return Table(
        key="comparisons",
        title="How sure is the difference from the base?",
        answers="Does it hold for all arms at once and on other problems, and is it large enough to matter?",
        first="Arm",
        columns=columns,
        rows=rows,
        notes=(*interval_notes(rows, score=analysis.held), *_notes(analysis, whole, keys)),
    )


def check_of(spread: Pooled) -> str:
    """Return what the check says of equal spreads."""
    found = f"spreads of arms differ by up to {spread.ratio:.1f} times"
    return f"{found}, as equal spreads do in {spread.ratio_p:.1%} of studies ({UNEQUAL:.0%} needed)"


def _columns(analysis: Analysis, whole: OneSpread | None) -> tuple[Column, ...]:
    unit, base = analysis.score.unit, f"difference from `{analysis.label(analysis.plan.base)}`"
    found = [Column(key="difference", label="Δ base", unit=unit, note=f"{base}, as in the main tables")]
    if whole is not None and whole.by_arm:
        note = f"{base}; Dunnett's intervals, which hold for all arms at once, with one pooled spread; p by his test"
        found.append(Column(key="at_once", label="all at once", unit=unit, note=note))
    if any(analysis.answers(a.key, analysis.score) for a in analysis.plan.arms):
        note = f"{base}; seeds and problems both as samples: for problems like these, not only for these"
        found.append(Column(key="problems", label="other problems", unit=unit, note=note))
    if not analysis.paired and any(testable(*counts) for counts in _counts(analysis)):
        found.append(Column(key="exact_p", label="exact p", note=UNPAIRED))
    note = "smallest true difference that this study detects with 80% power, at the upper 80% bound of the spread"
    found.append(Column(key="detectable", label="detectable", unit=unit, note=note))
    if analysis.plan.margin is not None:
        note = f"two one-sided tests against ±{analysis.plan.margin:g}, p by Holm over the rows"
        found.append(Column(key="equivalent", label=f"within ±{analysis.plan.margin:g}?", note=note))
    if min(len(analysis.values(a.key, analysis.score)) for a in analysis.plan.arms) >= ROBUST_FROM:
        note = "interquartile mean of the arm with its 95% t interval (Tukey and McLaughlin)"
        found.append(Column(key="iqm", label="IQM", unit=unit, note=note))
        note = "probability of improvement: share of all pairs of runs, arm and base, in which the arm is higher"
        found.append(Column(key="higher", label="P(higher)", unit="fraction", note=note))
    return tuple(found)


def equivalence_cell(p: float | None, *, late: bool) -> Cell:
    """Return whether a test against a margin shows equivalence.

    Args:
        p: corrected, of "differs by the margin or more"; ``None`` without a test.
        late: whether something of the test was declared after results were there.
    """
    words = "exploratory" if late else "equivalent" if p is not None and p < ALPHA else "not shown"
    return Cell(text=words, note="" if p is None else p_words(p), p_adjusted=p, correction="" if p is None else "holm")


def _cell(analysis: Analysis, arm: str, key: str, whole: OneSpread | None) -> Cell:
    effect = analysis.to_base[arm]
    assert effect is not None  # only arms with an effect have a row
    values, base = analysis.values(arm, analysis.score), analysis.values(analysis.plan.base, analysis.score)
    match key:
        case "difference":
            return effect_cell(effect, finished(analysis, arm), better=analysis.score.better)
        case "at_once":
            assert whole is not None  # the column requires it
            e = whole.by_arm[arm]
            assert e.p is not None  # by Dunnett
            return estimate_cell(
                interval_text(e, signed=True), e, note=p_words(e.p), p_adjusted=stored(e.p), correction="dunnett"
            )
        case "problems":
            return _on_other_problems(analysis, arm, effect)
        case "exact_p":
            return permutation_cell(values.values(), base.values(), analysis.share)
        case "detectable":
            return _size(effect.detectable, analysis.largest)
        case "equivalent":
            late = analysis.late("margin") or arm in analysis.late_arms
            return equivalence_cell(analysis.equivalence.get(arm), late=late)
        case "iqm":
            estimate = at_look(iqm_interval([*values.values()]), analysis.share)
            return estimate_cell(interval_text(estimate), estimate)
        case _:
            share = better_share([*values.values()], [*base.values()])
            return Cell(text=number(share, 2), value=stored(share), n=len(values))


def _counts(analysis: Analysis) -> set[tuple[int, int]]:
    """Return the number of scores of each compared arm, with that of the base."""
    base = len(analysis.values(analysis.plan.base, analysis.score))
    return {(len(analysis.values(a, analysis.score)), base) for a, e in analysis.to_base.items() if e and e.supported}


def _on_other_problems(analysis: Analysis, arm: str, effect: Effect) -> Cell:
    from scipy import special

    paired = analysis.paired
    terms = [(1.0, arm, analysis.score), (-1.0, analysis.plan.base, analysis.score)]
    tables = analysis.tables(terms, [analysis.values(a, analysis.score) for _, a, _ in terms], paired=paired)
    if tables is None:
        return MISSING
    both = over_problems(parts(tables))
    e, se = effect.estimate, math.sqrt(float(both.variance))
    if not se:
        return NOT_APPLICABLE
    # a statement about more problems is never more certain than one about these problems
    half = max(float(special.stdtrit(float(both.df), (1 + e.level) / 2)) * se, e.half_width or 0.0)
    found = replace(e, se=se, sd=se, low=e.value - half, high=e.value + half)
    return estimate_cell(interval_text(found, signed=True), found)


def _size(value: float | None, most: float) -> Cell:
    if value is None:
        return NOT_APPLICABLE
    text = number(value, decimals_for(value, value) + 1) if value <= most else f"> {most:g}"
    return Cell(text=text, value=stored(value))


def _notes(analysis: Analysis, whole: OneSpread | None, keys: Sequence[str]) -> list[str]:
    notes = []
    if whole is None:
        notes.append(f"No intervals for all arms at once: there must be three arms, and {NOT_POOLED}.")
    elif whole.by_arm:
        spread = whole.spread
        notes.append(
            f"One spread for all arms: sd {spread.sd:.2g}, {spread.df} degrees of freedom; {check_of(spread)}."
        )
    else:
        notes.append(f"No intervals for all arms at once: {check_of(whole.spread)}.")
    if not analysis.paired:
        notes += [text for counts in sorted(_counts(analysis)) for text in permutation_note(*counts)]
    if "equivalent" in keys:
        notes.append(
            "not shown: no statement about a difference; only `equivalent` shows that there is none that would matter."
        )
    return notes


FROM, TO = 5, 16
"""Numbers of pairs for which the sign-flip test is printed; with fewer pairs it cannot come near 5%."""


PAIRED = "paired sign-flip test, uncorrected"


UNPAIRED = "permutation test of both means, seeds not paired; uncorrected"


def sign_flip_cell(effect: Effect, share: float) -> Cell:
    """Return the exact p of a paired difference; ``share`` is the part of the 5% that this interim analysis has."""
    differences = [d for _, d in effect.by_seed]
    if not FROM <= len(differences) <= TO:
        return NOT_APPLICABLE
    return p_cell(adjusted(sign_flip_p(differences), share), len(differences))


def sign_flip_note(pairs: int) -> list[str]:
    """Return why there is no sign-flip test if there are too few pairs."""
    if not 2 <= pairs < FROM:
        return []
    smallest = f"{2.0 ** (1 - pairs):g}"
    return [
        f"With {pairs} pairs an exact sign-flip test cannot go below {smallest}: p values assume near-normal scores."
    ]


def permutation_cell(first: Collection[float], second: Collection[float], share: float) -> Cell:
    """Return the exact p of two unpaired arms; ``share`` is the part of the 5% that this interim analysis has."""
    n, m = len(first), len(second)
    if not testable(n, m):
        return NOT_APPLICABLE
    return p_cell(adjusted(permutation_p([*first], [*second]), share), min(n, m))


def testable(n: int, m: int) -> bool:
    """Whether the permutation test is printed: it can reach 5%, and all its splits can be enumerated."""
    return min(n, m) > 0 and least_permutation_p(n, m) < ALPHA and comb(n + m, n) <= MOST_SPLITS


def permutation_note(n: int, m: int) -> list[str]:
    """Return why there is no permutation test if there are too few scores."""
    if min(n, m) < 2 or least_permutation_p(n, m) < ALPHA:
        return []
    smallest = f"{least_permutation_p(n, m):.2g}"
    return [
        f"With {n} and {m} seeds an exact permutation test cannot go below {smallest}: p values assume near-normal "
        "scores."
    ]
