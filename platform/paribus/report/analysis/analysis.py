"""The statistics of a study: estimates of its arms and the differences between them, each computed once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from paribus.evaluate import HELDOUT
from paribus.report.analysis.effect import MIN_SEEDS, Effect, Values, common_seeds, contrast, corrected
from paribus.report.analysis.levels import Levels, levels_of
from paribus.report.analysis.measures import (
    Measure,
    cost_measures,
    counts_of,
    device_seconds,
    evaluation_error,
    last_value,
    meaning_of,
    pass_rates,
    score_measure,
    start_measure,
    value_of,
)
from paribus.report.analysis.names import arm_names
from paribus.report.inputs import RunData, StudyData
from paribus.run_folder.metrics import GENERATED
from paribus.stats.intervals import Estimate, Noise, difference_interval, mean_interval, weighted_sum
from paribus.stats.multiple_testing import Correction, adjusted, at_look, holm, shares
from paribus.stats.pairing import least_correlation, pooled_correlation
from paribus.stats.power import seeds_needed

if TYPE_CHECKING:
    from paribus.stats.problems import Array, TableOfScores

Term: TypeAlias = tuple[float, str, Measure]
"""Weight, arm and measure of one mean in a sum of means."""


class Analysis:
    """The numbers of a study by arm and measure, each computed once."""

    def __init__(self, data: StudyData) -> None:
        self.data = data
        self.plan = data.plan
        self.evaluate = data.plan.evaluate
        sets = self.evaluate.all_sets
        self.primary_settings = sets.get(self.evaluate.primary_set, sets[HELDOUT])
        self._values: dict[tuple[str, str], Values] = {}
        self._answers: dict[tuple[str, str], Mapping[int, Array]] = {}
        self._effects: dict[tuple[str, str, str], Effect | None] = {}
        self._sets: dict[str, tuple[str, ...]] = {}
        self._paid: dict[tuple[str, int], Mapping[int, tuple[float, float]]] = {}

    @cached_property
    def score(self) -> Measure:
        """The primary metric under the checkpoint rule; its note says how many evaluations that took."""
        return score_measure(self.evaluate, self.data.runs, external=self.plan.external)

    @cached_property
    def paired(self) -> bool:
        """Whether arms are compared by pairs of seeds: as the study pairs them, or where its declared rule says so."""
        always = self.plan.pairing == "always" or self.late("pairing")
        if not self.plan.paired or always or self.correlation is None:
            return self.plan.paired
        return self.correlation > least_correlation(len(self.values(self.plan.base, self.score)))

    @cached_property
    def correlation(self) -> float | None:
        """Correlation of seeds in the score, pooled over the arms that have all seeds of the base.

        ``None`` if seeds are not paired, with fewer than two such arms or three seeds, or without any spread.
        """
        seeds = sorted(self.values(self.plan.base, self.score)) if self.plan.paired else []
        every = [self.values(a.key, self.score) for a in self.plan.arms]
        arms = [[v[s] for s in seeds] for v in every if v.keys() >= set(seeds)]
        return pooled_correlation(arms) if len(seeds) >= MIN_SEEDS and len(arms) > 1 else None

    @cached_property
    def costs(self) -> dict[str, Measure]:
        """Cost measures, in a unit that suits this study."""
        tokens = (last_value(run, GENERATED) for run in self.data.runs)
        return cost_measures(max((t for t in tokens if t is not None), default=0.0))

    def label(self, arm: str) -> str:
        """Return the arm's name, which no other arm of the report has."""
        return self.names[arm]

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The name of each arm; see :func:`arm_names`."""
        return arm_names(self.plan)

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
        tables = self.tables(terms, values, paired=paired)
        return None if tables is None else _noise_of(tables)

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
        return self._contrast(terms, paired=self.paired) if terms else None

    def contrast_by_seed(self, weights: Mapping[int, Mapping[str, float]], measure: Measure) -> Effect | None:
        """Return the mean over seeds of weighted sums of arms, with weights of each seed; ``None`` without a seed.

        Each seed gives one number, as in :meth:`contrast`, also where its arms and weights differ from the others'.
        """
        import numpy as np

        if not weights:
            return None
        by_seed = tuple(
            (s, weighted_sum((w, self.values(arm, measure)[s]) for arm, w in each.items()))
            for s, each in weights.items()
        )
        known = {arm: self.answers(arm, measure) for each in weights.values() for arm in each}
        noise = None
        if all(s in known[arm] for s, each in weights.items() for arm in each) and len(weights) > 1:
            rows = [sum(w * np.asarray(known[arm][s]) for arm, w in each.items()) for s, each in weights.items()]
            noise = _noise_of([(1.0, np.asarray(rows))])
        estimate = at_look(difference_interval([d for _, d in by_seed], noise=noise), self.share)
        late = not self.late_arms.isdisjoint(known)
        return Effect(estimate=estimate, by_seed=by_seed, paired=True, exploratory=late)

    def effect(self, arm: str, reference: str, measure: Measure) -> Effect | None:
        """Return the arm's difference from the reference arm, uncorrected; ``None`` without one that has a meaning."""
        if arm == reference or not self.same_meaning(arm, reference, measure):
            return None
        key = (arm, reference, measure.key)
        if key not in self._effects:
            self._effects[key] = self.contrast({arm: 1.0, reference: -1.0}, measure)
        return self._effects[key]

    def same_meaning(self, arm: str, reference: str, measure: Measure) -> bool:
        """Return whether a measure means the same in two arms, or one of them has no values."""
        one, other = (meaning_of(self.runs(a), measure) for a in (arm, reference))
        return one == other or not (one and other)

    def gain(self, arm: str) -> Effect | None:
        """Return the score after minus before training, paired within each run; ``None`` without data."""
        return self._contrast([(1, arm, self.score), (-1, arm, start_measure(self.evaluate))], paired=True)

    def _contrast(self, terms: Sequence[Term], *, paired: bool) -> Effect | None:
        return self.from_values(terms, [self.values(arm, measure) for _, arm, measure in terms], paired=paired)

    def from_values(self, terms: Sequence[Term], values: Sequence[Values], *, paired: bool) -> Effect | None:
        """Return a weighted sum of means with these numbers in place of the recorded ones, uncorrected."""
        arms = [(weight, used) for (weight, _, _), used in zip(terms, values, strict=True)]
        effect = contrast(arms, paired=paired, noise=self._noise(terms, values, paired=paired))
        if effect is None:
            return None
        answers = None if effect.supported else self._answer_error(terms)
        late = not self.late_arms.isdisjoint(arm for _, arm, _ in terms)
        return replace(effect, estimate=at_look(effect.estimate, self.share), answers=answers, exploratory=late)

    def _answer_error(self, terms: Sequence[Term]) -> float | None:
        """Return the standard error of one seed's weighted sum from the evaluations alone; ``None`` if unknown."""
        errors = [self.answer_error(arm, measure) for _, arm, measure in terms]
        known = [weight * error for (weight, _, _), error in zip(terms, errors, strict=True) if error is not None]
        return math.hypot(*known) or None if len(known) == len(errors) else None

    def answer_error(self, arm: str, measure: Measure) -> float | None:
        """Return the largest evaluation noise of the arm's runs in a measure; ``None`` without counts per problem."""
        runs = (run for run in self.runs(arm) if run.seed in self.values(arm, measure))
        errors = [evaluation_error(run, measure, self.evaluate) for run in runs]
        return max((e for e in errors if e is not None), default=None)

    @cached_property
    def to_base(self) -> Mapping[str, Effect | None]:
        """Difference of each other arm from the base in the primary metric, corrected over all of them."""
        others = [a.key for a in self.plan.arms if a.key != self.plan.base]
        found = corrected((self.effect(a, self.plan.base, self.score) for a in others), more=self.tested_elsewhere)
        return dict(zip(others, found, strict=True))

    @property
    def family(self) -> int:
        """Number of comparisons with the base that p is corrected over; 0 if none could be tested."""
        tested = sum(e is not None and e.p_adjusted is not None for e in self.to_base.values())
        return tested + self.tested_elsewhere if tested else 0

    @property
    def late_arms(self) -> frozenset[str]:
        """The arms that were declared after their results were there."""
        return self.data.declared.late_arms if self.data.declared else frozenset()

    def late(self, term: str) -> bool:
        """Whether this term of :data:`.declared.TERMS` was declared after results were there."""
        return self.data.declared is not None and term in self.data.declared.late_terms

    @property
    def tested_elsewhere(self) -> int:
        """Number of arms that other plans of the store compare with this base; 0 unless an arm was declared late."""
        declared = self.data.declared
        if declared is None or not declared.late_arms:
            return 0
        own = {a.key for a in self.plan.arms if len(self.values(a.key, self.score)) > 1}  # others are not tested here
        return len(declared.compared - own)

    @property
    def symptom_correction(self) -> Correction:
        """The declared correction of symptoms; Holm's if it was declared after results were there."""
        return "holm" if self.late("symptoms") else self.plan.symptom_correction

    @cached_property
    def levels(self) -> Levels:
        """Levels at which the sentences of the report claim something."""
        return levels_of(self.plan, self.primary_settings.every)

    def ends_by_budget(self, arm: str) -> bool:
        """Whether runs of the arm end by a budget, so that seeds may end at different steps."""
        return any(self.plan.arm(arm).recipe.schedule.budgets)

    @property
    def largest(self) -> float:
        """Largest size of a difference in the score that a report states: that of a fraction is at most 1."""
        return 1.0 if self.score.unit == "fraction" else math.inf

    def size_to_find(self, effect: Effect) -> float:
        """Return the difference that further seeds should detect: the declared margin, or half of the interval.

        Never the observed difference: where there is none, chance alone would promise that a few seeds are enough.
        """
        margin = self.plan.margin
        return margin if margin is not None else effect.estimate.half_width or 0.0

    def seeds_to_find(self, effect: Effect, tests: int) -> int | None:
        """Return the seeds per arm that detect :meth:`size_to_find` with 80% power; ``None`` above the cap.

        Args:
            effect: in the score, with a spread.
            tests: number of tests that the level is divided by.
        """
        e, level = effect.estimate, self.levels.score / max(tests, 1)
        return seeds_needed(self.size_to_find(effect), e.sd, paired=effect.paired, alpha=level) if e.sd else None

    @cached_property
    def equivalence(self) -> Mapping[str, float | None]:
        """Corrected p of "differs from the base by the declared margin or more" by arm; empty without a margin."""
        margin = self.plan.margin
        if margin is None:
            return {}
        tests = {a: e.estimate.equivalence_p(margin) if e and e.supported else None for a, e in self.to_base.items()}
        found = {a: None if p is None else adjusted(p, self.share) for a, p in tests.items()}
        return dict(zip(found, holm([*found.values()]), strict=True))


def _noise_of(tables: Sequence[TableOfScores]) -> Noise | None:
    """Return the standard error from single answers alone, with its degrees of freedom; ``None`` if they all agree."""
    from paribus.stats.problems import rest_alone

    if any(min(t.shape) < 2 for _, t in tables) or not (rest := rest_alone(tables)).variance > 0:
        return None
    return math.sqrt(float(rest.variance)), float(rest.df)
