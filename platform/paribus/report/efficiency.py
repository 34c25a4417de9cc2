"""How soon each arm reaches the score that the base arm ends with; runs that never do are counted, not dropped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from paribus.report.analysis import MIN_SEEDS, Analysis
from paribus.report.clock import device_time
from paribus.report.data import RunData
from paribus.report.measures import series
from paribus.report.model import Cell, Column, Figure, Line, Panel, Table, TableRow, kept, stored
from paribus.report.text import MISSING, decimals_for, interval_text, number
from paribus.stats.survival import Time, median_time, survivors

RULE = (
    "Reached: the first evaluation after training began that is at least as good. The noise of an evaluation can put "
    "it early, and it is known only to within the steps between two evaluations."
)

LISTED = 5
"""Most runs that a cell lists one by one."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Where one run stood when it reached the threshold, or when it ended without.

    Attributes:
        seed: seed of the run.
        reached: whether it did.
        paid: name of a cost to what had been paid by then.
    """

    seed: int
    reached: bool
    paid: Mapping[str, float]


def threshold(analysis: Analysis) -> float | None:
    """Return the mean score of the base arm, which other arms may reach sooner; ``None`` where there is none."""
    estimate = analysis.estimate(analysis.plan.base, analysis.score)
    return None if estimate is None or analysis.score.better == "neither" else estimate.value


def efficiency_table(analysis: Analysis) -> Table | None:
    """Return by arm what it took to reach the threshold; ``None`` if no run has reached it."""
    arms, goal = _arrivals(analysis), analysis.estimate(analysis.plan.base, analysis.score)
    if goal is None or not any(a.reached for found in arms.values() for a in found):
        return None
    columns = _columns(analysis)
    rows = []
    for arm, found in arms.items():
        count = Cell(text=f"{sum(a.reached for a in found)} of {len(found)}", n=len(found))
        cells = [_median(found, c.key) for c in columns[1:]]
        rows.append(TableRow(label=analysis.label(arm), cells=(count, *cells)))
    score = f"{analysis.score.label} {interval_text(goal)}"
    return Table(
        key="efficiency",
        title="How soon is the base arm's final score reached?",
        answers=f"What does each arm pay until it evaluates as well as the base does in the end: {score}?",
        first="Configuration",
        columns=columns,
        rows=tuple(rows),
        notes=(
            RULE,
            f"Median over runs (Kaplan and Meier), below it every run of up to {LISTED}; >: ended there and had not "
            "reached it, which counts as later. Fewer than 3 runs: no median. The threshold is itself measured, and no "
            "difference is tested.",
        ),
    )


def efficiency_figure(analysis: Analysis) -> Figure | None:
    """Return the share of runs that have reached the threshold against each cost; ``None`` if none has."""
    arms = _arrivals(analysis)
    if not any(a.reached for found in arms.values() for a in found):
        return None
    panels = []
    for column in _columns(analysis)[1:]:
        times = {arm: _times(found, column.key) for arm, found in arms.items()}
        end = max((at for found in times.values() for at, _ in found), default=0.0)
        panel = Panel(
            key=f"efficiency.{column.key}",
            title=f"reached, by {column.label}",
            x_label=column.label if column.key == "steps" else f"{column.label} ({column.unit})",
            y_label="runs that reached it (fraction)",
            lines=tuple(_line(analysis.label(arm), found, end) for arm, found in times.items() if found),
            steps=True,
        )
        panels.append(panel)
    return Figure(
        key="efficiency",
        title="How soon the base arm's final score is reached",
        caption=f"Share of runs that have reached it (Kaplan and Meier). {RULE} A line that ends "
        "below 1 ends with the last of its runs; the others never reached it.",
        panels=tuple(p for p in panels if p.lines),
        table="efficiency",
    )


_KNOWN: WeakKeyDictionary[Analysis, dict[str, list[Arrival]]] = WeakKeyDictionary()


def _arrivals(analysis: Analysis) -> dict[str, list[Arrival]]:
    """Return the arrivals of all runs that have come to an end and were evaluated, by arm; looked for once."""
    if analysis not in _KNOWN:
        _KNOWN[analysis] = _find_arrivals(analysis)
    return _KNOWN[analysis]


def _find_arrivals(analysis: Analysis) -> dict[str, list[Arrival]]:
    goal = threshold(analysis)
    if goal is None:
        return {}
    per_second = device_time(analysis)[1]
    found = {}
    for arm in analysis.plan.arms:
        ended = [r for r in analysis.runs(arm.key) if r.outcome in ("finished", "stopped_early", "failed")]
        arrivals = [_arrival(analysis, run, goal, per_second) for run in ended]
        if known := [a for a in arrivals if a is not None]:
            found[arm.key] = known
    return found


def _arrival(analysis: Analysis, run: RunData, goal: float, per_second: float) -> Arrival | None:
    points = [(step, v) for step, v in series(run, analysis.score.metric) if step > 0]
    if not points:
        return None
    sign = -1 if analysis.score.better == "lower" else 1
    first = next((step for step, v in points if sign * v >= sign * goal), None)
    at = points[-1][0] if first is None else first
    tokens, seconds = analysis.paid(run)[at]
    paid = {"steps": float(at), "tokens": tokens * analysis.costs["generated"].scale, "time": seconds * per_second}
    paid = {name: cost for name, cost in paid.items() if math.isfinite(cost)}
    return Arrival(seed=run.seed, reached=first is not None, paid=paid)


def _columns(analysis: Analysis) -> tuple[Column, ...]:
    unit = device_time(analysis)[0]
    return (
        Column(key="reached", label="reached it", note="of the runs that have ended and were evaluated"),
        Column(key="steps", label="training steps", unit="steps"),
        Column(key="tokens", label="tokens generated", unit=analysis.costs["generated"].unit),
        Column(key="time", label="time", unit=unit, note="step times with their evaluations, times the devices held"),
    )


def _times(found: Sequence[Arrival], key: str) -> list[Time]:
    return [(a.paid[key], a.reached) for a in found if key in a.paid]


def _median(found: Sequence[Arrival], key: str) -> Cell:
    times = _times(found, key)
    if not times:
        return MISSING
    decimals = max(0, decimals_for(None, float(f"{max(t for t, _ in times):.2g}")) - 1)
    each = ", ".join(f"{'' if reached else '>'}{number(t, decimals)}" for t, reached in sorted(times))
    if len(times) < MIN_SEEDS:
        return Cell(text=each, n=len(times))
    half = median_time(times)
    text = f">{number(max(t for t, _ in times), decimals)}" if half is None else number(half, decimals)
    return Cell(text=text, note=each if len(times) <= LISTED else "", value=stored(half), n=len(times))


def _line(label: str, times: Sequence[Time], end: float) -> Line:
    """Return the share against the cost, up to the end of the panel where all runs have reached it."""
    shares = survivors(times)
    last = end if all(reached for _, reached in times) else max(at for at, _ in times)
    x = (0.0, *(at for at, _ in shares), last)
    y = (0.0, *(1 - share for _, share in shares), 1 - (shares[-1][1] if shares else 1.0))
    return Line(arm=label, n=len(times), x=kept(x), mean=kept(y))
