"""Means and differences over training seeds, with Student t intervals.

The unit is the training run: one number per seed. A bootstrap over few seeds is far too narrow (a nominal 95% interval
covers about 72% at three seeds), so all intervals are t intervals; they cover at any n if scores are near normal. If
evaluation noise is known, no interval is narrower than it implies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

LEVEL = 0.95
"""Confidence level of all intervals of a report."""


ROUNDING = 1e-13
"""Values that differ by less are equal: means of the same evaluations, added up in another order."""


Noise: TypeAlias = tuple[float, float]
"""Standard error of a mean or difference from the evaluation alone, and its degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean, or a contrast of means, over seeds.

    Attributes:
        value: the mean or the contrast.
        n: seeds behind it; for an unpaired contrast the smallest number of an arm, for a fit see ``Fit.contrast``.
        sd: standard deviation of one observation: of a score, or of a difference (unpaired: such that
            ``se = sd sqrt(2 / n)``, for two arms the sd of one score). ``None`` below two seeds.
        se: standard error of ``value``; ``None`` below two seeds.
        low: lower end of the interval; ``None`` below two seeds.
        high: upper end; ``None`` below two seeds.
        p: two-sided p value of "the value is 0"; ``None`` below two seeds, for a mean, or without spread over seeds
            and hence without noise to compare with.
        level: confidence level of the interval.
        errors: standard errors with their degrees of freedom; intervals and tests hold for each of them.
        noise: the one of ``errors`` that is evaluation noise; ``None`` if it is unknown.
    """

    value: float
    n: int
    sd: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    level: float = LEVEL
    errors: tuple[Noise, ...] = ()
    noise: Noise | None = None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def separated(self) -> bool:
        """Whether there is an interval of nonzero width that excludes 0."""
        return self.low is not None and self.high is not None and self.low < self.high and self.low * self.high > 0

    def equivalence_p(self, margin: float) -> float | None:
        """Return p of two one-sided t tests of "the value lies outside -margin to margin"; ``None`` without noise.

        Source: Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15: the larger of both p values. It is
        below 5% exactly if the 90% interval lies inside the margin.
        """
        if not self.errors or not all(se > 0 for se, _ in self.errors):
            return None
        from scipy import special

        return max(float(special.stdtr(df, (abs(self.value) - margin) / se)) for se, df in self.errors)


def mean_interval(values: Sequence[float], noise: Noise | None = None) -> Estimate:
    """Return the mean over seeds with ``mean +- t_{n-1} sd / sqrt(n)``; :func:`with_interval` explains ``noise``.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    return replace(difference_interval(values, noise), p=None)


def difference_interval(differences: Sequence[float], noise: Noise | None = None) -> Estimate:
    """Return the mean of differences that are paired by seed, with interval and p of the paired t test.

    Args:
        differences: one per seed, or contrasts of more than two arms.
        noise: evaluation noise, see :func:`with_interval`.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    mean, sd = _moments(differences)
    n = len(differences)
    if sd is None:
        return Estimate(value=mean, n=1)
    return with_interval(mean, n, 1 / n, (sd / math.sqrt(n), n - 1), noise)


def weighted_sum(terms: Iterable[tuple[float, float]]) -> float:
    """Return ``sum weight * value``; 0 if it is no more than rounding leaves of values that are equal."""
    total = math.fsum(weight * value for weight, value in terms)
    return 0.0 if abs(total) <= ROUNDING else total


def band(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Return :func:`mean_interval` for each column of several rows: means, lower ends, upper ends.

    Args:
        rows: finite values, one row per seed, all of one length; for a single seed the ends are its values.
    """
    import numpy as np
    from scipy import special

    table = np.asarray(rows, float)
    n = len(table)
    mean = np.where(np.ptp(table, axis=0) == 0, table[0], table.mean(0))  # exactly no spread, as in _moments
    error = np.sqrt(((table - mean) ** 2).sum(0) / (n - 1) / n) if n > 1 else np.zeros_like(mean)
    half = float(special.stdtrit(n - 1, (1 + LEVEL) / 2)) * error if n > 1 else error
    return mean.tolist(), (mean - half).tolist(), (mean + half).tolist()


def welch_interval(arms: Sequence[tuple[float, Sequence[float]]], noise: Noise | None = None) -> Estimate:
    """Return ``sum_a weight_a mean_a`` with interval and p, for arms whose seeds are not paired.

    Source: Welch 1947, Biometrika 34, for two arms, and Satterthwaite 1946, Biometrics Bulletin 2, for more:
    ``df = (sum v_a)^2 / sum(v_a^2 / (n_a - 1))`` with ``v_a = weight_a^2 s_a^2 / n_a``.

    Args:
        arms: weight and scores of each arm; weights 1 and -1 for a difference.
        noise: evaluation noise, see :func:`with_interval`.

    Raises:
        ValueError: an arm without values, or a value that is not finite.
    """
    moments = [(weight, len(values), *_moments(values)) for weight, values in arms]
    value = weighted_sum((weight, mean) for weight, _, mean, _ in moments)
    n = min(count for _, count, _, _ in moments)
    found = [(weight**2 * sd**2 / count, count - 1) for weight, count, _, sd in moments if sd is not None]
    if len(found) < len(moments):
        return Estimate(value=value, n=n)
    spread = math.fsum(v for v, _ in found)
    df = spread**2 / math.fsum(v**2 / free for v, free in found) if spread else 1.0
    return with_interval(value, n, 2 / n, (math.sqrt(spread), df), noise)


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


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the exact two-sided p of the permutation test of two unpaired samples, over all ways to split them.

    Source: Pitman 1937, Supplement to the Journal of the Royal Statistical Society 4, for the difference of means. The
    smallest value possible is :func:`least_permutation_p`.

    Raises:
        ValueError: an empty sample, or more than :data:`MOST_SPLITS` splits.
    """
    n, m = len(first), len(second)
    if not n or not m or math.comb(n + m, n) > MOST_SPLITS:
        raise ValueError(f"the exact test takes two samples with at most {MOST_SPLITS} splits, got {n} and {m} values")
    import numpy as np

    every = np.array([*first, *second], float)
    every -= every.mean()  # now the sum of one part determines the difference of both means
    splits = np.fromiter(itertools.chain.from_iterable(itertools.combinations(range(n + m), n)), int)
    sums = np.abs(every[splits.reshape(-1, n)].sum(1))
    return float(np.mean(sums >= sums[0] - 1e-12 * np.abs(every).sum()))


MOST_SPLITS = 200_000
"""Maximum number of enumerated splits; 10 and 10 values have fewer."""


def least_permutation_p(n: int, m: int) -> float:
    """Return the smallest p that :func:`permutation_p` can give for n and m values: 0.1 for 3 and 3, 0.029 for 4 and 4.

    With equal numbers the opposite split is equally extreme.
    """
    return (2 if n == m else 1) / math.comb(n + m, n)


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
    """Return the decimals that show one significant digit of the standard error; negative left of the point.

    A standard error of 0.0116 gives 2, so that its mean is printed as 0.63 and not as 0.6312.

    Raises:
        ValueError: the standard error is not positive and finite.
    """
    if not (math.isfinite(se) and se > 0):
        raise ValueError(f"a positive standard error is needed, got {se}")
    return -int(f"{se:.0e}".partition("e")[2])


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    if not values or not all(math.isfinite(v) for v in values):
        raise ValueError(f"finite values are needed, one per seed; got {list(values)}")
    if max(values) - min(values) <= ROUNDING:  # no spread, which rounding in sums and means would hide
        return values[0], 0.0 if len(values) > 1 else None
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def with_interval(value: float, n: int, share: float, seeds: Noise, noise: Noise | None) -> Estimate:
    """Return the estimate, with an interval and a p that hold for the spread over seeds and for the evaluation.

    By luck, three seeds can agree better than the sampling of their evaluations allows. So the half-width is the larger
    of both, each with its own t quantile, and so is p.

    Args:
        value: mean or contrast.
        n: seeds behind it.
        share: square of the standard error over that of one observation.
        seeds: standard error over seeds, and its degrees of freedom.
        noise: the same for evaluation noise alone; ``None`` if it is unknown.
    """
    from scipy import special  # heavy, and a plan does not need it

    errors = (seeds, *([noise] if noise else []))
    half = max(float(special.stdtrit(df, (1 + LEVEL) / 2)) * se for se, df in errors)
    se = max(se for se, _ in errors)
    p = max(float(2 * special.stdtr(df, -abs(value) / e)) if e > 0 else 0.0 for e, df in errors) if se > 0 else None
    return Estimate(
        value=value,
        n=n,
        sd=se / math.sqrt(share),
        se=se,
        low=value - half,
        high=value + half,
        p=p,
        errors=tuple(e for e in errors if e[0] > 0),
        noise=noise,
    )


def iqm_interval(values: Sequence[float]) -> Estimate:
    """Return the interquartile mean with its t interval from winsorised squares.

    Source: Agarwal et al. 2021, arXiv 2108.13264, for the mean of the middle half; the interval is that of Tukey and
    McLaughlin 1963, Sankhya A 25: ``se = sqrt(SS_w / (h (h - 1)))`` with ``h - 1`` degrees of freedom, where ``h``
    values remain after a quarter is cut at each end and ``SS_w`` is the sum of squares after moving the cut ones to the
    nearest that remain.

    Raises:
        ValueError: fewer than four values; nothing would be cut.
    """
    from scipy import special

    if len(values) < 4:
        raise ValueError(f"an interquartile mean needs 4 values or more, got {len(values)}")
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    h, value = len(kept), math.fsum(kept) / len(kept)
    moved = [kept[0]] * cut + kept + [kept[-1]] * cut
    centre = math.fsum(moved) / len(moved)
    se = math.sqrt(math.fsum((v - centre) ** 2 for v in moved) / (h * (h - 1)))
    half = float(special.stdtrit(h - 1, (1 + LEVEL) / 2)) * se
    sd, errors = se * math.sqrt(len(values)), ((se, h - 1),)
    return Estimate(value=value, n=len(values), sd=sd, se=se, low=value - half, high=value + half, errors=errors)


def better_share(after: Sequence[float], before: Sequence[float]) -> float:
    """Return the probability of improvement: the share of all pairs of runs in which the first is higher, ties half.

    Source: Mann and Whitney 1947, Annals of Mathematical Statistics 18: ``U / (n_1 n_2)``; Agarwal et al. 2021.
    """
    wins = math.fsum((a > b) + (a == b) / 2 for a in after for b in before)
    return wins / (len(after) * len(before))
