"""Ceiling or efficiency: a sigmoid through the curve of each arm, against steps, tokens and device time.

The curve of an arm is the mean over its finished runs at the evaluations that all of them have. Seeds remain the unit:
leaving out one seed at a time gives Tukey's pseudo-values (jackknife: Miller 1974, Biometrika 61), one number a seed,
so that intervals, pairs and corrections are those of all other tables. The interval of a ceiling adds the profile
interval of the fit to the spread of the seeds; that of a cost is never narrower than the gap of evaluations implies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from paribus.report.analysis.analysis import MIN_SEEDS, Analysis, Effect, Values, contrast, corrected
from paribus.report.analysis.measures import series
from paribus.report.inputs import RunData
from paribus.stats.intervals import Estimate, Noise, mean_interval
from paribus.stats.multiple_testing import at_look
from paribus.stats.sigmoid import FEWEST_POINTS, MOST_POINTS, Sigmoid, fit_sigmoid, thinned

Axis = Literal["steps", "tokens", "time"]
AXES: tuple[Axis, ...] = ("steps", "tokens", "time")


@dataclass(frozen=True, kw_only=True)
class ArmFit:
    """The fits of one arm on one axis.

    Attributes:
        whole: through the mean over all seeds; ``None`` if there are too few points or nothing varies.
        without: the same with one seed left out; empty below :data:`~.analysis.MIN_SEEDS` seeds.
        points: evaluations that all finished runs have.
        last: cost of the last of them.
        end: fitted value there.
    """

    whole: Sigmoid | None
    without: Mapping[int, Sigmoid | None]
    points: int
    last: float
    end: float

    @property
    def why(self) -> str:
        """Why the curve does not identify a ceiling; empty if it does."""
        if self.points < FEWEST_POINTS:
            return f"{self.points} evaluations that all its runs have, fewer than {FEWEST_POINTS}"
        if self.whole is None:
            return "its score does not vary"
        if any(fit is None or not math.isfinite(fit.ceiling) for fit in self.without.values()):
            return "without one of its seeds nothing can be fitted"
        return self.whole.why

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

    def fit(self, arm: str, axis: Axis = "steps") -> ArmFit:
        """Return the fits of an arm on an axis."""
        if (arm, axis) not in self._fits:
            self._fits[arm, axis] = self._fitted(arm, axis)
        return self._fits[arm, axis]

    def _fitted(self, arm: str, axis: Axis) -> ArmFit:
        runs = [r for r in self.analysis.runs(arm) if r.outcome == "finished"]
        curves = {r.seed: self._curve(r, axis) for r in runs}
        steps = sorted(set.intersection(*(set(c) for c in curves.values()))) if curves else []
        if len(steps) < FEWEST_POINTS:
            return ArmFit(whole=None, without={}, points=len(steps), last=math.nan, end=math.nan)
        rows = {seed: thinned(*_columns(curve, steps)) for seed, curve in curves.items()}
        whole = self._through([*rows.values()])
        without: dict[int, Sigmoid | None] = {}
        if len(rows) >= MIN_SEEDS and whole is not None:
            without = {seed: self._through([r for s, r in rows.items() if s != seed]) for seed in rows}
        last = math.fsum(x[-1] for x, _ in rows.values()) / len(rows)
        end = whole.start + (whole.ceiling - whole.start) * whole.reached if whole else math.nan
        return ArmFit(whole=whole, without=without, points=len(steps), last=last, end=end)

    def _through(self, rows: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Sigmoid | None:
        """Return the fit to the mean of these runs: costs and scores of each."""
        xs, ys = zip(*rows, strict=True)
        return fit_sigmoid(_mean(xs), _mean(ys), better=self.better)

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

    def lost(self, arm: str) -> int:
        """Return the runs of an arm that failed or were stopped: none of them reached any score."""
        return sum(r.outcome in ("failed", "stopped_early") for r in self.analysis.runs(arm))

    def ceiling(self, arm: str) -> Estimate | None:
        """Return the ceiling of an arm, with its interval from three seeds on; ``None`` if it is not identified."""
        fit = self.fit(arm)
        if fit.why or fit.whole is None:
            return None
        values = fit.by_seed(lambda f: f.ceiling)
        if not values:
            n = sum(r.outcome == "finished" for r in self.analysis.runs(arm))
            return Estimate(value=fit.whole.ceiling, n=n)
        seeds = mean_interval([*values.values()])
        both = math.hypot(fit.whole.error, seeds.se or 0.0), float(len(values) - 1)  # the form errs in all seeds alike
        return at_look(mean_interval([*values.values()], both), self.analysis.share)

    @cached_property
    def level(self) -> float | None:
        """Score at half of what the base gained; ``None`` if the curve of the base does not rise."""
        fit = self.fit(self.analysis.plan.base)
        if fit.whole is None or self.better * (fit.end - fit.whole.start) <= 0 or "beyond its noise" in fit.whole.why:
            return None
        return (fit.whole.start + fit.end) / 2

    def cost(self, arm: str, axis: Axis = "steps") -> float | None:
        """Return the cost at which the mean curve of an arm reaches :attr:`level`; ``None`` if it does not."""
        fit = self.fit(arm, axis)
        if self.level is None or fit.whole is None:
            return None
        cost = fit.whole.cost_of(self.level)
        return cost if 0 < cost <= fit.last else None

    @cached_property
    def effects(self) -> Mapping[tuple[str, str], Effect | None]:
        """Arm and ``ceiling`` or an axis to its difference from the base, corrected over all of them.

        Of an axis: the logarithm of the cost of :attr:`level`.
        """
        others = [arm for arm in self.arms if arm != self.analysis.plan.base]
        keys = [(arm, what) for arm in others for what in ("ceiling", *AXES)]
        found = [self._ceiling_effect(arm) if what == "ceiling" else self._cost_effect(arm, what) for arm, what in keys]
        late = self.analysis.late_arms
        each = [e and replace(e, exploratory=arm in late) for (arm, _), e in zip(keys, found, strict=True)]
        return dict(zip(keys, corrected(each), strict=True))

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
        if self.lost(arm) or self.lost(base) or self.cost(arm, where) is None or self.cost(base, where) is None:
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
