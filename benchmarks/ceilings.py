"""What a fitted ceiling is worth, on curves of many families that the report's form did not make.

    python benchmarks/ceilings.py [--studies 30]    # some minutes: writes docs/reference/ceilings.md

Each study has arms of several seeds. A run has a curve of the family, with a ceiling and a speed of its own,
evaluations with the noise of their answers, and wobbles that neighbouring evaluations share. Curves go from 0.2 to
0.6 where they have a ceiling. What counts as true is the mean of the seeds' distribution, which no fit sees.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.ceilings import Ceilings
from paribus.report.inputs import RunData, StudyData
from paribus.run_folder.folder import MetricLine
from paribus.stats.sigmoid import DRIFT, REACHED, RISES, WIDEST
from support.studies import Shape, made_up_study

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "ceilings.md"
START, TOP, STEPS, PROBLEMS = 0.2, 0.6, 200, 500

SPREAD_TOP, SPREAD_SPEED, WOBBLE, MEMORY = 0.015, 0.1, 0.01, 0.5
"""Standard deviations over seeds of the ceiling and of the logarithm of the speed; of a wobble, and its memory."""

NONE = "a ceiling that is not there is never identified"

DIFFER = ("sigmoid, soon", "exponential, soon", "sigmoid, late", "exponential, late")
"""Families of two arms that differ: a difference of speed shows only where the rise takes several evaluations."""

DIFFERENCES = ((0.06, 1.0), (0.0, 2.0))
"""By how much the arm's ceiling is higher, and its speed as a factor."""

Curve = Callable[[float, float, float], float]
"""Share of the training, ceiling and speed to a score."""


def _rising(shape: Callable[[float], float]) -> Curve:
    return lambda x, top, speed: START + (top - START) * shape(x * speed)


WITH: Mapping[str, Curve] = {
    "sigmoid, soon": _rising(lambda x: x**2 / (x**2 + 0.1**2)),
    "sigmoid, late": _rising(lambda x: x**3 / (x**3 + 0.35**3)),
    "exponential, soon": _rising(lambda x: 1 - math.exp(-x / 0.12)),
    "exponential, late": _rising(lambda x: 1 - math.exp(-x / 0.3)),
    "logistic in the steps": _rising(lambda x: 1 / (1 + math.exp(-(x - 0.3) / 0.06))),
    "hyperbolic tangent": _rising(lambda x: math.tanh(x / 0.25)),
    "a step": _rising(lambda x: float(x > 0.3)),
    "a ramp to a plateau": _rising(lambda x: min(1.0, x / 0.4)),
    "two steps": _rising(lambda x: 0.5 * (x > 0.15) + 0.5 * (x > 0.4)),
}
"""Families that are at their ceiling, or near it, when the training ends."""

WITHOUT: Mapping[str, Curve] = {
    "constant": lambda x, top, speed: START + 0.3 * (top - TOP),
    "straight line": _rising(lambda x: 0.9 * x),
    "square root": _rising(lambda x: 0.9 * math.sqrt(x)),
    "power 0.25": _rising(lambda x: 0.9 * x**0.25),
    "logarithm": _rising(lambda x: 0.3 * math.log1p(20 * x)),
    "slow exponential": _rising(lambda x: 1.5 * (1 - math.exp(-x / 1.2))),
    "plateau, then a second rise": _rising(lambda x: 0.5 * min(1.0, x / 0.3) + max(0.0, x - 0.7)),
    "rise, then collapse": _rising(lambda x: min(1.0, x / 0.3) - max(0.0, 1.2 * (x - 0.6))),
    "falling": _rising(lambda x: -0.3 * min(1.0, x / 0.3)),
}
"""Families that are still moving when the training ends, or that never rise."""


def study(
    curve: Curve, seeds: int, evaluations: int, dice: random.Random, *, top: float = 0.0, speed: float = 1.0
) -> StudyData:
    """Return a study of the base and one arm, whose ceiling is higher by ``top`` and which is faster by ``speed``."""
    every = STEPS // evaluations
    shape = Shape(
        seeds=seeds, steps=STEPS, every=every, designs=("add_one",), tricks=("clip_higher",), problems=PROBLEMS
    )
    data = _EMPTY.setdefault((seeds, evaluations), made_up_study(replace(shape, problems=2)))
    planned = data.plan.evaluate.model_copy(update={"every": 1})  # the recipe of a made-up plan has fewer steps
    data = replace(data, plan=replace(data.plan, evaluate=planned))
    return replace(
        data, runs=tuple(_run(r, r.arm != data.plan.base, curve, every, dice, top, speed) for r in data.runs)
    )


_EMPTY: dict[tuple[int, int], StudyData] = {}


def _run(run: RunData, arm: bool, curve: Curve, every: int, dice: random.Random, top: float, speed: float) -> RunData:
    own_top = TOP + dice.gauss(0, SPREAD_TOP) + (top if arm else 0.0)
    own_speed = math.exp(dice.gauss(0, SPREAD_SPEED)) * (speed if arm else 1.0)
    wobble, lines = 0.0, []
    for step in range(0, STEPS + 1, every):
        wobble = MEMORY * wobble + math.sqrt(1 - MEMORY**2) * WOBBLE * dice.gauss(0, 1)
        chance = curve(step / STEPS, own_top, own_speed) + (wobble if step else 0.0)
        chance = min(max(chance, 0.0), 1.0)
        right = dice.gauss(PROBLEMS * chance, math.sqrt(PROBLEMS * chance * (1 - chance)))
        values = {"eval/heldout/avg_at_1": min(max(round(right), 0), PROBLEMS) / PROBLEMS}
        lines.append(MetricLine(step=step, time_ms=step, values=values))
    return replace(run, lines=tuple(lines), evaluations=())


def one(job: tuple[str, int, int, int, int, float, float]) -> tuple[int, int, int, int, int, int]:
    """Return studies, identified curves, those whose interval holds the truth, claims of a ceiling and of a cost."""
    name, seeds, evaluations, first, count, top, speed = job
    curve = {**WITH, **WITHOUT}[name]
    total = [0] * 6
    for k in range(first, first + count):
        found = Ceilings(
            Analysis(
                study(
                    curve, seeds, evaluations, random.Random(f"{name}/{seeds}/{evaluations}/{k}"), top=top, speed=speed
                )
            )
        )
        base = found.arms[0]
        estimate = found.ceiling(base)
        held = estimate is not None and estimate.low is not None and estimate.low <= TOP <= (estimate.high or 0)
        level = found.analysis.levels.curve
        sure = {
            w
            for (_, w), e in found.effects.items()
            if e is not None and e.p_adjusted is not None and e.p_adjusted < level
        }
        starred = any(e is not None and e.confirmed for e in found.effects.values())
        total = [
            a + b
            for a, b in zip(
                total,
                (1, estimate is not None, held, "ceiling" in sure, bool(sure - {"ceiling"}), starred),
                strict=True,
            )
        ]
    return tuple(total)  # type: ignore[return-value]


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=30, help="studies of each cell")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    shapes = [(3, 20), (5, 20), (10, 20)]
    cases = [(name, *shape, 0, chosen.studies, 0.0, 1.0) for name in (*WITH, *WITHOUT) for shape in shapes]
    power = [
        (name, *shape, 0, chosen.studies, top, speed)
        for top, speed in DIFFERENCES
        for name in DIFFER
        for shape in shapes
    ]
    with ProcessPoolExecutor(chosen.processes) as pool:
        found = dict(zip([*cases, *power], pool.map(one, [*cases, *power]), strict=True))
    text = page(chosen.studies, shapes, {c: found[c] for c in cases}, {c: found[c] for c in power})
    PAGE.write_text(text, encoding="utf-8")
    print(text)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}" if whole >= 10 else "—"


def page(studies: int, shapes: list[tuple[int, int]], cases: Mapping, power: Mapping) -> str:  # type: ignore[type-arg]
    """Return the page of the documentation."""
    heads = " | ".join(f"{s} seeds, {e} evaluations" for s, e in shapes)
    rule = "---:|" * len(shapes)
    parts = [
        f"""<!-- Written by `python benchmarks/ceilings.py`: do not edit. -->

# Ceilings: what the fits are worth

`python benchmarks/ceilings.py` draws {studies} studies for each cell, by code that shares nothing with the
fit: curves from {START:g} to {TOP:g} over {STEPS} steps, {PROBLEMS} problems, a ceiling that differs between
seeds by a standard deviation of {SPREAD_TOP:g}, a speed that differs by {SPREAD_SPEED:.0%}, and wobbles of
{WOBBLE:g} that neighbouring evaluations share (autocorrelation {MEMORY:g}). Error of the simulation: up to
±{300 * math.sqrt(0.05 * 0.95 / studies):.0f} points at 5% (three standard errors).

A curve identifies a ceiling if it differs from a constant (F test, p < {RISES:g}), the 95% profile interval
of the ceiling, over the sigmoid and a stretched exponential, is at most {WIDEST:.0%} of the rise, the fitted
curve has covered at least {REACHED:.0%} of its rise at the end, and the residuals of the last half have no
trend (p ≥ {DRIFT:g}).

## Curves with a ceiling

Identified in percent of studies / interval of the ceiling holds the truth, in percent of these:

| family | {heads} |
|---|{rule}
"""
    ]
    for name in WITH:
        cells = [cases[c] for c in cases if c[0] == name]
        parts.append(
            f"| {name} | " + " | ".join(f"{_percent(c[1], c[0])} / {_percent(c[2], c[1])}" for c in cells) + " |\n"
        )
    parts.append(f"""
## Curves without a ceiling in sight

Falsely identified, in percent of studies:

| family | {heads} |
|---|{rule}
""")
    for name in WITHOUT:
        cells = [cases[c] for c in cases if c[0] == name]
        parts.append(f"| {name} | " + " | ".join(_percent(c[1], c[0]) for c in cells) + " |\n")
    null = [sum(cases[c][k] for c in cases if (c[1], c[2]) == s) for k in (3, 4, 5) for s in shapes]
    whole = [sum(cases[c][0] for c in cases if (c[1], c[2]) == s) for s in shapes]
    n = len(shapes)
    rows = ("a sentence claims a ceiling", "a sentence claims a cost", "any `*` in the table")
    parts.append(f"""
## Two arms that do not differ

False, in percent of the studies of all families:

| what | {heads} |
|---|{rule}
""")
    for k, name in enumerate(rows):
        parts.append(
            f"| {name} | "
            + " | ".join(f"{100 * a / b:.1f}" for a, b in zip(null[k * n : (k + 1) * n], whole, strict=True))
            + " |\n"
        )
    parts.append(f"""
## Two arms that differ

A sentence claims it, in percent of studies:

| family | {heads} |
|---|{rule}
""")
    for top, speed in DIFFERENCES:
        for name in DIFFER:
            cells = [power[c] for c in power if c[0] == name and c[5:] == (top, speed)]
            what = f"ceiling higher by {top:g}" if top else "twice as fast"
            parts.append(
                f"| {name}, {what} | " + " | ".join(_percent(c[3] if top else c[4], c[0]) for c in cells) + " |\n"
            )
    parts.append(f"""
Curves that rise soon reach half of the base's gain within two gaps between evaluations. When an arm is there
between two of them is not known, so that twice as fast cannot be shown; evaluate more often. The late ones take
{STEPS * 0.35:.0f} and {STEPS * 0.3 * math.log(2):.0f} steps.
{_worst(cases)}""")
    return "".join(parts)


def _worst(cases: Mapping) -> str:  # type: ignore[type-arg]
    """Return the cells in which the fits are worth the least."""

    def cell(key: tuple) -> str:  # type: ignore[type-arg]
        return f"*{key[0]}* at {key[1]} seeds"

    held = {c: f[2] / f[1] for c, f in cases.items() if c[0] in WITH and f[1] >= 10}
    if not held:
        return ""
    few = [c for c, f in cases.items() if c[0] in WITH and 0 < f[1] < 10]
    inside, identified = sum(cases[c][2] for c in few), sum(cases[c][1] for c in few)
    missed = {c: f[1] / f[0] for c, f in cases.items() if c[0] in WITH}
    stars = {c: f[5] / f[0] for c, f in cases.items()}
    claims = {c: max(f[3], f[4]) / f[0] for c, f in cases.items()}
    false = {c: f[1] / f[0] for c, f in cases.items() if c[0] in WITHOUT}
    low, rare = min(held, key=held.__getitem__), min(missed, key=missed.__getitem__)
    star, claim, wrong = (max(each, key=each.__getitem__) for each in (stars, claims, false))
    lines = [
        f"the interval of a ceiling holds the truth least often for {cell(low)}: in {held[low]:.0%} of {cases[low][1]}",
        f"the cells with fewer than ten identified curves (—) together: {inside} of {identified}",
        f"a ceiling that is there is identified least often for {cell(rare)}: in {missed[rare]:.0%}",
        f"one that is not there most often for {cell(wrong)}: in {false[wrong]:.0%}" if false[wrong] else NONE,
        f"a sentence is false most often for {cell(claim)}: in {claims[claim]:.0%}",
        f"a `*` for {cell(star)}: in {stars[star]:.0%}",
    ]
    body = "".join(f"* {line}{'.' if line is lines[-1] else ';'}\n" for line in lines)
    chance = f"Of {len(cases)} cells, so chance alone makes the worst one look worse than it is"
    return f"\n## The worst cases\n\n{chance}:\n\n{body}"


if __name__ == "__main__":
    main()
