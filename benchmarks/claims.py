"""How often a report claims something of studies in which no arm differs, and finds an arm that does, by its own entry.

    python benchmarks/claims.py [--studies 500]    # about a second for each study: prints two tables

Arms of a study get scores, symptoms and costs from the same distribution, with what the runs of a seed share and what
each run has of its own, and answers drawn one by one. A claim is a sentence with a verb, such as raised or lowered, or
a count of arms that differ if all arms share one spread.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.one_spread import one_spread
from paribus.report.build import build_report
from paribus.report.effect_words import claimed
from paribus.report.inputs import RunData, StudyData
from paribus.report.model import ReportModel
from paribus.run_folder.folder import Evaluation, MetricLine
from support.studies import BASE, Shape, made_up_study

CLAIM = re.compile(
    r"\b(raised|lowered|together they give|differs from 0|reached half)\b|\b[1-9]\d* of \d+ arms differs? from the base"
)
"""Verbs of claims, and counts of arms; the sentence that explains them is left out."""

CURVE = re.compile(r"\b(the ceiling by|reached half)\b")
"""Claims that a curve makes."""

COUNT = re.compile(r"\b(\d+) of \d+ arms differs? from the base if")
"""How many arms differ if all arms share one spread."""

STEPS, LONG = 4, 15
"""Steps of a run, each with an evaluation: with five evaluations no curve is tested, with sixteen each is."""

START, SPEED = 0.4, 0.1
"""Score before training; standard deviation of the logarithm of the speed of a long run."""

SPREADS = {"score": 0.03, "truncated": 0.02, "length": 0.5, "wrong": 1.0, "entropy": 0.03, "zero": 0.03}
METRICS = {
    "truncated": "response/truncated_frac",
    "length": "response/length_mean",
    "wrong": "response/length_mean_incorrect",
    "entropy": "policy/entropy",
    "zero": "group/zero_std_frac",
}


def claims(model: ReportModel) -> list[str]:
    """Return the sentences of a report that claim a difference between arms."""
    texts = (model.answer, *model.summary, *model.words)
    return [t for t in texts if CLAIM.search(t) and not t.startswith("A sentence says")]


def null_study(
    shape: StudyData,
    dice: random.Random,
    *,
    noisy: Callable[[int], float] = lambda _: 1.0,
    shared: float = 1.0,
    moved: float = 0.0,
) -> StudyData:
    """Return a study with the plan of another, in which no arm differs, or only the first one beside the base.

    Args:
        shape: a study with the plan.
        dice: of this study.
        noisy: factor of the spread of an arm by its place; the base is 0.
        shared: factor of what the runs of a seed share.
        moved: what the first arm adds to the score.
    """
    common = {s: {name: shared * dice.gauss(0, 1) for name in SPREADS} for s in shape.plan.seeds}
    places = {arm.key: i for i, arm in enumerate(shape.plan.arms)}
    runs = []
    for run in shape.runs:
        place = places[run.arm]
        start = BASE["score"] + moved * (place == 1)
        runs.append(_null_run(run, common[run.seed], noisy(place), start, dice, shape))
    return replace(shape, runs=tuple(runs))


def _null_run(
    run: RunData, shared: dict[str, float], factor: float, start: float, dice: random.Random, shape: StudyData
) -> RunData:
    means = {**BASE, "score": start}
    end = {name: means[name] + spread * (shared[name] + factor * dice.gauss(0, 1)) for name, spread in SPREADS.items()}
    tokens = BASE["tokens"] * (1 + 0.02 * factor * dice.gauss(0, 1))
    steps = max(e.step for e in run.evaluations)
    chances = _chances(end["score"], steps, factor, dice)
    evaluations = tuple(_evaluation(step, chance, dice, shape) for step, chance in enumerate(chances))
    lines = []
    for step, found in enumerate(evaluations):
        values = {f"eval/heldout/avg_at_{found.samples}": sum(found.correct) / len(found.correct)}
        if step:
            values |= {METRICS[name]: max(0.0, end[name]) for name in METRICS}
            values |= {"budget/gen_tokens": tokens * step, "budget/trained_tokens": tokens * step}
            values |= {"budget/optimizer_steps": 16.0 * step, "perf/time_step_s": 0.3}
        lines.append(MetricLine(step=step, time_ms=step, values=values))
    return replace(run, lines=tuple(lines), evaluations=evaluations, stored=None)


def _chances(end: float, steps: int, factor: float, dice: random.Random) -> list[float]:
    """Return the chance of a right answer at each step: of long runs a curve that rises, of short ones its end."""
    if steps < LONG:
        return [START] + [end] * steps
    middle = steps / 4 * math.exp(SPEED * factor * dice.gauss(0, 1))
    return [START] + [START + (end - START) / (1 + (middle / step) ** 2) for step in range(1, steps + 1)]


def _evaluation(step: int, chance: float, dice: random.Random, shape: StudyData) -> Evaluation:
    count = shape.plan.evaluate.problems
    p = min(0.99, max(0.01, chance))
    zeros = (0,) * count
    return Evaluation(
        step=step,
        set="heldout",
        samples=1,
        problems=tuple(f"p{i}" for i in range(count)),
        correct=tuple(int(dice.random() < p) for _ in range(count)),
        truncated=zeros,
        tokens=zeros,
        tokens_correct=zeros,
        answers=tuple({} for _ in zeros),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of study: its shape, and the arguments of :func:`null_study`."""

    name: str
    shape: Shape
    noisy: Callable[[int], float] = lambda _: 1.0
    shared: float = 1.0
    moved: float = 0.0

    def studies(self, count: int) -> Iterator[StudyData]:
        """Yield so many studies."""
        data = made_up_study(self.shape)
        arguments: dict[str, Any] = {"noisy": self.noisy, "shared": self.shared, "moved": self.moved}
        for i in range(count):
            yield null_study(data, random.Random(f"0/{i}"), **arguments)


def _every_second(place: int) -> float:
    return 4.0 if place % 2 else 1.0


def _one_arm(place: int) -> float:
    return 4.0 if place == 2 else 1.0


def _the_base(place: int) -> float:
    return 1.0 if place else 4.0


THREE, FIVE, TEN = (Shape(seeds=n, steps=STEPS, every=1, problems=100) for n in (3, 5, 10))
CURVES = Shape(seeds=3, steps=LONG, every=1, problems=500)

CASES = (
    Case(name="ladder, alone, all but each; 3 seeds", shape=THREE),
    Case(name="the same, 5 seeds", shape=FIVE),
    Case(name="3 seeds that share nothing", shape=THREE, shared=0.0),
    Case(name="3 seeds, every second arm 4 times as noisy", shape=THREE, noisy=_every_second),
    Case(name="3 seeds, one arm 4 times as noisy", shape=THREE, noisy=_one_arm),
    Case(name="5 seeds, one arm 4 times as noisy", shape=FIVE, noisy=_one_arm),
    Case(name="3 seeds, the base 4 times as noisy", shape=THREE, noisy=_the_base),
    Case(name="3 seeds, not paired", shape=replace(THREE, paired=False)),
    Case(name="3 seeds, 1000 problems", shape=replace(THREE, problems=1000)),
    Case(name="3 seeds, 16 evaluations a run", shape=CURVES),
    Case(name="5 seeds, 16 evaluations a run", shape=replace(CURVES, seeds=5)),
    Case(name="5 seeds, 16 evaluations, one arm 4 times as noisy", shape=replace(CURVES, seeds=5), noisy=_one_arm),
)

ANSWERS = 1000
SD = math.hypot(SPREADS["score"], math.sqrt(BASE["score"] * (1 - BASE["score"]) / ANSWERS / 3))
"""Spread of a score over runs: of training, and of the three last evaluations with 1000 problems each."""

FOUND = tuple(
    Case(name=f"{n} seeds that share {what}", shape=replace(shape, problems=ANSWERS), shared=shared, moved=4 * SD)
    for n, shape in ((3, THREE), (5, FIVE), (10, TEN))
    for what, shared in (("nothing", 0.0), ("half of their variance", 1.0))
)
"""Studies in which one arm of ten differs from the base by 4 standard deviations of a run."""


def share(case: Case, count: int) -> tuple[float, float, float]:
    """Return the share of reports with a claim, with one of a curve, and with an arm counted under one spread."""
    models = [build_report(data) for data in case.studies(count)]
    found = [claims(m) for m in models]
    curves = [any(CURVE.search(text) for text in texts) for texts in found]
    counted = [m for m in models if (n := COUNT.search(m.answer)) and int(n[1])]
    return sum(map(bool, found)) / count, sum(curves) / count, len(counted) / count


def found(case: Case, count: int) -> tuple[float, ...]:
    """Return how often the arm that differs is claimed: by pairs, by the rule for pairs, under one spread."""
    hits = [0, 0, 0]
    for data in case.studies(count):
        arm = data.plan.arms[1].key
        rule = Analysis(replace(data, plan=replace(data.plan, pairing="where_it_helps")))
        always = Analysis(data)
        for i, analysis in enumerate((always, rule)):
            effect = analysis.to_base[arm]
            hits[i] += effect is not None and claimed(effect, analysis.levels.score)
        whole = one_spread(always)
        hits[2] += whole is not None and arm in whole.different
    return tuple(hit / count for hit in hits)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the share of reports with a claim, and how often an arm that differs is found, by kind of study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--case", default="", help="only studies in which no arm differs whose name has this text")
    chosen = parser.parse_args(arguments)
    count = chosen.studies
    print("| studies in which no arm differs | reports with a claim | of a curve | of a count under one spread |")
    print("|---|---:|---:|---:|")
    for case in (c for c in CASES if chosen.case in c.name):
        print(f"| {case.name} | {' | '.join(_percent(x, count) for x in share(case, count))} |", flush=True)
    if chosen.case:
        return 0
    print("\n| one arm of ten differs by 4 sd | Holm, pairs | Holm, pairs where they help | one spread |")
    print("|---|---:|---:|---:|")
    for case in FOUND:
        print(f"| {case.name} | {' | '.join(_percent(x, count) for x in found(case, count))} |", flush=True)
    return 0


def _percent(part: float, count: int) -> str:
    error = math.sqrt(max(part * (1 - part), 0.01) / count)
    return f"{100 * part:.1f}% ± {196 * error:.1f}"


if __name__ == "__main__":
    sys.exit(main())
