"""Coverage of every interval that a report prints, and false positives of its verdicts, on simulated studies.

    python benchmarks/coverage.py            # three minutes on one core: writes docs/reference/statistics.md
    python benchmarks/coverage.py --quick    # 15 seconds: wider bounds, writes nothing

Studies are drawn answer by answer: problems of different difficulty, seeds that move all problems, effects that differ
from problem to problem, binomial answers. The intervals are those of `paribus.stats`, over many studies at once; a few
studies of each kind go through the functions of the report one by one, and must give the same numbers.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from adaptive_coverage import LOOKS, after_looks, half, outside_looks, p_value, page_of_looks
from scipy import special

from paribus.stats.dunnett import dunnett_p, dunnett_quantile, paired_ratio_p, pooled, ratio_p
from paribus.stats.factorial import both_ends_weights
from paribus.stats.intervals import (
    difference_interval,
    iqm_interval,
    mean_interval,
    permutation_p,
    sign_flip_p,
    welch_interval,
)
from paribus.stats.multiple_testing import at_look, holm, level_at
from paribus.stats.problems import Array, Part, Parts, over_problems, parts

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "statistics.md"
SEEDS = (2, 3, 5, 10, 20)
ARMS, PROBLEMS, SAMPLES = 4, 60, 4
LARGE, SMALL = 0.04, 0.01
MIN_SEEDS = 3
SINGLE = "a single run (evaluation noise only)"
ALPHA = 0.05
LOW, HIGH = 93.0, 97.0
WIDENED = "held to the evaluation's noise"
"""Intervals with this in their name may cover more than 97%: they are at least as wide as the evaluation demands."""


@dataclass(frozen=True)
class Mix:
    """Standard deviation of the score over seeds, of an effect over problems, and the spread of the last arm."""

    name: str
    seed: float
    problem: float
    last: float = 1.0


MIXES = (
    Mix("seed noise large, problem noise large", LARGE, 0.15),
    Mix("seed noise large, problem noise small", LARGE, 0.03),
    Mix("seed noise small, problem noise large", SMALL, 0.15),
    Mix("seed noise small, problem noise small", SMALL, 0.03),
    Mix("seed noise large, the last arm with twice the spread", LARGE, 0.03, last=2.0),
)


@dataclass(frozen=True)
class Studies:
    """Simulated studies: ``scores (study, arm, seed, problem)`` minus the truth on these problems, and the truth."""

    scores: Array
    truth: Array  # (study, arm): mean over these problems, where that over all problems is 0.5
    known: dict[str, tuple[Array, Parts]] = field(default_factory=dict)  # contrasts, each computed once


def studies(rng: np.random.Generator, mix: Mix, seeds: int, count: int, *, paired: bool) -> Studies:
    """Draw studies in which no arm differs from another over all problems; paired: a seed moves all arms alike, too."""
    difficulty = rng.uniform(0.4, 0.6, (count, 1, 1, PROBLEMS))
    effect = rng.uniform(-1, 1, (count, ARMS, 1, PROBLEMS)) * mix.problem * math.sqrt(3)
    spread = np.array([*[1.0] * (ARMS - 1), mix.last])[:, None, None] * mix.seed
    block = rng.normal(0, mix.seed * paired, (count, 1, seeds, 1))
    seed = block + spread * rng.normal(0, 1, (count, ARMS, seeds, 1))
    chance = difficulty + effect
    answers = rng.binomial(SAMPLES, np.clip(chance + seed, 0, 1)) / SAMPLES
    return Studies(answers, chance.mean(-1)[..., 0])


def t_half(part: Part, level: float = 0.95) -> Array:
    """Half-width of a t interval."""
    return np.asarray(special.stdtrit(part.df, (1 + level) / 2) * np.sqrt(part.variance))


def floored(found: Parts, level: float = 0.95) -> Array:
    """Half-width that holds for seeds and for the evaluation."""
    return half(found, level)


def contrast(data: Studies, weights: Mapping[int, float], *, paired: bool) -> tuple[Array, Parts]:
    """Error of a weighted sum of arms on these problems, and the parts of its variance."""
    key = f"{sorted(weights.items())} {paired}"
    if key in data.known:
        return data.known[key]
    tables = [(w, data.scores[:, arm]) for arm, w in weights.items()]
    value = sum(w * (data.scores[:, arm].mean((-2, -1)) - data.truth[:, arm]) for arm, w in weights.items())
    if paired:
        tables = [(1.0, np.asarray(sum(w * t for w, t in tables)))]
    return data.known.setdefault(key, (np.asarray(value), parts(tables)))


def coverage(shared: Studies, own: Studies) -> dict[str, float]:
    """Share of studies whose interval holds the truth, in percent, by kind of interval."""
    seeds = own.scores.shape[2]
    hit: dict[str, Array] = {}
    value, found = contrast(own, {0: 1.0}, paired=False)
    hit["mean of a symptom, pass@k, bands (t)"] = np.abs(value) <= t_half(found.seeds)
    hit[f"mean of a score (t, {WIDENED})"] = np.abs(value) <= floored(found)
    for paired, name, data in ((True, "paired t", shared), (False, "Welch", own)):
        value, found = contrast(data, {1: 1.0, 0: -1.0}, paired=paired)
        hit[f"difference in a symptom ({name})"] = np.abs(value) <= t_half(found.seeds)
        hit[f"difference in the score ({name}, {WIDENED})"] = np.abs(value) <= floored(found)
        population = value + data.truth[:, 1] - data.truth[:, 0]
        wider = np.maximum(t_half(over_problems(found)), floored(found))
        hit[f"difference on other problems ({name})"] = np.abs(population) <= wider
        weights = both_ends_weights(["a", "b"])["a"]  # four cells, as in Shapley values and the check of the sums
        order: list[frozenset[str]] = [frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")]
        value, found = contrast(data, {order.index(c): w for c, w in weights.items()}, paired=paired)
        hit[f"attribution, check of the sums ({name}, {WIDENED})"] = np.abs(value) <= floored(found)
        hit[f"all arms at once, where printed (Dunnett, {name}, {WIDENED})"] = at_once(data, paired=paired)
    if seeds >= 10:
        each = own.scores[:, 0].mean(-1) - own.truth[:, :1]
        hit["interquartile mean (Tukey and McLaughlin)"] = iqm_hits(each)
    return {name: 100 * float(np.mean(h)) for name, h in hit.items()}


def spreads(data: Studies, *, paired: bool) -> tuple[Array, int, Array]:
    """Pooled sd, degrees of freedom and the check, as :func:`paribus.stats.dunnett.pooled`."""
    table = data.scores.mean(-1)
    left = table - table.mean(2, keepdims=True)
    left = left - left.mean(1, keepdims=True) if paired else left
    by_arm = (left**2).sum(2)
    seeds = table.shape[2]
    df = (ARMS - 1) * (seeds - 1) if paired else ARMS * (seeds - 1)
    grid, chance = ratio_table(seeds - 1, paired=paired)
    ratio = 0.5 * np.log(by_arm.max(1) / np.maximum(by_arm.min(1), 1e-30))
    return np.sqrt((left**2).sum((1, 2)) / df), df, np.interp(ratio, grid, chance)


@cache
def ratio_table(df: int, *, paired: bool) -> tuple[Array, Array]:
    """Log of ratios of spreads, and the chance of each."""
    grid = np.concatenate([np.linspace(0, 3, 120), np.linspace(3.1, 12, 30)])
    by_chance = paired_ratio_p if paired else ratio_p
    return grid, np.array([by_chance(math.exp(g), arms=ARMS, df=df) for g in grid])


def at_once(data: Studies, *, paired: bool) -> Array:
    """Whether all Dunnett intervals hold, over the studies that print them."""
    sd, df, equal = spreads(data, paired=paired)
    seeds, good = data.scores.shape[2], np.ones(len(sd), bool)
    for arm in range(1, ARMS):
        value, found = contrast(data, {arm: 1.0, 0: -1.0}, paired=paired)
        half = dunnett_quantile(comparisons=ARMS - 1, df=df) * sd * math.sqrt(2 / seeds)
        free = round(float(np.median(found.rest.df)))
        floor = dunnett_quantile(comparisons=ARMS - 1, df=free) * np.sqrt(found.rest.variance)
        good &= np.abs(value) <= np.maximum(half, floor)
    return good[equal >= 0.25]


def iqm_hits(each: Array) -> Array:
    """Whether the interval of the interquartile mean holds 0, as :func:`paribus.stats.intervals.iqm_interval`."""
    n = each.shape[1]
    cut = n // 4
    ordered = np.sort(each, 1)
    kept, h = ordered[:, cut : n - cut], n - 2 * cut
    moved = np.clip(ordered, kept[:, :1], kept[:, -1:])
    squares = ((moved - moved.mean(1, keepdims=True)) ** 2).sum(1)
    return np.abs(kept.mean(1)) <= special.stdtrit(h - 1, 0.975) * np.sqrt(squares / (h * (h - 1)))


def verdicts(shared: Studies, own: Studies) -> dict[str, float]:
    """Share of studies, in percent, with a false verdict in a family of arms that do not differ."""
    wrong: dict[str, Array] = {}
    for paired, name, data in ((True, "paired t", shared), (False, "Welch", own)):
        pairs = {
            pair: contrast(data, {pair[1]: 1.0, pair[0]: -1.0}, paired=paired)
            for pair in itertools.combinations(range(ARMS), 2)
        }
        p = {pair: p_value(*found) for pair, found in pairs.items()}
        to_base = np.array([p[0, arm] for arm in range(1, ARMS)])
        wrong[f"`separated`, one comparison, uncorrected ({name})"] = to_base[0] < ALPHA
        wrong[f"p after Holm, `*`, any arm ({name})"] = holm_any(to_base)
        wrong[f"not bold, any arm ({name})"] = not_bold(data, p)
        wrong[f"`equivalent`, any arm, true difference at the margin ({name})"] = holm_any(
            np.array([at_margin(pairs[0, arm]) for arm in range(1, ARMS)])
        )
        wrong[f"p of all arms at once, where printed (Dunnett, {name})"] = ~at_once(data, paired=paired)
    seeds = shared.scores.shape[2]
    if 5 <= seeds <= 10:
        steps = (shared.scores[:, 1] - shared.scores[:, 0]).mean(-1)
        steps += shared.truth[:, :1] - shared.truth[:, 1:2]
        wrong["exact sign-flip p, one comparison"] = sign_flips(steps) < ALPHA
    if seeds == 5:  # with 10 the splits of 10,000 studies take minutes
        each = own.scores[:, :2].mean(-1) - own.truth[:, :2, None]
        wrong["exact permutation p, one comparison"] = permutations(each[:, 0], each[:, 1]) < ALPHA
    return {name: 100 * float(np.mean(w)) for name, w in wrong.items()}


def sign_flips(differences: Array) -> Array:
    """P of the exact test, as :func:`paribus.stats.intervals.sign_flip_p`."""
    signs = np.array([*itertools.product((1, -1), repeat=differences.shape[1])])
    sums = np.abs(differences @ signs.T)
    return np.asarray((sums >= sums[:, :1] - 1e-12).mean(1))


def permutations(first: Array, second: Array) -> Array:
    """P of the exact test, as :func:`paribus.stats.intervals.permutation_p`, for two arms with as many seeds."""
    n = first.shape[1]
    every = np.concatenate([first, second], 1)
    every = every - every.mean(1, keepdims=True)
    splits = np.array([*itertools.combinations(range(2 * n), n)])
    splits = splits[: len(splits) // 2]  # the others are their opposites
    part = np.zeros((len(splits), 2 * n))
    np.put_along_axis(part, splits, 1, 1)
    sums = np.abs(every @ part.T)
    return np.asarray((sums >= sums[:, :1] - 1e-12).mean(1))


def holm_any(p: Array) -> Array:
    """Whether any of several p values, first axis, is below 5% after Holm: whether the smallest is."""
    return p.min(0) * len(p) < ALPHA


def not_bold(data: Studies, p: Mapping[tuple[int, int], Array]) -> Array:
    """Whether a test, Holm over all pairs, separates an arm from the best.

    A report has fewer rows without bold: an arm that is separated from the best is bold above one that is not.
    """
    top = (data.scores.mean((2, 3)) - data.truth).argmax(1)
    keys = list(p)
    table = np.array([p[k] for k in keys])
    order = table.argsort(0)
    adjusted = np.empty_like(table)
    factors = np.arange(len(keys), 0, -1)[:, None]
    np.put_along_axis(adjusted, order, np.maximum.accumulate(np.take_along_axis(table, order, 0) * factors, 0), 0)
    with_top = np.array([(top == a) | (top == b) for a, b in keys])
    return ((adjusted < ALPHA) & with_top).any(0)


def at_margin(found: tuple[Array, Parts], margin: float = 0.1) -> Array:
    """P of two one-sided tests where the true difference is the margin."""
    value, where = found
    sides = [
        special.stdtr(p.df, (np.abs(value + margin) - margin) / np.sqrt(p.variance)) for p in (where.seeds, where.rest)
    ]
    return np.maximum(*sides)


def same_as_report(data: Studies, paired: bool) -> None:
    """Check a few studies against the functions that the report calls."""
    for i in range(3):
        one = Studies(data.scores[i : i + 1], data.truth[i : i + 1] * 0)
        arms = [[*row] for row in one.scores[0].mean(-1)]
        value, found = contrast(one, {1: 1.0, 0: -1.0}, paired=paired)
        noise = (math.sqrt(found.rest.variance[0]), float(np.ravel(found.rest.df)[0]))
        if paired:
            got = difference_interval([a - b for a, b in zip(arms[1], arms[0], strict=True)], noise=noise)
        else:
            got = welch_interval([(1.0, arms[1]), (-1.0, arms[0])], noise=noise)
        assert got.p is not None and got.half_width is not None  # noqa: PT018 - there is noise
        assert math.isclose(got.half_width, float(floored(found)[0]), rel_tol=1e-6)
        assert math.isclose(got.p, float(p_value(value, found)[0]), rel_tol=1e-6)
        look = at_look(got, 0.2)
        assert look.half_width is not None and look.p is not None  # noqa: PT018 - as above
        assert math.isclose(look.half_width, float(floored(found, level_at(0.2))[0]), rel_tol=1e-6)
        assert math.isclose(look.p, min(1.0, float(p_value(value, found)[0]) / 0.2), rel_tol=1e-6)
        margin = got.equivalence_p(0.1)
        assert margin is not None and math.isclose(margin, float(at_margin((value - 0.1, found))[0]), rel_tol=1e-6)  # noqa: PT018
        every = [p_value(*contrast(one, {a: 1.0, 0: -1.0}, paired=paired))[0] for a in range(1, ARMS)]
        assert (min(x for x in holm(every) if x is not None) < ALPHA) == holm_any(np.array(every))
        sd, df, chance = spreads(one, paired=paired)
        spread = pooled(arms, paired=paired)
        if spread is not None:  # two seeds of an arm can agree exactly
            assert spread.df == df and math.isclose(spread.sd, sd[0], rel_tol=1e-6)  # noqa: PT018
            assert math.isclose(spread.ratio_p, chance[0], abs_tol=1e-2)
        t = dunnett_quantile(comparisons=3, df=df)
        assert math.isclose(dunnett_p(t, comparisons=3, df=df), ALPHA, abs_tol=1e-6)
        if 5 <= len(arms[0]) <= 10:
            steps = np.array(arms[1]) - np.array(arms[0])
            assert math.isclose(sign_flip_p([*steps]), sign_flips(steps[None])[0])
        if len(arms[0]) == 5:
            assert math.isclose(permutation_p(*arms[:2]), permutations(*np.array(arms)[:2, None])[0])
        value, found = contrast(one, {0: 1.0}, paired=False)
        half = mean_interval(arms[0]).half_width
        same = float(t_half(found.seeds)[0])  # seeds that agree exactly leave a rounding error here
        assert half is not None and math.isclose(half, same, rel_tol=1e-6, abs_tol=1e-12)  # noqa: PT018
        if len(arms[0]) >= 10:
            middle = iqm_interval([v - arms[1][0] for v in arms[0]])
            assert middle.low is not None and middle.high is not None  # noqa: PT018 - four values or more
            assert iqm_hits(np.array([arms[0]]) - arms[1][0])[0] == (middle.low <= 0 <= middle.high)


def looking(count: int) -> dict[tuple[str, str], tuple[float, float]]:
    """False verdicts and coverage in percent of studies that add seeds, by mix and rule."""
    rng, found = np.random.default_rng(20261122), {}
    for mix in MIXES:
        got: list[tuple[int, dict[str, tuple[float, float]]]] = []
        for size in chunks(count):
            one = {}
            for paired in (True, False):
                data = studies(rng, mix, LOOKS[-1], size, paired=paired)
                parts_of = {n: Studies(data.scores[:, :, :n], data.truth) for n in LOOKS}

                def seen(arm: int, n: int, paired: bool = paired, by_n: dict[int, Studies] = parts_of) -> Any:
                    return contrast(by_n[n], {arm: 1.0, 0: -1.0}, paired=paired)

                for name, wrong, covered in after_looks(seen, ARMS, paired=paired):
                    one[name] = float(wrong.mean()), float(covered.mean())
            got.append((size, one))
        for name in got[0][1]:
            sums = [sum(size * part[name][k] for size, part in got) for k in (0, 1)]
            found[mix.name, name] = 100 * sums[0] / count, 100 * sums[1] / count
    return found


def single_run(rng: np.random.Generator, count: int) -> float:
    """Coverage of the interval of a single run, "evaluation noise only", for its score over all such problems."""
    table = studies(rng, Mix("one run", 0.0, 0.15), 1, count, paired=False).scores[:, 0, 0]
    half = 1.96 * table.std(-1, ddof=1) / math.sqrt(PROBLEMS)
    return 100 * float(np.mean(np.abs(table.mean(-1) - 0.5) <= half))


def main() -> int:
    """Simulate, print, check; write the page unless quick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="15 seconds, wider bounds, writes nothing")
    quick = parser.parse_args().quick
    count, began = (1000 if quick else 10_000), time.monotonic()
    rng = np.random.default_rng(20261121)
    np.seterr(divide="ignore", invalid="ignore")  # two seeds can agree exactly
    covers: dict[tuple[str, str, int], float] = {}
    false: dict[tuple[str, str, int], float] = {}
    for mix, seeds in itertools.product(MIXES, SEEDS):
        got, bad = [], []
        for size in chunks(count):
            shared, own = (studies(rng, mix, seeds, size, paired=paired) for paired in (True, False))
            got.append((size, coverage(shared, own)))
            bad.append((size, verdicts(shared, own)))
        same_as_report(shared, paired=True)
        same_as_report(own, paired=False)
        covers |= {(mix.name, name, seeds): v for name, v in averaged(got).items()}
        false |= {(mix.name, name, seeds): v for name, v in averaged(bad).items()}
    error = 3 * 100 * math.sqrt(0.05 * 0.95 / count)
    covers["one run", SINGLE, 1] = single_run(rng, count)
    looks = looking(count)
    troubles = [*outside(covers, false, error), *outside_looks(looks, 100 * ALPHA + error, LOW - error)]
    text = page(covers, false, looks, count, error, troubles)
    print(text)
    print(f"{time.monotonic() - began:.0f} s, {time.process_time():.0f} s of one core")
    if not quick:
        PAGE.write_text(text)
    return 1 if any("twice the spread" not in t for t in troubles) else 0


def chunks(count: int, size: int = 200) -> Iterable[int]:
    """Sizes that add up to the number of studies; more at a time would not fit into a cache."""
    return [min(size, count - i) for i in range(0, count, size)]


def averaged(found: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Average over chunks."""
    total = sum(size for size, _ in found)
    return {name: sum(size * part[name] for size, part in found) / total for name in found[0][1]}


def outside(
    covers: Mapping[tuple[str, str, int], float], false: Mapping[tuple[str, str, int], float], error: float
) -> Iterable[str]:
    """Yield what lies outside the bounds beyond the error of the simulation, where the report prints it."""
    for (mix, name, seeds), value in covers.items():
        high = 100.0 if WIDENED in name or "other problems" in name else HIGH
        if (seeds >= MIN_SEEDS or seeds == 1) and not LOW - error <= value <= high + error:
            yield f"{name}, {seeds} seeds, {mix}: covers {value:.1f}%"
    for (mix, name, seeds), value in false.items():
        if seeds >= MIN_SEEDS and value > 100 * ALPHA + error:
            yield f"{name}, {seeds} seeds, {mix}: false in {value:.1f}%"


def page(
    covers: Mapping[tuple[str, str, int], float],
    false: Mapping[tuple[str, str, int], float],
    looks: Mapping[tuple[str, str], tuple[float, float]],
    count: int,
    error: float,
    troubles: list[str],
) -> str:
    """The page with all tables."""
    lines = [
        "<!-- Written by `python benchmarks/coverage.py`: do not edit. -->\n",
        "# Statistics: what the intervals cover\n",
        f"`python benchmarks/coverage.py` draws {count} studies for each column: {ARMS} arms that do not differ,",
        f"{PROBLEMS} problems with {SAMPLES} responses each, binomial answers. Seed noise: sd {LARGE} (large)",
        f"or {SMALL} (small) of the score of a run, as much again shared by the arms of a seed where they are paired.",
        "Problem noise: sd 0.15 or 0.03 of an effect from problem to problem.",
        f"Error of the simulation: up to ±{error:.1f} points (three standard errors).\n",
        f"Wanted: {LOW:.0f} to {HIGH:.0f}%. Intervals that are *{WIDENED}* may cover more, never less:",
        "where seeds add little to the noise of the evaluation, the larger of two limits is wider than needed. With 2",
        "seeds the report prints no interval; the column shows what it would be worth. The interval of a single run,",
        f"*evaluation noise only*, covers its score over all such problems in {covers['one run', SINGLE, 1]:.1f}%.\n",
    ]
    for title, found in (("Coverage in percent", covers), ("False verdicts in percent of studies", false)):
        lines.append(f"## {title}\n")
        for mix in MIXES:
            names = dict.fromkeys(name for m, name, _ in found if m == mix.name)
            lines += [
                f"{mix.name[0].upper()}{mix.name[1:]}:\n",
                "| | " + " | ".join(f"{s} seeds" for s in SEEDS) + " |",
            ]
            lines.append("|---|" + "---:|" * len(SEEDS))
            for name in names:
                cells = [found.get((mix.name, name, s)) for s in SEEDS]
                lines.append(f"| {name} | " + " | ".join("—" if c is None else f"{c:.1f}" for c in cells) + " |")
            lines.append("")
    lines += page_of_looks(looks, [mix.name for mix in MIXES])
    lines += [
        "## Outside the bounds\n",
        "The last of the mixes breaks on purpose what Dunnett's test assumes, "
        "by less than its check can see for certain.",
        "Shares are of the studies that print the column; "
        "where the check sees the difference the column is left out.\n",
        *([f"* {t}" for t in troubles] or ["Nothing."]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
