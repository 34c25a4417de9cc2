"""The cells of tables: rounding, what may be printed at each number of seeds, and notes that tables share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.analysis.lost_runs import fragile
from paribus.report.analysis.measures import Measure, diverged, failed_rewards, meaning_of
from paribus.report.model import Cell, Column, Side, TableRow, Verdict, rounded, stored
from paribus.stats.intervals import Estimate, decimals_of
from paribus.stats.multiple_testing import level_at
from paribus.stats.power import CAP
from paribus.text import listed

MISSING = Cell(text="n/a")
"""Not measured."""


NOT_APPLICABLE = Cell(text="—")
"""Not applicable."""


MOST_DECIMALS = 6
"""Decimals that are printed where fewer would put a number on a limit that it does not reach."""

_LEVELS = (0.01, 0.02, 0.03, 0.04, 0.05)


def decimals_for(se: float | None, value: float) -> int:
    """Return the decimals to print: one significant digit of the standard error, or else 3 digits of the value."""
    if se:
        return min(decimals_of(se), 6)
    return 0 if value == round(value) else min(6, max(0, decimals_of(abs(value)) + 2))


def precision(estimate: Estimate) -> int:
    """Return the decimals of an estimate: more if a nonzero end of a separated interval would print as 0."""
    decimals = decimals_for(estimate.se, estimate.value)
    nearest = min(abs(estimate.low or 0), abs(estimate.high or 0))
    while estimate.separated and round(nearest, decimals) == 0 and decimals < MOST_DECIMALS:
        decimals += 1
    return decimals


def single_decimals(estimate: Estimate) -> int:
    """Return the decimals of single seeds: one more than their mean has, because one run is known more precisely."""
    return decimals_for(estimate.se, estimate.value) + (1 if estimate.se else 0)


def number(value: float, decimals: int, *, signed: bool = False) -> str:
    """Return the rounded number with a true minus sign and no negative zero; ``signed`` adds ``+``."""
    text = f"{round(value, decimals):.{max(0, decimals)}f}"
    if float(text) == 0:
        return text.removeprefix("-")
    sign = "+" if signed and not text.startswith("-") else ""
    return sign + text.replace("-", "−")


def p_text(p: float | None) -> str:
    """Return p with two significant digits, at most three decimals, but never rounded up to a level of a test."""
    if p is None:
        return "—"
    if p < 0.001:
        return "<0.001"
    decimals = 3 if p < 0.0995 else 2
    while round(p, decimals) in _LEVELS and p < round(p, decimals) and decimals < MOST_DECIMALS:
        decimals += 1
    return f"{p:.{decimals}f}"


def p_words(p: float) -> str:
    """Return ``p = 0.03`` or ``p < 0.001``."""
    return f"p = {p_text(p)}".replace("= <", "< ")


def p_cell(p: float | None, n: int | None = None) -> Cell:
    """Return the cell of a p value; an em dash without a test."""
    return NOT_APPLICABLE if p is None else Cell(text=p_text(p), value=stored(p), n=n)


def adjusted_cell(effect: Effect | None) -> Cell:
    """Return the cell of an effect's p after correction; an em dash without a test."""
    if effect is None or effect.p_adjusted is None:
        return NOT_APPLICABLE
    p = stored(effect.p_adjusted)
    return Cell(text=p_text(effect.p_adjusted), value=p, p_adjusted=p, correction=effect.correction or "")


def estimate_cell(text: str, estimate: Estimate, *, bounds: bool = True, **more: Any) -> Cell:
    """Return a cell with the numbers of an estimate; without the ends of its interval unless ``bounds``."""
    low, high = (stored(estimate.low), stored(estimate.high)) if bounds else (None, None)
    return Cell(text=text, value=stored(estimate.value), low=low, high=high, n=estimate.n, **more)


def interval_text(estimate: Estimate, *, signed: bool = False) -> str:
    """Return ``0.63 [0.58, 0.68]``, without the bracket if there is no spread over seeds."""
    decimals = precision(estimate)
    text = number(estimate.value, decimals, signed=signed)
    if not estimate.sd or estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{number(estimate.low, decimals)}, {number(estimate.high, decimals)}]"


def mean_cell(
    values: Mapping[int, float], estimate: Estimate | None, expected: int, *, short: bool, noise: float | None = None
) -> Cell:
    """Return the cell of an arm's mean over seeds.

    One seed: the value, unless ``short`` with the evaluation noise if it is known. Two seeds: both values. Three or
    more: the mean with its 95% t interval, printed as value and half-width if ``short``. Below three seeds the
    evaluation noise says how many digits are known, because two runs can agree by luck.

    Args:
        values: seed to value.
        estimate: mean and interval over these values; ``None`` without values.
        expected: seeds that the row states; a different number is printed in the cell.
        short: print ``21.7 ± 0.9`` instead of the ends of the interval.
        noise: standard error of one run's evaluation, for one or two seeds.
    """
    if estimate is None:
        return MISSING
    supported = estimate.n >= MIN_SEEDS
    note = ""
    if supported and short and estimate.sd and estimate.half_width is not None:
        decimals = decimals_for(estimate.se, estimate.value)
        text = f"{number(estimate.value, decimals)} ± {number(estimate.half_width, decimals)}"
    elif supported:
        text = interval_text(estimate)
    else:
        decimals = decimals_for(noise, estimate.value) if estimate.n == 1 or noise else single_decimals(estimate)
        text = ", ".join(number(v, decimals) for v in values.values())
        if estimate.n == 1 and noise and not short:
            ends = [number(estimate.value + z * noise, decimals) for z in (-1.96, 1.96)]
            note = f"[{ends[0]}, {ends[1]}] {NOISE_ONLY}"
    if estimate.n != expected:
        text += f" (n={estimate.n})"
    bounds = supported and bool(estimate.sd)
    return estimate_cell(text, estimate, bounds=bounds, note=note, seeds=by_seed(values))


def side_of(effect: Effect, better: str) -> Side:
    """Return whether a separated difference is to the better or the worse; ``better``: see :class:`.Measure`."""
    shift = {"higher": 1, "lower": -1}.get(better, 0) * effect.estimate.value if effect.separated else 0
    return "better" if shift > 0 else "worse" if shift < 0 else ""


def effect_cell(effect: Effect | None, expected: int, *, better: str = "", verdict: bool = False) -> Cell:
    """Return the cell of a difference; with fewer than three seeds the single differences, without interval or test.

    Args:
        effect: the difference.
        expected: seeds that the row states; a different number of pairs is printed in the cell.
        better: whether a ``higher`` or a ``lower`` difference is better, for its colour; else none is.
        verdict: add whether it is separated from seed noise.
    """
    if effect is None:
        return MISSING
    e = effect.estimate
    text = interval_text(e, signed=True) if effect.supported else ", ".join(single_texts(effect))
    if e.n != expected:
        text += f" (n={e.n})"
    state: Verdict = "untested"
    if effect.supported and e.sd:
        state = "separated" if effect.separated else "not_separated"
    return estimate_cell(
        text,
        e,
        bounds=effect.supported and bool(e.sd),
        note=verdict_text(effect) if verdict else "",
        p=stored(e.p) if effect.supported else None,
        p_adjusted=stored(effect.p_adjusted),
        correction=effect.correction or "",
        seeds=by_seed(dict(effect.by_seed)),
        verdict=state,
        side=side_of(effect, better),
    )


def single_texts(effect: Effect) -> list[str]:
    """Return the difference of each seed, for effects with too few of them for a test."""
    e = effect.estimate
    decimals = decimals_for(effect.answers, e.value) if effect.answers else single_decimals(e)
    return [number(d, decimals, signed=True) for d in [d for _, d in effect.by_seed] or [e.value]]


def verdict_text(effect: Effect) -> str:
    """Return ``separated*``, ``separated``, ``undecided``, or why there is no verdict."""
    if not effect.supported:
        return "too few seeds"
    if effect.untestable:
        return "no spread, no test"
    if effect.separated:
        return "separated*" if effect.confirmed else "separated"
    return "undecided"


def percent(share: float) -> str:
    """Return a share above 1%, never rounded to all."""
    return f"{min(share, 0.99) if share < 1 else share:.0%}"


def needed_text(seeds: int | None) -> str:
    """Return ``about 11 seeds per arm`` or ``more than 100 seeds per arm``."""
    return f"{f'more than {CAP}' if seeds is None else f'about {seeds}'} seeds per arm"


def by_seed(values: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Return seed and value as the model stores them."""
    return tuple((seed, rounded(v)) for seed, v in values.items())


NOISE_ONLY = "evaluation noise only"


ONE_RUN = (
    f"[low, high] {NOISE_ONLY}: 95% normal interval of one run's score over the choice of problems. It leaves out "
    "how much runs of other seeds differ."
)


MARKS = {"stopped_early": "†", "failed": "✗", "cancelled": "✗", "pending": "…"}


INTERVALS = (
    "[low, high]: 95% Student t interval over training seeds, not clipped to the metric's range; rounded to one "
    "significant digit of the standard error."
)


HALF_WIDTH = (
    "±: half the width of the 95% Student t interval over training seeds, not a standard deviation; rounded to one "
    "significant digit of the standard error."
)


FLOOR = (
    "No interval of {score} is narrower, and no p value smaller, than evaluation noise alone implies (two-way analysis "
    "of variance of the correct answers by seed and problem)."
)


def interval_notes(rows: Iterable[TableRow], note: str = INTERVALS, score: str = "") -> list[str]:
    """Return how to read the intervals of a table, if it has any; ``score`` names the measure with a noise floor."""
    cells = [cell for row in rows for cell in row.cells]
    notes = [note, *([FLOOR.format(score=score)] if score else [])] if any(c.low is not None for c in cells) else []
    return [*notes, *([ONE_RUN] if any(c.note.endswith(NOISE_ONLY) for c in cells) else [])]


def seeds_cell(analysis: Analysis, arm: str) -> Cell:
    """Return ``3/3``, finished over all runs, with the marks of runs that did not finish."""
    runs = analysis.runs(arm)
    done = finished(analysis, arm)
    marks = "".join(dict.fromkeys(MARKS[r.outcome] for r in runs if r.outcome != "finished"))
    return Cell(text=f"{done}/{len(runs)}{marks}", value=float(done), n=len(runs))


def status_cell(analysis: Analysis, arm: str) -> Cell:
    """Return ``ok``, or how runs ended that did not finish, failed rewards, and what makes its verdict weak."""
    runs = analysis.runs(arm)
    outcomes = [r.outcome for r in runs]
    words = {"stopped_early": "stopped early", "failed": "failed", "cancelled": "cancelled", "pending": "not finished"}
    parts = [f"{outcomes.count(k)} {w}" for k, w in words.items() if k in outcomes]
    broken = sum(diverged(r, analysis.score.metric) for r in runs)
    at_end = sum(r.stopped_at_end for r in runs)
    parts += [f"{at_end} stopped at the last step"] if at_end else []
    parts += [f"{broken} without a finite end"] if broken else []
    shares = [share for r in runs if (share := failed_rewards(r)) is not None]
    where = "" if len(shares) == len(runs) else f" in {len(shares)} of {len(runs)}"
    parts += [f"rewards failed{where} ({percent(math.fsum(shares) / len(shares))})"] if shares else []
    if arm != analysis.plan.base and fragile(analysis, arm):
        parts.append("fragile")
    if arm in analysis.late_arms:
        parts.append("exploratory")
    parts += sorted({r.external.origin for r in runs if r.external})
    return Cell(text=", ".join(parts) or "ok")


def score_cell(analysis: Analysis, arm: str, measure: Measure | None = None, *, bold: bool = False) -> Cell:
    """Return the arm's score; for a single seed with its evaluation noise."""
    measure = measure or analysis.score
    values = analysis.values(arm, measure)
    noise = analysis.answer_error(arm, measure) if len(values) < MIN_SEEDS else None
    cell = mean_cell(values, analysis.estimate(arm, measure), finished(analysis, arm), short=False, noise=noise)
    return replace(cell, bold=bold)


def measure_cell(analysis: Analysis, arm: str, measure: Measure) -> Cell:
    """Return the arm's mean in a measure, as value and half-width."""
    values = analysis.values(arm, measure)
    return mean_cell(values, analysis.estimate(arm, measure), finished(analysis, arm), short=True)


def seeds_column(analysis: Analysis) -> Column:
    """Return the column of :func:`seeds_cell`; runs that Paribus did not train were not planned."""
    return Column(key="seeds", label="seeds", note=f"finished / {'all' if analysis.plan.external else 'planned'}")


def measure_columns(analysis: Analysis, measures: Iterable[Measure]) -> tuple[Column, ...]:
    """Return the columns of a table of measures: seeds first."""
    return (seeds_column(analysis), *(Column(key=m.key, label=m.label, unit=m.unit, note=m.note) for m in measures))


def measure_row(analysis: Analysis, label: str, arm: str, measures: Iterable[Measure]) -> TableRow:
    """Return the row of an arm in a table of measures."""
    cells = (measure_cell(analysis, arm, m) for m in measures)
    return TableRow(label=label, cells=(seeds_cell(analysis, arm), *cells))


def finished(analysis: Analysis, arm: str) -> int:
    """Return the number of the arm's runs that finished as planned."""
    return sum(r.outcome == "finished" for r in analysis.runs(arm))


def level_text(analysis: Analysis) -> str:
    """Return the confidence level of the intervals, for example ``95%``; at an interim analysis it is higher."""
    return f"{100 * level_at(analysis.share):.4g}%"


def pairing(analysis: Analysis) -> str:
    """Return how two arms are compared, with the test where there is one."""
    pairs, test = ("paired by seed", "paired t") if analysis.paired else ("seeds not paired", "Welch's t")
    return f"{pairs}, {test}" if analysis.family else pairs


def training_notes(analysis: Analysis, arms: Iterable[str], measures: Iterable[Measure]) -> list[str]:
    """Return what limits a comparison of these arms: approximate training, and values that are not exact."""
    keys = list(dict.fromkeys(arms))
    every = list(measures)
    return [*_approximate(analysis, keys), *_sources(analysis, keys, every), *_other_meaning(analysis, keys, every)]


def _other_meaning(analysis: Analysis, arms: Sequence[str], measures: Iterable[Measure]) -> list[str]:
    """Return which measures are not compared, because they need not mean the same in two arms."""
    apart = [m.label for m in measures if len({meaning_of(analysis.runs(a), m) for a in arms} - {frozenset()}) > 1]
    return [f"Not compared between arms, because trainers measure it in other ways: {listed(apart)}."] if apart else []


def _approximate(analysis: Analysis, arms: Sequence[str]) -> list[str]:
    """Return one note per thing that the runner trains only approximately, with its reason and the arms."""
    found: dict[tuple[str, str], list[str]] = {}
    for arm in arms:
        for support in analysis.plan.arm(arm).approximate:
            found.setdefault((support.feature, support.reason), []).append(f"`{analysis.label(arm)}`")
    return [
        f"Trained approximately: `{feature}` in {listed(labels)}. {reason}".rstrip()
        for (feature, reason), labels in found.items()
    ]


def _sources(analysis: Analysis, arms: Sequence[str], measures: Iterable[Measure]) -> list[str]:
    """Return where the values of each measure come from, if any of them is derived or a proxy."""
    parts = []
    for measure in measures:
        by_source: dict[str, list[str]] = {}
        for arm in arms:
            for source in sorted(
                frozenset[str]().union(*(r.recorded.sources_of(measure.metric) for r in analysis.runs(arm)))
            ):
                by_source.setdefault(source, []).append(f"`{analysis.label(arm)}`")
        if by_source.keys() - {"exact"}:
            parts.append(f"{measure.label} ({'; '.join(f'{s} in {listed(a)}' for s, a in sorted(by_source.items()))})")
    if not parts:
        return []
    return [f"Not all values are exact: {', '.join(parts)}. A difference between arms can come from the source alone."]
