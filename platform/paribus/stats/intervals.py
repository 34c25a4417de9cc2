"""Means and differences over training seeds, with Student t intervals.

The unit is the training run: one number a seed. A bootstrap over few seeds is far too narrow (a nominal 95% interval
covers about 72% at three seeds), so t intervals are used throughout; they cover at any n if scores are near normal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
"""Confidence level of all intervals of a report."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean, or a difference of means, over seeds.

    Attributes:
        value: the mean or the difference.
        n: seeds behind it; of an unpaired difference the smaller of the two numbers.
        sd: sample standard deviation of one observation: of a score, or of a difference (unpaired: the root of the
            mean of the two variances, the sd of one score). ``None`` below two seeds.
        se: standard error of ``value``; ``None`` below two seeds.
        low: lower end of the interval; ``None`` below two seeds.
        high: upper end; ``None`` below two seeds.
        p: two-sided p value of "the value is 0"; ``None`` below two seeds, for a mean, or where there is no spread
            over seeds and hence no noise to compare with.
        level: confidence level of the interval.
    """

    value: float
    n: int
    sd: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    level: float = LEVEL

    @property
    def half_width(self) -> float | None:
        """Half the length of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def separated(self) -> bool:
        """Whether there is an interval, with a length, that leaves out 0."""
        return self.low is not None and self.high is not None and self.low < self.high and self.low * self.high > 0


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the mean over seeds with ``mean +- t_{n-1} sd / sqrt(n)``.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    mean, sd = _moments(values)
    if sd is None:
        return Estimate(value=mean, n=1, level=level)
    se = sd / math.sqrt(len(values))
    return _with_interval(mean, len(values), sd, se, len(values) - 1, level, test=False)


def paired_difference(after: Sequence[float], before: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the mean of ``after - before``, seed by seed, with interval and p of the paired t test.

    Args:
        after: scores of one arm, one a seed.
        before: scores of the other arm, in the same order of seeds.
        level: confidence level.

    Raises:
        ValueError: no values, different lengths, or one that is not finite.
    """
    if len(after) != len(before):
        raise ValueError(f"pairs are needed: {len(after)} values against {len(before)}")
    mean, sd = _moments([a - b for a, b in zip(after, before, strict=True)])
    if sd is None:
        return Estimate(value=mean, n=1, level=level)
    se = sd / math.sqrt(len(after))
    return _with_interval(mean, len(after), sd, se, len(after) - 1, level, test=True)


def welch_difference(after: Sequence[float], before: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the difference of two means with Welch's interval and p, for arms whose seeds are not paired.

    Source: Welch 1947, Biometrika 34: ``df = (v_1 + v_2)^2 / (v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1))`` with
    ``v_i = s_i^2 / n_i``.

    Raises:
        ValueError: an arm without values, or a value that is not finite.
    """
    (mean_1, sd_1), (mean_2, sd_2) = _moments(after), _moments(before)
    n = min(len(after), len(before))
    if sd_1 is None or sd_2 is None:
        return Estimate(value=mean_1 - mean_2, n=n, level=level)
    v_1, v_2 = sd_1**2 / len(after), sd_2**2 / len(before)
    spread = v_1 + v_2
    df = spread**2 / (v_1**2 / (len(after) - 1) + v_2**2 / (len(before) - 1)) if spread else 1.0
    sd = math.sqrt((sd_1**2 + sd_2**2) / 2)
    return _with_interval(mean_1 - mean_2, n, sd, math.sqrt(spread), df, level, test=True)


def welch_contrast(cells: Sequence[tuple[float, Sequence[float]]], level: float = LEVEL) -> Estimate:
    """Return a weighted sum of means of arms whose seeds are not paired, with its interval and p.

    Source: Satterthwaite 1946, Biometrics Bulletin 2: ``df = (sum v_i)^2 / sum(v_i^2 / (n_i - 1))`` with
    ``v_i = w_i^2 s_i^2 / n_i``; with the weights 1 and -1 this is :func:`welch_difference`.

    Args:
        cells: weight and scores of each arm.
        level: confidence level.

    Raises:
        ValueError: an arm without values, or a value that is not finite.
    """
    moments = [(w, len(values), *_moments(values)) for w, values in cells]
    value = math.fsum(w * mean for w, _, mean, _ in moments)
    n = min(count for _, count, _, _ in moments)
    spreads = [(w * w * sd * sd / count, count, sd) for w, count, _, sd in moments if sd is not None]
    if len(spreads) < len(moments):
        return Estimate(value=value, n=n, level=level)
    total = math.fsum(v for v, _, _ in spreads)
    df = total**2 / math.fsum(v * v / (count - 1) for v, count, _ in spreads) if total else 1.0
    sd = math.sqrt(math.fsum(s * s for _, _, s in spreads) / len(spreads))
    return _with_interval(value, n, sd, math.sqrt(total), df, level, test=True)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the exact two-sided p of the paired sign-flip test, by enumerating all ``2^n`` signs.

    Source: Fisher 1935, The Design of Experiments, section 21. The smallest value possible is ``2^(1 - n)``: 0.25
    with three pairs, 0.0625 with five.

    Raises:
        ValueError: no differences, or more than 16 of them.
    """
    if not 1 <= len(differences) <= 16:
        raise ValueError(f"the exact test takes 1 to 16 pairs, got {len(differences)}")
    observed = abs(math.fsum(differences))
    tolerance = 1e-12 * math.fsum(abs(d) for d in differences)
    signs = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(math.fsum(s * d for s, d in zip(sign, differences, strict=True))) for sign in signs]
    return sum(s >= observed - tolerance for s in sums) / len(sums)


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's correlation of paired values; ``None`` below three pairs or without spread."""
    if len(first) < 3:
        return None
    (mean_1, sd_1), (mean_2, sd_2) = _moments(first), _moments(second)
    if not sd_1 or not sd_2:
        return None
    products = math.fsum((a - mean_1) * (b - mean_2) for a, b in zip(first, second, strict=True))
    return products / ((len(first) - 1) * sd_1 * sd_2)


def decimals_of(se: float) -> int:
    """Return the decimals at which the standard error keeps one significant digit; negative left of the point.

    A standard error of 0.0116 gives 2, so that its mean is printed as 0.63 and not as 0.6312.

    Raises:
        ValueError: the standard error is not positive and finite.
    """
    if not (math.isfinite(se) and se > 0):
        raise ValueError(f"a positive standard error is needed, got {se}")
    return -int(f"{se:.0e}".partition("e")[2])


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    if not values or not all(math.isfinite(v) for v in values):
        raise ValueError(f"finite values are needed, one a seed; got {list(values)}")
    if min(values) == max(values):  # exactly no spread, which rounding in the mean would hide
        return values[0], 0.0 if len(values) > 1 else None
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _with_interval(value: float, n: int, sd: float, se: float, df: float, level: float, *, test: bool) -> Estimate:
    from scipy import stats  # heavy, and not needed where a report is only planned

    half = float(stats.t.ppf((1 + level) / 2, df)) * se
    p = float(2 * stats.t.sf(abs(value) / se, df)) if test and se > 0 else None
    return Estimate(value=value, n=n, sd=sd, se=se, low=value - half, high=value + half, p=p, level=level)
