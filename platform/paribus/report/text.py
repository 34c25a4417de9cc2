"""From numbers to printed text: rounding, and what may be printed at each number of seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paribus.report.analysis import MIN_SEEDS, Effect
from paribus.report.model import Cell, Verdict, stored
from paribus.stats.intervals import Estimate, decimals_of
from paribus.stats.power import CAP

MISSING = Cell(text="n/a")
"""Nothing was measured."""

NOT_APPLICABLE = Cell(text="—")
"""The question does not arise."""


def decimals_for(se: float | None, value: float) -> int:
    """Return the decimals to print: one significant digit of the standard error, else 3 digits of the value."""
    if se:
        return min(decimals_of(se), 6)
    return 0 if value == round(value) else min(6, max(0, decimals_of(abs(value)) + 2))


def precision(estimate: Estimate) -> int:
    """Return the decimals of an estimate; one more where an end that is not 0 would read 0 beside "separated"."""
    decimals = decimals_for(estimate.se, estimate.value)
    nearest = min(abs(estimate.low or 0), abs(estimate.high or 0))
    return decimals + 1 if estimate.separated and round(nearest, decimals) == 0 else decimals


def single_decimals(estimate: Estimate) -> int:
    """Return the decimals of single seeds: one more than those of their mean, as a run is known better than it."""
    return decimals_for(estimate.se, estimate.value) + (1 if estimate.se else 0)


def number(value: float, decimals: int, *, signed: bool = False) -> str:
    """Return the rounded number with a true minus sign and never a negative zero; with ``+`` if asked for."""
    text = f"{round(value, decimals):.{max(0, decimals)}f}"
    if float(text) == 0:
        return text.removeprefix("-")
    sign = "+" if signed and not text.startswith("-") else ""
    return sign + text.replace("-", "−")


def p_text(p: float | None) -> str:
    """Return p with two significant digits, at most three decimals."""
    if p is None:
        return "—"
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def interval_text(estimate: Estimate, *, signed: bool = False) -> str:
    """Return ``0.63 [0.58, 0.68]``; without the bracket where there is no spread over seeds."""
    decimals = precision(estimate)
    text = number(estimate.value, decimals, signed=signed)
    if not estimate.sd or estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{number(estimate.low, decimals)}, {number(estimate.high, decimals)}]"


def mean_cell(
    values: Mapping[int, float], estimate: Estimate | None, expected: int, *, short: bool, noise: float | None = None
) -> Cell:
    """Return the cell of an arm's mean over seeds.

    One seed: the value, with the noise of the evaluation alone if it is known. Two: both values. From three on the mean
    with its 95% t interval, ``short`` as value and half-width.

    Args:
        values: seed to value.
        estimate: mean and interval over these values; ``None`` if there are none.
        expected: seeds that the row states; another number is printed in the cell.
        short: print ``21.7 ± 0.9`` in place of the ends of the interval.
        noise: standard error of one evaluation, for a single seed.
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
        decimals = decimals_for(noise, estimate.value) if estimate.n == 1 else single_decimals(estimate)
        text = ", ".join(number(v, decimals) for v in values.values())
        if estimate.n == 1 and noise:
            ends = [number(estimate.value + z * noise, decimals) for z in (-1.96, 1.96)]
            note = f"[{ends[0]}, {ends[1]}] evaluation noise only"
    if estimate.n != expected:
        text += f" (n={estimate.n})"
    low, high = (estimate.low, estimate.high) if supported and estimate.sd else (None, None)
    return Cell(
        text=text,
        note=note,
        value=stored(estimate.value),
        low=stored(low),
        high=stored(high),
        n=estimate.n,
        seeds=by_seed(values),
    )


def effect_cell(effect: Effect | None, expected: int, *, verdict: bool = False) -> Cell:
    """Return the cell of a difference; below three seeds the differences themselves, without interval or test.

    Args:
        effect: the difference.
        expected: seeds that the row states; another number of pairs is printed in the cell.
        verdict: add whether it is separated from seed noise, or about how many seeds that would take.
    """
    if effect is None:
        return MISSING
    e = effect.estimate
    if effect.supported:
        text = interval_text(e, signed=True)
    else:
        each = [d for _, d in effect.by_seed] or [e.value]
        text = ", ".join(number(d, single_decimals(e), signed=True) for d in each)
    if e.n != expected:
        text += f" (n={e.n})"
    state: Verdict = "untested"
    if effect.supported and e.sd:
        state = "separated" if effect.separated else "not_separated"
    bounds = effect.supported and bool(e.sd)
    return Cell(
        text=text,
        note=verdict_text(effect) if verdict else "",
        value=stored(e.value),
        low=stored(e.low) if bounds else None,
        high=stored(e.high) if bounds else None,
        n=e.n,
        p=stored(e.p) if effect.supported else None,
        p_adjusted=stored(effect.p_adjusted),
        seeds=by_seed(dict(effect.by_seed)),
        verdict=state,
    )


def verdict_text(effect: Effect) -> str:
    """Return ``separated*``, ``separated``, ``about 11 seeds needed`` or why nothing can be said."""
    if not effect.supported:
        return "too few seeds"
    if not effect.estimate.sd:
        return "same in every pair"
    if effect.separated:
        return "separated*" if effect.confirmed else "separated"
    return f"not separated (≈{effect.needed} seeds)" if effect.needed else f"not separated (>{CAP} seeds)"


def needed_text(effect: Effect) -> str:
    """Return ``about 11 seeds an arm would be needed``, or ``more than 100 ...``."""
    count = f"more than {CAP}" if effect.needed is None else f"about {effect.needed}"
    return f"{count} seeds an arm would be needed"


def listed(items: Iterable[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    found = list(items)
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + f" and {found[-1]}" if found else "nothing"


def by_seed(values: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Return seed and value, as the model keeps them."""
    return tuple((seed, float(f"{v:.6g}")) for seed, v in values.items())
