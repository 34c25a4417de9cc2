"""The statistics of a study: estimates of arms, differences between them, and their sensitivity to lost runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from paribus.evaluate import HELDOUT
from paribus.report.analysis.grids import grids
from paribus.report.analysis.measures import (
    GENERATED,
    Measure,
    cost_measures,
    counts_of,
    device_seconds,
    evaluation_error,
    last_value,
    meaning_of,
    pass_rates,
    score_measure,
    series,
    start_measure,
    value_of,
)
from paribus.report.inputs import RunData, StudyData
from paribus.stats.intervals import LEVEL, Estimate, Noise, difference_interval, mean_interval, welch_interval
from paribus.stats.multiple_testing import ALPHA, CORRECTIONS, Correction, adjusted, at_look, holm, shares
from paribus.stats.pairing import least_correlation, pooled_correlation
from paribus.stats.power import detectable_effect, seeds_needed, spread_bound
from paribus.stats.sigmoid import FEWEST_POINTS
from paribus.study.contrasts import FACTORIALS
from paribus.study.plan import Plan, Row

if TYPE_CHECKING:
    from paribus.stats.problems import Array, TableOfScores

MIN_SEEDS = 3
"""With fewer seeds there is no interval, no test and no bold."""

FEWEST_ARMS = 3
"""With fewer arms, the base included, there is no test with one spread for all arms."""


SYMPTOMS = 0.2
"""Share of the 5% of a report's claims that symptoms and costs get; with the curves where these can be tested."""

ONE_SPREAD = 0.2
"""Share of the 5% that the count of arms under one spread gets; the other tests of the score share the rest."""


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
        correction: of ``p_adjusted``; ``None`` without a test.
        answers: standard error of one seed's value from the evaluations alone, to round it; ``None`` if unknown.
        exploratory: whether it was declared after results of its arms were there.
    """

    estimate: Estimate
    by_seed: tuple[tuple[int, float], ...]
    paired: bool
    p_adjusted: float | None = None
    correction: Correction | None = None
    answers: float | None = None
    exploratory: bool = False

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
    def untestable(self) -> bool:
        """Whether there are enough seeds, but no spread of seeds or answers that a test could compare with."""
        return self.supported and not self.estimate.sd

    @property
    def detectable(self) -> float | None:
        """Smallest true difference that this study could show, at the upper 80% bound of the spread.

        Few seeds give the spread badly. Where evaluation noise is the larger part it is known from hundreds of answers,
        so its bound is close to it.
        """
        e = self.estimate
        if not self.supported or not e.sd:
            return None
        alpha = ALPHA * (1 - e.level) / (1 - LEVEL)
        seeds = e.n - 1 if self.paired else 2 * (e.n - 1)
        spread = spread_bound(e.sd, e.noise[1] if e.noise and e.se == e.noise[0] else seeds)
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


def corrected(effects: Iterable[Effect | None], by: Correction = "holm", *, more: int = 0) -> list[Effect | None]:
    """Return the effects with p adjusted over those that can be tested, and ``more`` tests elsewhere (Holm only)."""
    found = list(effects)
    p_values = [e.estimate.p if e and e.supported else None for e in found]
    adjusted = holm(p_values, more=more) if by == "holm" else CORRECTIONS[by](p_values)
    return [
        e and replace(e, p_adjusted=p, correction=None if p is None else by)
        for e, p in zip(found, adjusted, strict=True)
    ]


class Analysis:
    """The numbers of a study by arm and measure, each computed once."""

    def __init__(self, data: StudyData) -> None:
        self.data = data
        self.plan = data.plan
        self.evaluate = data.plan.evaluate
        self.score = score_measure(self.evaluate, external=data.plan.external)
        sets = self.evaluate.all_sets
        self.primary_settings = sets.get(self.evaluate.primary_set, sets[HELDOUT])
        self._values: dict[tuple[str, str], Values] = {}
        self._answers: dict[tuple[str, str], Mapping[int, Array]] = {}
        self._effects: dict[tuple[str, str, str], Effect | None] = {}
        self._sets: dict[str, tuple[str, ...]] = {}
        self._paid: dict[tuple[str, int], Mapping[int, tuple[float, float]]] = {}

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
            (s, math.fsum(w * self.values(arm, measure)[s] for arm, w in each.items())) for s, each in weights.items()
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
        return self._from_values(terms, [self.values(arm, measure) for _, arm, measure in terms], paired=paired)

    def _from_values(self, terms: Sequence[Term], values: Sequence[Values], *, paired: bool) -> Effect | None:
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
    def score_level(self) -> float:
        """Level at which a sentence claims a difference in the score.

        A report states several families of tests, each corrected by itself. Their levels add up to :data:`ALPHA`, so
        that at most 5% of the reports of studies without any difference hold a claim.
        """
        designs = {r.design for r in self.plan.rows if r.kind in (*FACTORIALS, "pairs")}
        designs |= {grid.design for grid in grids(self.plan)}
        return (ALPHA - ALPHA * SYMPTOMS - self.one_spread_level) / (1 + len(designs))

    @property
    def symptom_level(self) -> float:
        """Level at which a sentence claims that an arm moves a symptom; see :attr:`score_level`."""
        return ALPHA * SYMPTOMS - self.curve_level

    @property
    def curve_level(self) -> float:
        """Level at which a sentence claims a ceiling or a cost: half of the symptoms' where the plan allows such tests.

        It follows from the plan alone, so that no result moves the levels of the other tests.
        """
        plan = self.plan
        evaluations = max(a.recipe.schedule.steps for a in plan.arms) // max(self.primary_settings.every, 1) + 1
        enough = evaluations >= FEWEST_POINTS and len(plan.seeds) >= MIN_SEEDS and len(plan.arms) > 1
        return ALPHA * SYMPTOMS / 2 if enough else 0.0

    @property
    def one_spread_level(self) -> float:
        """Level at which an arm counts as different under one spread; 0 where too few arms are planned for its test."""
        return ALPHA * ONE_SPREAD if len(self.plan.arms) >= FEWEST_ARMS else 0.0

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
        e, level = effect.estimate, self.score_level / max(tests, 1)
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

        A way of counting that leaves fewer than three seeds gives no verdict. Without one as planned nothing depends.
        """
        found = self.sensitivity(arm)
        planned = found["as planned"]
        verdicts = {_verdict(e) for e in found.values() if e is not None and e.supported}
        return planned is not None and planned.supported and len(verdicts) > 1

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
        found = {n: self._from_values(terms, [c[a] for a in both], paired=self.paired) for n, c in cases.items()}
        if any(not without[a] for a in both):  # nothing but assumed scores is left of an arm
            found |= dict.fromkeys([n for n in cases if n != "as planned"])
        return found

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        """The worst and the best score of any run."""
        scores = [v for run in self.data.runs for _, v in series(run, self.score.metric)]
        ends = min(scores, default=0.0), max(scores, default=0.0)
        return (ends[1], ends[0]) if self.score.better == "lower" else ends


def _noise_of(tables: Sequence[TableOfScores]) -> Noise | None:
    """Return the standard error from single answers alone, with its degrees of freedom; ``None`` if they all agree."""
    from paribus.stats.problems import rest_alone

    if any(min(t.shape) < 2 for _, t in tables) or not (rest := rest_alone(tables)).variance > 0:
        return None
    return math.sqrt(float(rest.variance)), float(rest.df)


def arm_names(plan: Plan) -> Mapping[str, str]:
    """Return a name for each arm that no other arm has.

    A single trick is named as such, a row of a ladder by its place (``ladder 3: ... + token_level``), other arms by
    their label, with the name of their design where two arms have the same.
    """
    first: dict[str, Row] = {}
    single: dict[str, str] = {}
    for row in plan.rows:
        first.setdefault(row.arm, row)
        if row.kind in TRICKS_ONLY and len(row.tricks) == 1:
            single.setdefault(row.arm, row.tricks[0])
    named = {a.key: single.get(a.key) or row_name(plan, first[a.key]) if a.key in first else a.label for a in plan.arms}
    named[plan.base] = plan.arm(plan.base).label
    counts = Counter(named.values())
    return {
        arm: f"{first[arm].design}: {name}" if counts[name] > 1 and arm in first and arm != plan.base else name
        for arm, name in named.items()
    }


TRICKS_ONLY = ("cumulative", "add_one", "pairs", "factorial", "fractional")
"""Designs whose arms are the base with tricks added."""


def row_name(plan: Plan, row: Row) -> str:
    """Return the label of a row; in a ladder with its place, because the row has the tricks above it as well."""
    if row.kind != "cumulative" or row.parent is None:
        return row.label
    place = [r.label for r in plan.rows if r.design == row.design].index(row.label)
    return f"{row.design} {place}: {'... ' if place > 1 else ''}{row.label}"


def _told_apart(effect: Effect) -> bool:
    """Whether the test separates two arms; without noise, any difference does."""
    return effect.confirmed if effect.p_adjusted is not None else effect.estimate.value != 0


def _verdict(effect: Effect) -> int:
    if not effect.separated:
        return 0
    return 1 if effect.estimate.value > 0 else -1
