"""Every arm against the base with one spread for all arms: Dunnett's test, and whether the spreads are alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.analysis.levels import FEWEST_ARMS
from paribus.stats.dunnett import Pooled, dunnett_p, dunnett_quantile, pooled
from paribus.stats.intervals import Estimate
from paribus.stats.multiple_testing import adjusted


@dataclass(frozen=True, kw_only=True)
class OneSpread:
    """The comparisons of a study with its base, if all arms share one spread.

    Attributes:
        spread: pooled over all arms, with the check that it may be pooled.
        by_arm: difference from the base with simultaneous 95% interval and p; empty if the spreads differ too much.
        level: below which p counts (:attr:`.Levels.one_spread`).
    """

    spread: Pooled
    by_arm: Mapping[str, Estimate]
    level: float

    @property
    def different(self) -> tuple[str, ...]:
        """The arms that differ from the base by this test."""
        return tuple(arm for arm, e in self.by_arm.items() if e.p is not None and e.p < self.level)


def one_spread(analysis: Analysis) -> OneSpread | None:
    """Return Dunnett's test of all arms; ``None`` with fewer than three arms, or if seeds differ by arm."""
    spread = _spread(analysis)
    if spread is None:
        return None
    effects = {arm: e for arm, e in analysis.to_base.items() if e is not None and e.supported} if spread.equal else {}
    by_arm = {arm: _at_once(analysis, effect, spread) for arm, effect in effects.items()}
    return OneSpread(spread=spread, by_arm=by_arm, level=analysis.levels.one_spread)


def _spread(analysis: Analysis) -> Pooled | None:
    found = [analysis.values(a.key, analysis.score) for a in analysis.plan.arms]
    counts = {len(v) for v in found}
    if len(found) < FEWEST_ARMS or len(counts) != 1 or min(counts) < MIN_SEEDS:
        return None
    seeds = [sorted(v) for v in found]
    if analysis.paired and any(s != seeds[0] for s in seeds):
        return None
    return pooled([[v[s] for s in order] for v, order in zip(found, seeds, strict=True)], paired=analysis.paired)


def _at_once(analysis: Analysis, effect: Effect, spread: Pooled) -> Estimate:
    """Return a difference with the interval and the p that hold for all arms at once, held to evaluation noise."""
    e, comparisons = effect.estimate, len(analysis.plan.arms) - 1 + analysis.tested_elsewhere
    errors = [(spread.sd * math.sqrt(2 / e.n), spread.df), *([e.noise] if e.noise else [])]
    half = max(dunnett_quantile(comparisons=comparisons, df=round(df), level=e.level) * se for se, df in errors)
    p = max(dunnett_p(e.value / se, comparisons=comparisons, df=round(df)) for se, df in errors)
    p = adjusted(p, analysis.share)
    return replace(e, se=max(se for se, _ in errors), low=e.value - half, high=e.value + half, p=p)
