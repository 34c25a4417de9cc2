"""A difference of arms in one measure, with interval, p and correction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from paribus.stats.intervals import LEVEL, Estimate, Noise, difference_interval, weighted_sum, welch_interval
from paribus.stats.multiple_testing import ALPHA, CORRECTIONS, Correction, holm
from paribus.stats.power import detectable_effect, spread_bound

MIN_SEEDS = 3
"""With fewer seeds there is no interval, no test and no bold."""

Values: TypeAlias = Mapping[int, float]
"""Seed to number."""


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
        by_seed = tuple((s, weighted_sum((weight, values[s]) for weight, values in arms)) for s in seeds)
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
