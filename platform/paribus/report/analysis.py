"""The statistics of a study: estimates of arms, differences between them, and what lost runs could change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from paribus.report.data import RunData, StudyData
from paribus.report.measures import GENERATED, Measure, cost_measures, score_measure, series, value_of
from paribus.stats.compare import ALPHA, holm
from paribus.stats.intervals import Estimate, mean_interval, paired_difference, welch_contrast, welch_difference
from paribus.stats.power import detectable_effect, seeds_needed

MIN_SEEDS = 3
"""Seeds below which there is no interval, no test and no bold."""

Values = Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The difference of two arms in one measure.

    Attributes:
        estimate: difference with interval and p.
        by_seed: difference of each pair; empty where seeds are not paired.
        paired: whether seeds are paired.
        p_adjusted: p after Holm's correction over the family of the table; ``None`` without a test.
    """

    estimate: Estimate
    by_seed: tuple[tuple[int, float], ...]
    paired: bool
    p_adjusted: float | None = None

    @property
    def supported(self) -> bool:
        """Whether there are seeds enough for an interval and a test."""
        return self.estimate.n >= MIN_SEEDS

    @property
    def separated(self) -> bool:
        """Whether the 95% interval, before any correction, leaves out 0."""
        return self.supported and self.estimate.separated

    @property
    def confirmed(self) -> bool:
        """Whether p is below 5% after the correction."""
        return self.supported and self.p_adjusted is not None and self.p_adjusted < ALPHA

    @property
    def needed(self) -> int | None:
        """Seeds an arm for 80% power at the observed difference and spread; ``None`` above the cap."""
        return seeds_needed(self.estimate.value, self.estimate.sd, paired=self.paired) if self.estimate.sd else None

    @property
    def detectable(self) -> float | None:
        """Smallest true difference that this study could show at the observed spread."""
        if not self.supported or not self.estimate.sd:
            return None
        return detectable_effect(self.estimate.n, self.estimate.sd, paired=self.paired)


def difference(after: Values, before: Values, *, paired: bool) -> Effect | None:
    """Return the difference of two arms; over common seeds where they are paired; ``None`` if there is no data."""
    if paired:
        seeds = sorted(after.keys() & before.keys())
        if not seeds:
            return None
        by_seed = tuple((s, after[s] - before[s]) for s in seeds)
        estimate = paired_difference([after[s] for s in seeds], [before[s] for s in seeds])
        return Effect(estimate=estimate, by_seed=by_seed, paired=True)
    if not after or not before:
        return None
    return Effect(estimate=welch_difference([*after.values()], [*before.values()]), by_seed=(), paired=False)


def contrast_effect(values: Mapping[str, Values], weights: Mapping[str, float], *, paired: bool) -> Effect | None:
    """Return a weighted sum of arms; over the seeds common to all where they are paired; ``None`` without data.

    Args:
        values: arm to seed to number.
        weights: arm to weight.
        paired: whether seeds are paired.
    """
    if not weights or not all(values[arm] for arm in weights):
        return None
    if not paired:
        return Effect(
            estimate=welch_contrast([(w, [*values[arm].values()]) for arm, w in weights.items()]),
            by_seed=(),
            paired=False,
        )
    common = frozenset.intersection(*(frozenset(values[arm]) for arm in weights))
    sums = {s: math.fsum(w * values[arm][s] for arm, w in weights.items()) for s in common}
    return difference(sums, dict.fromkeys(sums, 0.0), paired=True)


def corrected(effects: Iterable[Effect | None]) -> list[Effect | None]:
    """Return the effects with p adjusted over all of them that can be tested."""
    found = list(effects)
    adjusted = holm([e.estimate.p if e and e.supported else None for e in found])
    return [e and replace(e, p_adjusted=p) for e, p in zip(found, adjusted, strict=True)]


class Analysis:
    """Numbers of a study, computed once and asked for by arm and measure."""

    def __init__(self, data: StudyData) -> None:
        self.data = data
        self.plan = data.plan
        self.evaluate = data.plan.evaluate
        self.score = score_measure(self.evaluate)
        self._values: dict[tuple[str, str], Values] = {}

    @cached_property
    def costs(self) -> dict[str, Measure]:
        """Measures of cost, in a unit that suits this study."""
        tokens = (v for run in self.data.runs for _, v in series(run, GENERATED)[-1:])
        return cost_measures(max(tokens, default=0.0))

    def label(self, arm: str) -> str:
        """Return what people call the arm."""
        return self.plan.arm(arm).label

    def runs(self, arm: str) -> tuple[RunData, ...]:
        """Return the arm's runs by seed."""
        return self.data.of_arm(arm)

    def values(self, arm: str, measure: Measure) -> Values:
        """Return seed to number, for the seeds that have one."""
        key = (arm, measure.key)
        if key not in self._values:
            found = ((r.seed, value_of(r, measure, self.evaluate)) for r in self.runs(arm))
            self._values[key] = {seed: v for seed, v in found if v is not None}
        return self._values[key]

    def estimate(self, arm: str, measure: Measure) -> Estimate | None:
        """Return the arm's mean over seeds; ``None`` if no seed has a number."""
        values = self.values(arm, measure)
        return mean_interval([*values.values()]) if values else None

    def effect(self, arm: str, reference: str, measure: Measure) -> Effect | None:
        """Return the arm's difference to the reference arm, uncorrected; ``None`` for the same arm or no data."""
        if arm == reference:
            return None
        return difference(self.values(arm, measure), self.values(reference, measure), paired=self.plan.paired)

    def contrast(self, weights: Mapping[str, float], measure: Measure) -> Effect | None:
        """Return a weighted sum of arms, uncorrected; ``None`` if an arm has no data."""
        found = {arm: self.values(arm, measure) for arm in weights}
        return contrast_effect(found, weights, paired=self.plan.paired)

    @cached_property
    def to_base(self) -> Mapping[str, Effect | None]:
        """Difference of each other arm to the base in the primary metric, corrected over all of them."""
        others = [a.key for a in self.plan.arms if a.key != self.plan.base]
        return dict(zip(others, corrected(self.effect(a, self.plan.base, self.score) for a in others), strict=True))

    @property
    def family(self) -> int:
        """Number of comparisons with the base that could be tested."""
        return sum(e is not None and e.p_adjusted is not None for e in self.to_base.values())

    def leaders(self, arms: Iterable[str]) -> frozenset[str]:
        """Return the best arm and all that a corrected test does not tell from it; none if an arm has few seeds."""
        estimates = {a: self.estimate(a, self.score) for a in dict.fromkeys(arms)}
        known = {a: e for a, e in estimates.items() if e is not None and e.n >= MIN_SEEDS}
        if len(known) < len(estimates) or len(known) < 2 or self.score.better == "neither":
            return frozenset()
        sign = 1 if self.score.better == "higher" else -1
        top = max(known, key=lambda a: sign * known[a].value)
        rest = [a for a in known if a != top]
        effects = corrected(self.effect(a, top, self.score) for a in rest)
        return frozenset([top, *(a for a, e in zip(rest, effects, strict=True) if e is not None and not _worse(e))])

    def fragile(self, arm: str) -> bool:
        """Whether "separated from the base", or its sign, depends on how lost and stopped runs are counted.

        A count that leaves fewer than three seeds has no verdict that could differ.
        """
        return len({_verdict(e) for e in self.sensitivity(arm).values() if e is not None and e.supported}) > 1

    def sensitivity(self, arm: str) -> dict[str, Effect | None]:
        """Return the difference to the base as planned, with lost seeds at the worst score, and without them.

        The worst score is the lowest of any run of the study, the evaluation before training included. Runs that may
        still finish are not lost.
        """
        both = (arm, self.plan.base)
        planned = {a: dict(self.values(a, self.score)) for a in both}
        lost = {a: {r.seed for r in self.runs(a) if r.outcome in ("failed", "stopped_early")} for a in both}
        worst = {a: {**planned[a], **dict.fromkeys(lost[a], self._worst)} for a in both}
        without = {a: {s: v for s, v in planned[a].items() if s not in lost[a]} for a in both}
        cases = {"as planned": planned, "lost seeds at the worst score": worst, "lost seeds excluded": without}
        return {name: difference(c[arm], c[self.plan.base], paired=self.plan.paired) for name, c in cases.items()}

    @cached_property
    def _worst(self) -> float:
        scores = [v for run in self.data.runs for _, v in series(run, self.score.metric)]
        return (max if self.score.better == "lower" else min)(scores, default=0.0)


def _worse(effect: Effect) -> bool:
    """Whether the test tells an arm from the best; where there is no noise, any difference does."""
    return effect.confirmed if effect.p_adjusted is not None else effect.estimate.value != 0


def _verdict(effect: Effect) -> int:
    if not effect.separated:
        return 0
    return 1 if effect.estimate.value > 0 else -1
