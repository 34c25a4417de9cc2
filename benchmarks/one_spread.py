"""Alternatives to Dunnett's test where the spreads of arms differ: how often each errs, and what it finds.

    python benchmarks/one_spread.py [--studies 400]    # prints a table of errors and one of power

Studies have eleven arms whose seeds are not paired. Each goes through the report's own analysis, which gives scores,
Welch's tests with Holm's correction, and Dunnett's test with its check of the spreads; the alternatives get the same
scores and answers. All are taken at 5% for the family of ten comparisons with the base; the report counts arms at 1%.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.one_spread import one_spread
from paribus.report.inputs import StudyData
from paribus.run_folder.folder import Evaluation, MetricLine
from paribus.stats.dunnett import dunnett_p
from paribus.stats.multiple_testing import ALPHA, holm
from support.studies import Shape, made_up_study

Array = NDArray[np.float64]

PROBLEMS, MEAN, SPREAD = 100, 0.6, 0.05
"""Held-out problems; score of an arm; standard deviation of its runs beside the noise of their evaluations."""

NOISE = MEAN * (1 - MEAN) / PROBLEMS / 3
"""Variance of a score from the answers alone: the mean of three evaluations."""

PERMUTATIONS = 999
PRIOR_DF = np.array([0.5, 1, 2, 4, 8, 16, 64])
"""Degrees of freedom of the prior of the hierarchical model: from arms that share nothing to one spread for all."""


def study(shape: StudyData, factors: Sequence[float], moved: float, dice: np.random.Generator) -> StudyData:
    """Return a study with scores drawn again.

    Args:
        shape: a study with the plan.
        factors: of the spread of each arm, the base first.
        moved: what the first arm beside the base adds to the score.
        dice: of this study.
    """
    places = {arm.key: k for k, arm in enumerate(shape.plan.arms)}
    runs = []
    for run in shape.runs:
        k = places[run.arm]
        chance = float(np.clip(MEAN + moved * (k == 1) + factors[k] * SPREAD * dice.standard_normal(), 0.01, 0.99))
        evaluations = tuple(_evaluation(step, chance if step else 0.4, dice) for step in range(4))
        lines = tuple(
            MetricLine(step=e.step, time_ms=e.step, values={"eval/heldout/avg_at_1": sum(e.correct) / PROBLEMS})
            for e in evaluations
        )
        runs.append(replace(run, lines=lines, evaluations=evaluations, stored=None))
    return replace(shape, runs=tuple(runs))


def _evaluation(step: int, chance: float, dice: np.random.Generator) -> Evaluation:
    zeros = (0,) * PROBLEMS
    return Evaluation(
        step=step, set="heldout", samples=1, problems=tuple(f"p{i}" for i in range(PROBLEMS)),
        correct=tuple((dice.random(PROBLEMS) < chance).astype(int).tolist()), truncated=zeros, tokens=zeros,
        tokens_correct=zeros, answers=({},) * PROBLEMS,
    )  # fmt: skip


# ---- the tests: scores [arms, seeds], base first, to a corrected p of each other arm ------------------


def by_holm(scores: Array, analysis: Analysis) -> Array:
    """The report's tests: Welch, never narrower than evaluation noise, corrected by Holm."""
    found = analysis.to_base.values()
    return np.array([1.0 if e is None or e.p_adjusted is None else e.p_adjusted for e in found])


def by_dunnett(scores: Array, analysis: Analysis) -> Array:
    """The report's count: Dunnett with one spread; nothing where its check turns the spreads down."""
    whole = one_spread(analysis)
    if whole is None or not whole.by_arm:
        return np.ones(len(scores) - 1)
    return np.array([1.0 if e.p is None else e.p for e in whole.by_arm.values()])


def by_dunnett_unchecked(scores: Array, analysis: Analysis) -> Array:
    """Dunnett with one spread, whatever the spreads."""
    n = scores.shape[1]
    df = len(scores) * (n - 1)
    error = math.sqrt(2 / n * scores.var(1, ddof=1).mean())
    return np.array(
        [dunnett_p(d / error, comparisons=len(scores) - 1, df=df) for d in scores[1:].mean(1) - scores[0].mean()]
    )


def by_binomial_noise(scores: Array, analysis: Analysis) -> Array:
    """Welch and Holm with a variance of answers that is pooled over all arms, and each arm's own excess over it.

    The pooled part is known well: an arm whose runs vary by no more than their answers has many degrees of freedom.
    """
    n = scores.shape[1]
    rates = scores.mean(1)
    pooled = float((rates * (1 - rates)).mean()) / PROBLEMS / 3
    own = scores.var(1, ddof=1)
    used = np.maximum(own, pooled)
    doubt = np.where(own > pooled, own**2 / (n - 1), pooled**2 / (len(scores) * n * PROBLEMS))
    t = (scores[1:].mean(1) - scores[0].mean()) / np.sqrt((used[1:] + used[0]) / n)
    df = (used[1:] + used[0]) ** 2 / (doubt[1:] + doubt[0])
    return _holm(2 * stats.t.sf(np.abs(t), df))


def by_permutation(scores: Array, analysis: Analysis) -> Array:
    """Westfall and Young's single step: the largest difference from the base when runs are dealt to arms again."""
    n, arms = scores.shape[1], len(scores)
    dice = np.random.default_rng(1993)
    flat = scores.ravel()
    dealt = flat[np.argsort(dice.random((PERMUTATIONS, flat.size)), axis=1)].reshape(PERMUTATIONS, arms, n)

    def values(x: Array) -> Array:
        spread = np.sqrt(x.var(2, ddof=1).mean(1))
        return np.asarray(np.abs(x[:, 1:].mean(2) - x[:, :1].mean(2)) / spread[:, None])

    largest = values(dealt).max(1)
    return np.array([(1 + (largest >= own - 1e-12).sum()) / (PERMUTATIONS + 1) for own in values(scores[None])[0]])


def by_hierarchy(scores: Array, analysis: Analysis) -> Array:
    """Welch and Holm with spreads that come from one distribution, whose parameters are integrated over.

    The variance of an arm is scaled inverse chi-square with ``d0`` degrees of freedom and scale ``s0``; the sample
    variances then are ``s0 F(n - 1, d0)`` (Smyth 2004, equation 4). Weights are the likelihood over a grid of both.
    """
    n = scores.shape[1]
    own, df = scores.var(1, ddof=1), scores.shape[1] - 1
    own = np.maximum(own, own.mean() / 1000)  # equal scores are chance, and have no logarithm
    scales = np.exp(np.linspace(math.log(own.mean() / 30), math.log(own.mean() * 3), 25))
    d0, s0 = (x.ravel() for x in np.meshgrid(PRIOR_DF, scales))
    ratio = own[None] / s0[:, None]
    log_f = (
        0.5 * df * np.log(df / d0)[:, None] + (df / 2 - 1) * np.log(ratio)
        - 0.5 * (df + d0)[:, None] * np.log1p(df * ratio / d0[:, None]) - special.betaln(df / 2, d0 / 2)[:, None]
    )  # fmt: skip
    total = (log_f - np.log(s0)[:, None]).sum(1)
    weights = np.exp(total - total.max())
    weights /= weights.sum()
    moderated = (d0[:, None] * s0[:, None] + df * own[None]) / (d0[:, None] + df)
    free = d0 + df
    sums = moderated[:, 1:] + moderated[:, :1]
    t = (scores[1:].mean(1) - scores[0].mean())[None] / np.sqrt(sums / n)
    welch = sums**2 / ((moderated[:, 1:] ** 2 + moderated[:, :1] ** 2) / free[:, None])
    return _holm(weights @ (2 * stats.t.sf(np.abs(t), welch)))


def _holm(p: Array) -> Array:
    return np.array([1.0 if x is None else x for x in holm(np.minimum(p, 1.0).tolist())])


Test = Callable[[Array, Analysis], Array]

TESTS: dict[str, Test] = {
    "Welch, Holm": by_holm,
    "Dunnett, checked": by_dunnett,
    "Dunnett, always": by_dunnett_unchecked,
    "pooled binomial noise": by_binomial_noise,
    "permutation over arms": by_permutation,
    "hierarchical spreads": by_hierarchy,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Studies of one kind: seeds an arm, factors of the spreads of arms, base first, and what the first arm adds."""

    name: str
    seeds: int
    factors: tuple[float, ...] = (1.0,) * 11
    moved: float = 0.0


EQUAL = (1.0,) * 11
ONE, HALF, BASE = (1.0, 1.0, 4.0, *EQUAL[3:]), tuple(4.0 if k % 2 else 1.0 for k in range(11)), (4.0, *EQUAL[1:])
FOUR = 4 * math.sqrt(SPREAD**2 + NOISE)

NULL = tuple(
    Case(name=f"{n} seeds, {what}", seeds=n, factors=factors)
    for n in (3, 5, 10)
    for what, factors in (
        ("equal spreads", EQUAL), ("one arm 4 times", ONE), ("every second arm 4 times", HALF),
        ("the base 4 times", BASE),
    )
)  # fmt: skip
FOUND = tuple(
    Case(name=f"{n} seeds, {what}", seeds=n, factors=factors, moved=FOUR)
    for n in (3, 5, 10)
    for what, factors in (("equal spreads", EQUAL), ("another arm 4 times", ONE))
)


def hits(case: Case, count: int, *, first: bool) -> list[float]:
    """Return for each test the share of studies in which it finds an arm: the first one, or any."""
    shape = made_up_study(Shape(seeds=case.seeds, steps=4, every=1, problems=PROBLEMS, paired=False))
    assert len(shape.plan.arms) == len(case.factors)
    keys = [arm.key for arm in shape.plan.arms]
    found = [0] * len(TESTS)
    for i in range(count):
        analysis = Analysis(study(shape, case.factors, case.moved, np.random.default_rng([i, case.seeds])))
        scores = np.array([[*analysis.values(key, analysis.score).values()] for key in keys])
        for k, test in enumerate(TESTS.values()):
            p = test(scores, analysis)
            found[k] += bool((p[0] if first else p.min()) < ALPHA)
    return [hit / count for hit in found]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the share of studies without any difference in which each test finds one, and what each test finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    count = parser.parse_args(arguments).studies
    for head, cases, first in (
        ("studies in which no arm differs", NULL, False),
        ("one arm of ten differs by 4 sd", FOUND, True),
    ):
        print(f"\n| {head} | {' | '.join(TESTS)} |\n|---|{'---:|' * len(TESTS)}")
        for case in cases:
            shares = " | ".join(f"{100 * x:.1f}%" for x in hits(case, count, first=first))
            print(f"| {case.name} | {shares} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
