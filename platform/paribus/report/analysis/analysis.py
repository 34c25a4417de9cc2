"""The statistics of a study: estimates of arms, differences between them, and their sensitivity to lost runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from paribus.evaluate import HELDOUT
from paribus.report.analysis.measures import (
    GENERATED,
    Measure,
    cost_measures,
    counts_of,
    device_seconds,
    last_value,
    pass_rates,
    score_measure,
    series,
    start_measure,
    value_of,
)
from paribus.report.inputs import RunData, StudyData
from paribus.stats.intervals import LEVEL, Estimate, Noise, difference_interval, mean_interval, welch_interval
from paribus.stats.multiple_testing import ALPHA, CORRECTIONS, Correction, adjusted, at_look, holm, shares
from paribus.stats.power import detectable_effect, detectable_shift, seeds_needed, spread_bound

if TYPE_CHECKING:
    from paribus.stats.problems import Array, TableOfScores

MIN_SEEDS = 3
"""With fewer seeds there is no interval, no test and no bold."""


Values: TypeAlias = Mapping[int, float]


Term: TypeAlias = tuple[float, str, Measure]
"""Weight, arm and measure of one mean in a sum of means."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The difference of two arms, or a contrast of several, in one measure.

    Attributes:
        estimate: difference with interval and p.
        by_seed: difference of each pair; empty if seeds are not paired.
        paired: whether seeds are paired.
        p_adjusted: p after the correction over the family of the table (Holm's unless the table says otherwise);
            ``None`` without a test.
        runs: number of runs behind it, if it comes from a fit to unbalanced cells.
    """

    estimate: Estimate
    by_seed: tuple[tuple[int, float], ...]
    paired: bool
    p_adjusted: float | None = None
    runs: int | None = None

    @property
    def supported(self) -> bool:
        """Whether there are enough seeds for an interval and a test."""
        return self.estimate.n >= MIN_SEEDS

    @property
    def separated(self) -> bool:
        """Whether the 95% interval, before any correction, excludes 0."""
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
        """Smallest true difference that this study could show, at the upper 80% bound of the observed spread."""
        e = self.estimate
        if not self.supported or not e.sd:
            return None
        alpha = ALPHA * (1 - e.level) / (1 - LEVEL)
        if self.runs is not None:
            return max(spread_bound(se, df) * detectable_shift(df, alpha) for se, df in e.errors)
        spread = spread_bound(e.sd, e.n - 1 if self.paired else 2 * (e.n - 1))
        return detectable_effect(e.n, spread, paired=self.paired, alpha=alpha)


def contrast(arms: Sequence[tuple[float, Values]], *, paired: bool, noise: Noise | None = None) -> Effect | None:
    """Return the weighted sum of arms, over common seeds if they are paired; ``None`` without data."""
    if paired:
        seeds = common_seeds(values for _, values in arms)
        if not seeds:
            return None
        by_seed = tuple((s, math.fsum(weight * values[s] for weight, values in arms)) for s in seeds)
        return Effect(estimate=difference_interval([d for _, d in by_seed], noise=noise), by_seed=by_seed, paired=True)
    if not all(values for _, values in arms):
        return None
    estimate = welch_interval([(weight, [*values.values()]) for weight, values in arms], noise=noise)
    return Effect(estimate=estimate, by_seed=(), paired=False)


def common_seeds(found: Iterable[Mapping[int, object]]) -> list[int]:
    """Return the seeds that all mappings have, in order."""
    return sorted(set.intersection(*(set(values) for values in found)))


def corrected(effects: Iterable[Effect | None], by: Correction = "holm") -> list[Effect | None]:
    """Return the effects with p adjusted over those that can be tested."""
    found = list(effects)
    adjusted = CORRECTIONS[by]([e.estimate.p if e and e.supported else None for e in found])
    return [e and replace(e, p_adjusted=p) for e, p in zip(found, adjusted, strict=True)]


class Analysis:
    """The numbers of a study by arm and measure, each computed once."""

    def __init__(self, data: StudyData) -> None:
        self.data = data
        self.plan = data.plan
        self.evaluate = data.plan.evaluate
        self.score = score_measure(self.evaluate)
        sets = self.evaluate.all_sets
        self.primary_settings = sets.get(self.evaluate.primary_set, sets[HELDOUT])
        self._values: dict[tuple[str, str], Values] = {}
        self._answers: dict[tuple[str, str], Mapping[int, Array]] = {}
        self._effects: dict[tuple[str, str, str], Effect | None] = {}
        self._sets: dict[str, tuple[str, ...]] = {}
        self._paid: dict[tuple[str, int], Mapping[int, tuple[float, float]]] = {}

    @cached_property
    def costs(self) -> dict[str, Measure]:
        """Cost measures, in a unit that suits this study."""
        tokens = (last_value(run, GENERATED) for run in self.data.runs)
        return cost_measures(max((t for t in tokens if t is not None), default=0.0))

    def label(self, arm: str) -> str:
        """Return the arm's label."""
        return self.plan.arm(arm).label

    def runs(self, arm: str) -> tuple[RunData, ...]:
        """Return the arm's runs by seed."""
        return self._runs[arm]

    @cached_property
    def _runs(self) -> Mapping[str, tuple[RunData, ...]]:
        found: dict[str, list[RunData]] = {a.key: [] for a in self.plan.arms}
        for run in sorted(self.data.runs, key=lambda r: r.seed):
            found[run.arm].append(run)
        return {arm: tuple(runs) for arm, runs in found.items()}

    def values(self, arm: str, measure: Measure) -> Values:
        """Return seed to number, for the seeds that have one."""
        key = (arm, measure.key)
        if key not in self._values:
            found = ((r.seed, value_of(r, measure, self.evaluate)) for r in self.runs(arm))
            self._values[key] = {seed: v for seed, v in found if v is not None}
        return self._values[key]

    def paid(self, run: RunData) -> Mapping[int, tuple[float, float]]:
        """Return step to generated tokens and device seconds up to it, for steps with a score; NaN if unknown."""
        key = (run.arm, run.seed)
        if key not in self._paid:
            steps = run.recorded.series(self.score.metric).steps.tolist()
            tokens, seconds = run.recorded.series(GENERATED), device_seconds(run, steps)
            self._paid[key] = {s: (tokens.at(s) if s else 0.0, seconds.get(s, math.nan)) for s in steps}
        return self._paid[key]

    def answers(self, arm: str, measure: Measure) -> Mapping[int, Array]:
        """Return seed to the share of correct responses of each problem; empty if runs had different problems."""
        import numpy as np

        key = (arm, measure.key)
        if key not in self._answers:
            found = {r.seed: counts_of(r, measure, self.evaluate) for r in self.runs(arm)}
            known = {seed: c for seed, c in found.items() if c is not None and seed in self.values(arm, measure)}
            same = {c.problems for c in known.values()} == {self._problems(measure)}
            self._answers[key] = {s: np.asarray(c.correct) / c.samples for s, c in known.items()} if same else {}
        return self._answers[key]

    def pass_rates(self, arm: str, ks: Sequence[int]) -> Mapping[int, tuple[float, ...]]:
        """Return seed to pass@k for each k, for the runs that have a score and counts."""
        found = {r.seed: pass_rates(r, self.evaluate, ks) for r in self.runs(arm)}
        return {s: rates for s, rates in found.items() if rates is not None and s in self.values(arm, self.score)}

    def _problems(self, measure: Measure) -> tuple[str, ...]:
        """Return the problems of the measure's evaluation set."""
        if measure.metric not in self._sets:
            found = (counts_of(run, replace(measure, rule="score"), self.evaluate) for run in self.data.runs)
            self._sets[measure.metric] = next((c.problems for c in found if c is not None), ())
        return self._sets[measure.metric]

    @cached_property
    def held(self) -> str:
        """Label of the score if evaluation noise limits all its intervals; empty without counts per problem."""
        return self.score.label if self.limited(self.score) else ""

    def limited(self, measure: Measure) -> bool:
        """Whether evaluation noise limits all intervals of a measure: there are counts per problem."""
        arms = [a.key for a in self.plan.arms if len(self.values(a.key, measure)) > 1]
        return bool(arms) and all(self.answers(arm, measure) for arm in arms)

    def tables(
        self, terms: Sequence[Term], values: Sequence[Values], *, paired: bool
    ) -> Sequence[TableOfScores] | None:
        """Return a weighted sum of arms by seed and problem; ``None`` without counts per problem.

        Args:
            terms: weight, arm and measure of each mean.
            values: seed to number of each, for the seeds that enter it.
            paired: whether seeds are paired.
        """
        import numpy as np

        found = [
            (weight, {s: t for s, t in self.answers(arm, measure).items() if s in used})
            for (weight, arm, measure), used in zip(terms, values, strict=True)
        ]
        if paired:
            seeds = common_seeds(tables for _, tables in found)
            tables = [(1.0, np.asarray(sum(w * np.asarray([t[s] for s in seeds]) for w, t in found)))]
        else:
            tables = [(weight, np.asarray([*table.values()])) for weight, table in found]
        return tables if all(t.ndim == 2 and min(t.shape) > 1 for _, t in tables) else None

    def _noise(self, terms: Sequence[Term], values: Sequence[Values], *, paired: bool) -> Noise | None:
        """Return the standard error and degrees of freedom that evaluation noise alone gives; ``None`` if unknown.

        No interval of a score is narrower than this implies: by luck, a handful of runs can agree better than the
        sampling of their evaluations allows.
        """
        from paribus.stats.problems import rest_alone

        tables = self.tables(terms, values, paired=paired)
        if tables is None or not (rest := rest_alone(tables)).variance > 0:
            return None
        return math.sqrt(float(rest.variance)), float(rest.df)

    def estimate(self, arm: str, measure: Measure) -> Estimate | None:
        """Return the arm's mean over seeds; ``None`` if no seed has a number."""
        values = self.values(arm, measure)
        noise = self._noise([(1, arm, measure)], [values], paired=False)
        return at_look(mean_interval([*values.values()], noise=noise), self.share) if values else None

    @cached_property
    def share(self) -> float:
        """Share of the 5% that the current interim analysis may spend; 1 for a study without interim analyses."""
        looks = self.plan.interim
        return shares(looks.at, looks.spending)[self.plan.look - 1] if looks else 1.0

    def contrast(self, weights: Mapping[str, float], measure: Measure) -> Effect | None:
        """Return the weighted sum of arms, uncorrected; ``None`` without arms or without data."""
        terms = [(weight, arm, measure) for arm, weight in weights.items()]
        return self._contrast(terms, paired=self.plan.paired) if terms else None

    def effect(self, arm: str, reference: str, measure: Measure) -> Effect | None:
        """Return the arm's difference from the reference arm, uncorrected; ``None`` for the same arm or no data."""
        if arm == reference:
            return None
        key = (arm, reference, measure.key)
        if key not in self._effects:
            self._effects[key] = self.contrast({arm: 1.0, reference: -1.0}, measure)
        return self._effects[key]

    def gain(self, arm: str) -> Effect | None:
        """Return the score after minus before training, paired within each run; ``None`` without data."""
        return self._contrast([(1, arm, self.score), (-1, arm, start_measure(self.evaluate))], paired=True)

    def _contrast(self, terms: Sequence[Term], *, paired: bool) -> Effect | None:
        return self._from_values(terms, [self.values(arm, measure) for _, arm, measure in terms], paired=paired)

    def _from_values(self, terms: Sequence[Term], values: Sequence[Values], *, paired: bool) -> Effect | None:
        arms = [(weight, used) for (weight, _, _), used in zip(terms, values, strict=True)]
        effect = contrast(arms, paired=paired, noise=self._noise(terms, values, paired=paired))
        return effect and replace(effect, estimate=at_look(effect.estimate, self.share))

    @cached_property
    def to_base(self) -> Mapping[str, Effect | None]:
        """Difference of each other arm from the base in the primary metric, corrected over all of them."""
        others = [a.key for a in self.plan.arms if a.key != self.plan.base]
        return dict(zip(others, corrected(self.effect(a, self.plan.base, self.score) for a in others), strict=True))

    @property
    def family(self) -> int:
        """Number of comparisons with the base that could be tested."""
        return sum(e is not None and e.p_adjusted is not None for e in self.to_base.values())

    @cached_property
    def equivalence(self) -> Mapping[str, float | None]:
        """Corrected p of "differs from the base by the declared margin or more" by arm; empty without a margin."""
        margin = self.plan.margin
        if margin is None:
            return {}
        tests = {a: e.estimate.equivalence_p(margin) if e and e.supported else None for a, e in self.to_base.items()}
        found = {a: None if p is None else adjusted(p, self.share) for a, p in tests.items()}
        return dict(zip(found, holm([*found.values()]), strict=True))

    def leaders(self, arms: Iterable[str]) -> frozenset[str]:
        """Return the best arm, every arm that is not significantly worse, and every arm that scores between them.

        The tests are corrected over all pairs. A precise arm can be significantly worse than the best while a noisier
        arm with a lower score is not; the precise arm counts as a leader too, so that no leader scores below an arm
        that is not one. Empty if an arm has fewer than :data:`MIN_SEEDS` seeds.
        """
        estimates = {a: self.estimate(a, self.score) for a in dict.fromkeys(arms)}
        known = {a: e for a, e in estimates.items() if e is not None and e.n >= MIN_SEEDS}
        if len(known) < len(estimates) or len(known) < 2 or self.score.better == "neither":
            return frozenset()
        sign = 1 if self.score.better == "higher" else -1
        top = max(known, key=lambda a: sign * known[a].value)
        pairs = list(combinations(known, 2))  # all pairs, because the data also choose the best arm
        effects = dict(zip(pairs, corrected(self.effect(a, b, self.score) for a, b in pairs), strict=True))
        worse = {a for pair, e in effects.items() if top in pair and e is not None and _told_apart(e) for a in pair}
        lowest = min(sign * known[a].value for a in known if a == top or a not in worse)
        return frozenset(a for a in known if sign * known[a].value >= lowest)

    def fragile(self, arm: str) -> bool:
        """Whether "separated from the base", or its sign, depends on how lost and stopped runs are counted.

        A way of counting that leaves fewer than three seeds gives no verdict.
        """
        return len({_verdict(e) for e in self.sensitivity(arm).values() if e is not None and e.supported}) > 1

    def sensitivity(self, arm: str) -> dict[str, Effect | None]:
        """Return the difference from the base as planned, with lost seeds counted against and for it, and without them.

        Against the arm: its lost seeds get the worst score and those of the base the best; for it, the other way round.
        Worst and best are taken over all runs of the study, including their evaluations before training. Runs that may
        still finish are not lost.
        """
        both = (arm, self.plan.base)
        planned = {a: dict(self.values(a, self.score)) for a in both}
        lost = {a: {r.seed for r in self.runs(a) if r.outcome in ("failed", "stopped_early")} for a in both}
        worst, best = self._extremes
        against, favour = (
            {a: {**planned[a], **dict.fromkeys(lost[a], end)} for a, end in zip(both, ends, strict=True)}
            for ends in ((worst, best), (best, worst))
        )
        without = {a: {s: v for s, v in planned[a].items() if s not in lost[a]} for a in both}
        cases = {
            "as planned": planned,
            "lost seeds count against it": against,
            "lost seeds count for it": favour,
            "lost seeds excluded": without,
        }
        terms = [(1.0, arm, self.score), (-1.0, self.plan.base, self.score)]
        return {n: self._from_values(terms, [c[a] for a in both], paired=self.plan.paired) for n, c in cases.items()}

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        """The worst and the best score of any run."""
        scores = [v for run in self.data.runs for _, v in series(run, self.score.metric)]
        ends = min(scores, default=0.0), max(scores, default=0.0)
        return (ends[1], ends[0]) if self.score.better == "lower" else ends


def _told_apart(effect: Effect) -> bool:
    """Whether the test separates two arms; without noise, any difference does."""
    return effect.confirmed if effect.p_adjusted is not None else effect.estimate.value != 0


def _verdict(effect: Effect) -> int:
    if not effect.separated:
        return 0
    return 1 if effect.estimate.value > 0 else -1
