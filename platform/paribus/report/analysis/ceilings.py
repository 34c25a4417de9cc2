"""Ceiling or efficiency: a sigmoid through the curve of each arm, against steps, tokens and device time.

The curve of an arm is the mean over its runs that finished with a finite score, at the evaluations that all of them
have. The others are lost: with them, an arm is not tested. Seeds remain the unit:
leaving out one seed at a time gives Tukey's pseudo-values (jackknife: Miller 1974, Biometrika 61), one number a seed,
so that intervals, pairs and corrections are those of all other tables. The interval of a ceiling adds the profile
interval of the fit to the spread of the seeds; that of a cost is never narrower than the gap of evaluations implies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect, Values, contrast, corrected
from paribus.report.analysis.measures import diverged, series
from paribus.report.inputs import RunData
from paribus.stats.intervals import Estimate, Noise, mean_interval
from paribus.stats.multiple_testing import at_look
from paribus.stats.sigmoid import FEWEST_POINTS, MOST_POINTS, Sigmoid, fit_sigmoid, thinned

Axis = Literal["steps", "tokens", "time"]
AXES: tuple[Axis, ...] = ("steps", "tokens", "time")


Row = tuple[Sequence[float], Sequence[float]]
"""Costs and scores of a run."""


@dataclass(frozen=True, kw_only=True)
class ArmFit:
    """The fits of one arm on one axis.

    Attributes:
        whole: through the mean over all seeds; ``None`` if there are too few points or nothing varies.
        rows: seed to the costs and scores that enter; empty with too few points.
        fit: makes a fit through the mean of rows.
        runs: runs that the curve is the mean of.
        points: evaluations that all these runs have.
        left_out: evaluations that not all of them have.
        last: cost of the last point.
        end: fitted value there.
    """

    whole: Sigmoid | None
    rows: Mapping[int, Row] = field(repr=False)
    fit: Callable[[Sequence[Row]], Sigmoid | None] = field(repr=False)
    runs: int
    points: int
    left_out: int
    last: float
    end: float

    @cached_property
    def without(self) -> Mapping[int, Sigmoid | None]:
        """The same with one seed left out; empty below :data:`~.analysis.MIN_SEEDS` seeds, or without a fit.

        Made when a number of it is needed: a curve without a ceiling and without a cost has none.
        """
        if len(self.rows) < MIN_SEEDS or self.whole is None:
            return {}
        return {seed: self.fit([r for s, r in self.rows.items() if s != seed]) for seed in self.rows}

    @property
    def why(self) -> str:
        """Why the curve does not identify a ceiling; empty if it does."""
        if not self.runs:
            return "no run finished with a finite score"
        if self.points < FEWEST_POINTS:
            return f"{self.points} evaluations that all its runs have, fewer than {FEWEST_POINTS}"
        if self.whole is None:
            return "its score does not vary"
        if self.whole.why:
            return self.whole.why
        if any(fit is None or not math.isfinite(fit.ceiling) for fit in self.without.values()):
            return "without one of its seeds nothing can be fitted"
        return ""

    def by_seed(self, number: Callable[[Sigmoid], float]) -> Values:
        """Return seed to pseudo-value of a number of the fit; empty if a fit lacks it."""
        n = len(self.without)
        if self.whole is None or any(fit is None for fit in self.without.values()):
            return {}
        whole = number(self.whole)
        found = {s: n * whole - (n - 1) * number(fit) for s, fit in self.without.items() if fit is not None}
        return found if all(map(math.isfinite, found.values())) else {}


class Ceilings:
    """The fits of a study and the comparisons with its base."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.arms = tuple(a.key for a in analysis.plan.arms)
        self.better = -1 if analysis.score.better == "lower" else 1
        self._fits: dict[tuple[str, Axis], ArmFit] = {}
        self._known: dict[tuple[tuple[float, ...], ...], tuple[float, Sigmoid | None]] = {}

    def fit(self, arm: str, axis: Axis = "steps") -> ArmFit:
        """Return the fits of an arm on an axis."""
        if (arm, axis) not in self._fits:
            self._fits[arm, axis] = self._fitted(arm, axis)
        return self._fits[arm, axis]

    def _fitted(self, arm: str, axis: Axis) -> ArmFit:
        runs = self.whole_runs(arm)
        curves = {r.seed: self._curve(r, axis) for r in runs}
        every = {step for run in runs for step in run.recorded.series(self.analysis.score.metric).steps.tolist()}
        steps = sorted(set.intersection(*(set(c) for c in curves.values()))) if curves else []
        rows: dict[int, Row] = {}
        if len(steps) >= FEWEST_POINTS:
            rows = {seed: thinned(*_columns(curve, steps)) for seed, curve in curves.items()}
        whole = self._through([*rows.values()]) if rows else None
        return ArmFit(
            whole=whole,
            rows=rows,
            fit=self._through,
            runs=len(runs),
            points=len(steps),
            left_out=len(every) - len(steps),
            last=math.fsum(x[-1] for x, _ in rows.values()) / len(rows) if rows else math.nan,
            end=whole.start + (whole.ceiling - whole.start) * whole.reached if whole else math.nan,
        )

    def _through(self, rows: Sequence[Row]) -> Sigmoid | None:
        """Return the fit to the mean of these runs; costs that are proportional to others take the fit of these."""
        xs, ys = (_mean(each) for each in zip(*rows, strict=True))
        last = xs[-1]
        if last <= 0:
            return None
        key = tuple(round(x / last, 9) for x in xs), tuple(ys)
        if key not in self._known:
            self._known[key] = last, fit_sigmoid(xs, ys, better=self.better)
        of, found = self._known[key]
        return found and replace(found, middle=found.middle * (last / of))

    def _curve(self, run: RunData, axis: Axis) -> dict[int, tuple[float, float]]:
        """Return step to cost and score, for evaluations with both."""
        points = series(run, self.analysis.score.metric)
        if axis == "steps":
            return {step: (float(step), value) for step, value in points}
        paid, place = self.analysis.paid(run), AXES.index(axis) - 1
        found = {step: (paid[step][place], value) for step, value in points}
        return {step: point for step, point in found.items() if math.isfinite(point[0])}

    def identified(self, arm: str) -> bool:
        """Whether the curve of an arm against steps identifies a ceiling."""
        return not self.fit(arm).why

    def whole_runs(self, arm: str) -> tuple[RunData, ...]:
        """Return the runs of the curve: those that finished, with a finite score at their last evaluation."""
        metric = self.analysis.score.metric
        return tuple(r for r in self.analysis.runs(arm) if r.outcome == "finished" and not diverged(r, metric))

    def lost(self, arm: str) -> tuple[RunData, ...]:
        """Return the runs of an arm that failed, were stopped, or ended without a finite score."""
        metric, runs = self.analysis.score.metric, self.analysis.runs(arm)
        return tuple(r for r in runs if r.outcome in ("failed", "stopped_early") or diverged(r, metric))

    def untested(self, arm: str) -> bool:
        """Whether lost runs, of the arm or of the base, keep it from any test: those left are no fair sample."""
        return bool(self.lost(arm) or self.lost(self.analysis.plan.base))

    def never(self, arm: str) -> int:
        """Return how many lost runs have no evaluation of their own at :attr:`level` or beyond; 0 without a level."""
        level = self.level
        if level is None:
            return 0
        curves = [series(run, self.analysis.score.metric) for run in self.lost(arm)]
        return sum(all(self.better * (value - level) < 0 for _, value in curve) for curve in curves)

    def ceiling(self, arm: str) -> Estimate | None:
        """Return the ceiling of an arm, with its interval from three seeds on; ``None`` if it is not identified."""
        fit = self.fit(arm)
        if fit.why or fit.whole is None:
            return None
        values = fit.by_seed(lambda f: f.ceiling)
        if not values:
            return Estimate(value=fit.whole.ceiling, n=fit.runs)
        seeds = mean_interval([*values.values()])
        both = math.hypot(fit.whole.error, seeds.se or 0.0), float(len(values) - 1)  # the form errs in all seeds alike
        return at_look(mean_interval([*values.values()], both), self.analysis.share)

    @cached_property
    def level(self) -> float | None:
        """Score at half of what the base gained; ``None`` if the curve of the base does not rise."""
        fit = self.fit(self.analysis.plan.base)
        if fit.whole is None or not fit.whole.rises or self.better * (fit.end - fit.whole.start) <= 0:
            return None
        return (fit.whole.start + fit.end) / 2

    def cost(self, arm: str, axis: Axis = "steps") -> float | None:
        """Return the cost at which the mean curve of an arm reaches :attr:`level`; ``None`` if it does not."""
        if self.level is None or (fit := self.fit(arm, axis)).whole is None:
            return None
        cost = fit.whole.cost_of(self.level)
        return cost if 0 < cost <= fit.last else None

    @cached_property
    def effects(self) -> Mapping[tuple[str, str], Effect | None]:
        """Arm and ``ceiling`` or an axis to its difference from the base, corrected over all of them.

        Of an axis: the logarithm of the cost of :attr:`level`. Where runs were lost there is no cost, and a difference
        of ceilings has no p after correction.
        """
        others = [arm for arm in self.arms if arm != self.analysis.plan.base]
        keys = [(arm, what) for arm in others for what in ("ceiling", *AXES)]
        found = [self._ceiling_effect(arm) if what == "ceiling" else self._cost_effect(arm, what) for arm, what in keys]
        late = self.analysis.late_arms
        each = [e and replace(e, exploratory=arm in late) for (arm, _), e in zip(keys, found, strict=True)]
        tested = corrected(None if self.untested(arm) else e for (arm, _), e in zip(keys, each, strict=True))
        return {key: t or e for key, t, e in zip(keys, tested, each, strict=True)}

    @property
    def family(self) -> int:
        """Number of comparisons that p is corrected over."""
        return sum(e is not None and e.p_adjusted is not None for e in self.effects.values())

    def _ceiling_effect(self, arm: str) -> Effect | None:
        ends = [self.fit(each) for each in (arm, self.analysis.plan.base)]
        if any(fit.why for fit in ends):
            return None
        errors = [(fit.whole.error, fit.whole.df) for fit in ends if fit.whole is not None]
        noise = math.hypot(*(error for error, _ in errors)), float(min(df for _, df in errors))
        return self._difference([fit.by_seed(lambda f: f.ceiling) for fit in ends], noise)

    def _cost_effect(self, arm: str, axis: str) -> Effect | None:
        base, where = self.analysis.plan.base, next(a for a in AXES if a == axis)
        if self.untested(arm) or self.cost(arm, where) is None or self.cost(base, where) is None:
            return None
        level = self.level
        assert level is not None  # there is a cost

        def cost(fit: Sigmoid) -> float:
            at = fit.cost_of(level)
            return math.log(at) if 0 < at < math.inf else math.nan

        fits = [self.fit(each, where) for each in (arm, base)]
        gaps = [fit.last / (min(fit.points, MOST_POINTS) - 1) for fit in fits]
        costs = [self.cost(each, where) or gap for each, gap in zip((arm, base), gaps, strict=True)]
        errors = [gap / at / math.sqrt(12) for gap, at in zip(gaps, costs, strict=True)]
        noise = math.hypot(*errors), float(min(fit.points for fit in fits) - 4)  # a gap between evaluations hides it
        return self._difference([fit.by_seed(cost) for fit in fits], noise)

    def _difference(self, ends: Sequence[Values], noise: Noise | None) -> Effect | None:
        if not all(ends):
            return None
        found = contrast([(1.0, ends[0]), (-1.0, ends[1])], paired=self.analysis.paired, noise=noise)
        return found and replace(found, estimate=at_look(found.estimate, self.analysis.share))


def _columns(curve: Mapping[int, tuple[float, float]], steps: Sequence[int]) -> tuple[list[float], list[float]]:
    return [curve[s][0] for s in steps], [curve[s][1] for s in steps]


def _mean(rows: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(value / len(rows) for value in column) for column in zip(*rows, strict=True)]
