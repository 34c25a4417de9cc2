"""The number of seeds still needed to know the difference of an arm to the base to a given precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paribus.stats.power import CAP, seeds_for_width
from paribus_dashboards.data.reports import Spread

COLUMNS = 3
"""Shown precisions."""


@dataclass(frozen=True, kw_only=True)
class Needed:
    """One arm.

    Attributes:
        label: label of the arm.
        n: seeds so far.
        half: half the width of the 95% interval for the spread of these seeds; ``None`` below two seeds.
        more: seeds still needed for each precision, e.g. ``4`` or ``more than 997``.
    """

    label: str
    n: int
    half: float | None
    more: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The table.

    Attributes:
        widths: half widths of intervals, the widest first.
        rows: one per arm.
    """

    widths: tuple[float, ...]
    rows: tuple[Needed, ...]


def precision(spreads: Sequence[Spread]) -> Precision | None:
    """Return the table for half widths of 1, 2 or 5 times a power of ten below the median now; ``None`` without one."""
    halves = {s.label: _half(s) for s in spreads}
    known = [h for h in halves.values() if h is not None]
    if not known:
        return None
    widths = below(median(known))
    rows = tuple(
        Needed(label=s.label, n=s.n, half=halves[s.label], more=tuple(_more(s, w) for w in widths)) for s in spreads
    )
    return Precision(widths=widths, rows=rows)


def below(half: float) -> tuple[float, ...]:
    """Return the next smaller half widths, e.g. 0.02, 0.01 and 0.005 below 0.03."""
    power = math.floor(math.log10(half))
    found = [float(f"{digit}e{p}") for p in range(power, power - 3, -1) for digit in (5, 2, 1)]
    return tuple(w for w in found if w < half)[:COLUMNS]


def _half(spread: Spread) -> float | None:
    from scipy import special

    if not spread.sd or spread.n < 2:
        return None
    n, df = spread.n, spread.n - 1 if spread.paired else 2 * (spread.n - 1)
    return float(special.stdtrit(df, 0.975)) * spread.sd * math.sqrt((1 if spread.paired else 2) / n)


def _more(spread: Spread, width: float) -> str:
    if not spread.sd:
        return "n/a"
    needed = seeds_for_width(width, spread.sd, paired=spread.paired)
    return f"more than {CAP - spread.n}" if needed is None else str(max(0, needed - spread.n))
