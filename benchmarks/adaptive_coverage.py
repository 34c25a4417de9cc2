"""Studies that add seeds by looks, simulated: how often a verdict is false, and what the last look's intervals cover.

A part of `benchmarks/coverage.py`, which draws the studies and writes the page.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from scipy import special

from paribus.stats.multiple_testing import SPENDING_WORDS, level_at, shares
from paribus.stats.problems import Array, Parts

LOOKS = (3, 5, 8)
UNADJUSTED = "looks without any adjustment"
RULES = ("until decided, one arm", "until every arm is decided", "until the intervals are narrow")

Looks = Mapping[tuple[str, str], tuple[float, float]]
"""Mix and rule to false verdicts and coverage in percent."""

Contrast = Callable[[int, int], tuple[Array, Parts]]
"""Arm and number of seeds to the error of its difference to the base, and the parts of its variance."""


def after_looks(contrast: Contrast, arms: int, *, paired: bool) -> Iterator[tuple[str, Array, Array]]:
    """Yield name, false verdicts and covered truths, one a study, of each rule and spending function."""
    test = "paired t" if paired else "Welch"
    found = {(arm, n): contrast(arm, n) for arm in range(1, arms) for n in LOOKS}
    spendings: Mapping[str, tuple[float, ...]] = {
        **{f"{word} spending": shares(LOOKS, key) for key, word in SPENDING_WORDS.items()},  # type: ignore[arg-type]
        UNADJUSTED: (1.0,) * len(LOOKS),
    }
    for (spending, parts), rule in itertools.product(spendings.items(), RULES):
        chosen = range(1, 2 if rule == RULES[0] else arms)
        yield f"{rule}: {spending} ({test})", *_one_rule(found, chosen, parts, by_width=rule == RULES[2])


def _one_rule(
    found: Mapping[tuple[int, int], tuple[Array, Parts]], arms: range, parts: tuple[float, ...], *, by_width: bool
) -> tuple[Array, Array]:
    """Return whether any verdict is false and whether the first arm's interval covers, at the look that is the last."""
    count = len(found[1, LOOKS[0]][0])
    going, wrong, covered = np.ones(count, bool), np.zeros(count, bool), np.zeros(count, bool)
    for n, share in zip(LOOKS, parts, strict=True):
        values = np.array([found[arm, n][0] for arm in arms])
        halves = np.array([half(found[arm, n][1], level_at(share)) for arm in arms])
        p = np.array([p_value(*found[arm, n]) for arm in arms]) / share
        ordered, factors = np.sort(p, 0), np.arange(len(p), 0, -1)[:, None]
        enough = halves.max(0) <= np.median(halves.max(0)) if by_width else (ordered * factors < 0.05).all(0)
        last = going & (enough | (n == LOOKS[-1]))
        wrong[last] = (ordered[0] * len(p) < 0.05)[last]  # Holm: any arm is below 5% where the smallest is
        covered[last] = (np.abs(values[0]) <= halves[0])[last]
        going &= ~last
    return wrong, covered


def half(found: Parts, level: float) -> Array:
    """Half-width that holds for seeds and for the evaluation, as :func:`paribus.stats.multiple_testing.at_look`."""
    both = [special.stdtrit(p.df, (1 + level) / 2) * np.sqrt(p.variance) for p in (found.seeds, found.rest)]
    return np.asarray(np.maximum(*both))


def p_value(value: Array, found: Parts) -> Array:
    """Two-sided p that holds for seeds and for the evaluation, before the look's share."""
    both = [2 * special.stdtr(p.df, -np.abs(value) / np.sqrt(p.variance)) for p in (found.seeds, found.rest)]
    return np.asarray(np.maximum(*both))


def outside_looks(looks: Looks, false_at_most: float, covers_at_least: float) -> Iterator[str]:
    """Yield what lies outside the bounds, in percent; intervals may cover more than 97%."""
    for (mix, name), (wrong, covered) in looks.items():
        if UNADJUSTED not in name and (wrong > false_at_most or covered < covers_at_least):
            yield f"{name}, {mix}: false in {wrong:.1f}%, covers {covered:.1f}%"


def page_of_looks(looks: Looks, mixes: Sequence[str]) -> list[str]:
    """The section on studies that add seeds."""
    at = f"{', '.join(map(str, LOOKS[:-1]))} and {LOOKS[-1]}"
    lines = [
        "## Seeds that are added by looks\n",
        f"Looks at {at} seeds an arm. *Decided*: p, after Holm's correction, is below 5% at the share of the look, so",
        "that in these studies without differences every verdict is false. *Narrow*: the widest interval is below the",
        "median of its look, so that half of the studies stop at each. False verdicts: any arm of those that the rule",
        "looks at. Coverage: the interval of the first arm at the last look. Intervals may cover more than 97%, as the",
        "looks share the 5% by Bonferroni's inequality. Rows without adjustment show what looking costs otherwise.\n",
    ]
    for k, title in ((0, "False verdicts in percent of studies"), (1, "Coverage in percent")):
        lines += [f"{title}:\n", "| | " + " | ".join(mixes) + " |", "|---|" + "---:|" * len(mixes)]
        for name in dict.fromkeys(n for _, n in looks):
            lines.append(f"| {name} | " + " | ".join(f"{looks[m, name][k]:.1f}" for m in mixes) + " |")
        lines.append("")
    return lines
