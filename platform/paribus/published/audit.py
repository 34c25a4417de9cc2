"""Which steps of a table exceed the noise of its evaluation, which that of training seeds, and what each would take.

Nothing but the table is used: values, problems, samples, seeds. The success rate of each problem is not published, so
the noise of an evaluation has two bounds (:mod:`paribus.stats.proportions`): *these problems*, asked again with other
samples, where problems are fully correlated between the rows and cancel; and *problems like these*, where rows are
taken as independent. The spread between seeds is the one that a table states, else one that the reader assumes; it is
a standard deviation of printed scores, and so holds the noise of their evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paribus.published.tables import Published, PublishedRow
from paribus.stats.multiple_testing import ALPHA, holm
from paribus.stats.power import POWER, seeds_needed
from paribus.stats.proportions import Difference, critical_z, normal_difference, proportion_difference

Reach = Literal["not known", "within noise", "these problems", "such problems"]
"""What a step exceeds of the noise of its evaluation, after Holm's correction over the steps of the table."""


@dataclass(frozen=True, kw_only=True)
class SeedTest:
    """A step against the spread between seeds.

    Attributes:
        sd: standard deviation between seeds of one row, in the table's unit; of two stated ones the root mean square.
        stated: the table states it for both rows; else the reader assumes it.
        interval: 95% interval of the step over seeds: Welch's t where it is stated, else normal.
        p: p value after Holm's correction over the steps.
        needed: seeds a row with which a true difference of the printed size is significant after correction for all
            steps in 80% of studies; ``None``: more than 100, or no difference.
    """

    sd: float
    stated: bool
    interval: Difference
    p: float
    needed: int | None

    @property
    def exceeds(self) -> bool:
        """Whether the step is larger than this spread explains."""
        return self.p < ALPHA


@dataclass(frozen=True, kw_only=True)
class Step:
    """One row against the row that it is compared with, all in the table's unit.

    Attributes:
        label: the row.
        against: the row that it is compared with.
        value: difference of the printed values.
        problems: problems of both; ``None``: not stated.
        runs: training runs behind both values; a row that does not state them counts as one.
        same: difference if the same problems are asked again; ``None`` if problems or samples are not stated.
        like: difference if other problems like these are asked; ``None`` if the problems are not stated.
        same_p: p value of ``same`` after Holm's correction.
        like_p: p value of ``like`` after Holm's correction.
        survives: the largest spread between seeds that the step would exceed with its number of runs.
        seeds: the step against each spread between seeds.
    """

    label: str
    against: str
    value: float
    problems: int | None
    runs: tuple[int, int]
    same: Difference | None
    like: Difference | None
    same_p: float | None = None
    like_p: float | None = None
    survives: float
    seeds: tuple[SeedTest, ...] = ()

    @property
    def reach(self) -> Reach:
        """What the step exceeds of the noise of its evaluation."""
        if self.like_p is not None and self.like_p < ALPHA:
            return "such problems"
        if self.same_p is None:
            return "not known"
        return "these problems" if self.same_p < ALPHA else "within noise"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The steps of a table, and the spreads between seeds that were assumed.

    Attributes:
        table: the table.
        assumed: spreads that the reader assumes, in the table's unit.
        steps: in the order of the table.
    """

    table: Published
    assumed: tuple[float, ...]
    steps: tuple[Step, ...]


def audit(table: Published, assumed: Sequence[float] = ()) -> Audit:
    """Return the audit of a table.

    Args:
        table: the table; its steps are corrected as one family, by Holm, for each kind of noise and each assumed
            spread by itself. Steps with stated spreads are in the family of each; their p value is the largest.
        assumed: standard deviations between seeds in the table's unit; not used for a step whose rows state theirs.

    Raises:
        ValueError: an assumed spread is not positive.
    """
    if any(not sd > 0 for sd in assumed):
        raise ValueError(f"positive standard deviations are needed, got {list(assumed)}")
    pairs = [*table.steps()]
    steps = [_step(table, row, other, len(pairs)) for row, other in pairs]
    same = holm([step.same.p if step.same else None for step in steps])
    like = holm([step.like.p if step.like else None for step in steps])
    tests = [_seed_tests(row, other, assumed, len(pairs)) for row, other in pairs]
    tests = _corrected(tests, len(assumed))
    filled = (
        replace(step, same_p=p, like_p=q, seeds=tuple(found))
        for step, p, q, found in zip(steps, same, like, tests, strict=True)
    )
    return Audit(table=table, assumed=tuple(assumed), steps=tuple(filled))


def _step(table: Published, row: PublishedRow, other: PublishedRow, tests: int) -> Step:
    runs = (row.seeds or 1, other.seeds or 1)
    same = like = None
    if row.problems is not None:
        a, b = row.value / table.top, other.value / table.top
        like = _scaled(proportion_difference(a, b, row.problems, row.problems), table.top)
        if row.samples is not None and other.samples is not None:
            trials = (row.problems * n * k for n, k in zip(runs, (row.samples, other.samples), strict=True))
            same = _scaled(proportion_difference(a, b, *trials), table.top)
    value = row.value - other.value
    survives = abs(value) / (critical_z(ALPHA / tests) * _share(runs))
    return Step(
        label=row.label, against=other.label, value=value, problems=row.problems, runs=runs, same=same, like=like,
        survives=survives,
    )  # fmt: skip


def _share(runs: tuple[int, int]) -> float:
    """Return the standard error of a difference of two means in standard deviations of one run."""
    return math.sqrt(1 / runs[0] + 1 / runs[1])


def _scaled(found: Difference, top: float) -> Difference:
    return Difference(found.value * top, found.low * top, found.high * top, found.p)


def _seed_tests(row: PublishedRow, other: PublishedRow, assumed: Sequence[float], tests: int) -> list[SeedTest]:
    runs = (row.seeds or 1, other.seeds or 1)
    value = row.value - other.value
    if row.seed_sd and other.seed_sd and min(runs) > 1:
        sd = math.sqrt((row.seed_sd**2 + other.seed_sd**2) / 2)
        found = _welch(value, (row.seed_sd, other.seed_sd), runs)
        return [SeedTest(sd=sd, stated=True, interval=found, p=found.p, needed=_needed(value, sd, tests))]
    made = [normal_difference(value, sd * _share(runs)) for sd in assumed]
    return [
        SeedTest(sd=sd, stated=False, interval=found, p=found.p, needed=_needed(value, sd, tests))
        for sd, found in zip(assumed, made, strict=True)
    ]


def _corrected(tests: Sequence[Sequence[SeedTest]], assumed: int) -> list[list[SeedTest]]:
    """Return the tests with p values after Holm's correction, one family over all steps for each assumed spread."""
    found = [[replace(test, p=0.0) for test in row] for row in tests]
    for k in range(max(assumed, 1)):
        places = [0 if row and row[0].stated else k for row in tests]
        adjusted = holm([row[i].p if row else None for row, i in zip(tests, places, strict=True)])
        for row, i, p in zip(found, places, adjusted, strict=True):
            if p is not None:
                row[i] = replace(row[i], p=max(p, row[i].p))
    return found


def _needed(value: float, sd: float, tests: int) -> int | None:
    return seeds_needed(value, sd, paired=False, alpha=ALPHA / tests) if value else None


def _welch(value: float, sds: tuple[float, float], runs: tuple[int, int]) -> Difference:
    """Return Welch's interval and test from the standard deviations that a table prints."""
    from scipy import special

    parts = [sd**2 / n for sd, n in zip(sds, runs, strict=True)]
    df = sum(parts) ** 2 / sum(v**2 / (n - 1) for v, n in zip(parts, runs, strict=True))
    se = math.sqrt(sum(parts))
    half = float(special.stdtrit(df, 1 - ALPHA / 2)) * se
    return Difference(value, value - half, value + half, 2 * float(special.stdtr(df, -abs(value) / se)))


REACH_WORDS: dict[Reach, str] = {
    "such problems": "on any such",
    "these problems": "on these problems",
    "within noise": "no",
    "not known": "not known",
}
"""Whether a step exceeds the noise of its evaluation, in words."""


def conclusions(found: Audit) -> tuple[str, ...]:
    """Return what a reader may conclude from a table, and what not, one sentence or two each."""
    table, steps = found.table, found.steps
    count = {reach: sum(step.reach == reach for step in steps) for reach in REACH_WORDS}
    lines = []
    if count["not known"] < len(steps):
        lines.append(
            f"Evaluation: {count['these problems'] + count['such problems']} of {len(steps)} steps exceed what asking "
            f"the same problems again would give; {count['such problems']} of {len(steps)} also exceed what other "
            "problems like these would give, if rows were independent, which is the widest case."
        )
    if count["not known"]:
        lines.append(
            f"For {count['not known']} of {len(steps)} steps the noise of the evaluation is not known, because the "
            "problems or the samples a problem are not stated."
        )
    rows = [table.filled(row) for row in table.rows]
    if all(row.samples == 1 and row.seeds in (None, 1) for row in rows):
        lines.append(
            "With one response a problem both intervals are the same. If that response was greedy, asking the same "
            "problems again would give it again, and the noise is the choice of problems alone."
        )
    lines += _about_seeds(found)
    if all(row.value == round(row.value) for row in table.rows) and table.unit == "%":
        lines.append("Values are printed in whole points: rounding alone moves a step by up to 1 point.")
    lines.append(
        "Within noise does not mean no effect, and exceeding the noise of an evaluation does not mean that another "
        "seed shows it again. A source may have evidence that its table does not print, such as curves or other runs."
    )
    return tuple(lines)


def _about_seeds(found: Audit) -> list[str]:
    lines = []
    single = [step for step in found.steps if min(step.runs) == 1]
    if single:
        stated = all(row.seeds for row in map(found.table.filled, found.table.rows))
        counted = "" if stated else "The number of training runs is not stated; a row counts as one. "
        lines.append(
            f"Seeds: {counted}One run a row says nothing about the spread between seeds. A step exceeds it only if the "
            "standard deviation between seeds is below the column 'seed sd below', which the table cannot show."
        )
    tests = [step.seeds[0] for step in found.steps if step.seeds and step.seeds[0].stated]
    if tests:
        lines.append(
            f"Seeds: {sum(t.exceeds for t in tests)} of {len(tests)} steps with stated spreads exceed them "
            "(Welch, Holm)."
        )
    for k, sd in enumerate(found.assumed):
        assumed = [step.seeds[k] for step in found.steps if len(step.seeds) > k and not step.seeds[k].stated]
        if assumed:
            lines.append(
                f"If seeds differ with a standard deviation of {sd:g}, {sum(t.exceeds for t in assumed)} of "
                f"{len(assumed)} steps exceed it."
            )
    if tests or found.assumed:
        lines.append(
            "The seeds after each spread are those that each row needs so that a true difference of the printed size "
            f"is found in {POWER:.0%} of studies, two-sided 5%, corrected for {len(found.steps)} steps. A printed step "
            "that chance has made large needs more."
        )
    return lines
