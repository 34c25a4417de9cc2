"""Many arms against one: pooled spread, its check, Dunnett."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from paribus.stats.dunnett import UNEQUAL, dunnett_p, dunnett_quantile, pooled, ratio_p


@pytest.mark.parametrize(
    ("df", "points"),
    [
        (5, (2.57, 3.03, 3.29, 3.48, 3.62)),
        (10, (2.23, 2.57, 2.76, 2.89, 2.99)),
        (10**6, (1.96, 2.21, 2.35, 2.44, 2.51)),
    ],
)
def test_quantiles_are_dunnetts_table(df: int, points: tuple[float, ...]) -> None:
    """Two-sided 5% points for 1 to 5 arms as published in Dunnett 1964, Biometrics 20, table II."""
    for comparisons, point in enumerate(points, 1):
        assert dunnett_quantile(comparisons=comparisons, df=df) == pytest.approx(point, abs=0.006)


def test_one_arm_is_students_t() -> None:
    """With one comparison nothing is corrected."""
    for t in (0.0, 1.0, 2.5, 9.0):
        assert dunnett_p(t, comparisons=1, df=7) == pytest.approx(2 * stats.t.sf(t, 7), abs=1e-5)


def test_p_is_scipys_dunnett() -> None:
    """Unpaired arms give the p values of scipy's test, which integrates by quasi Monte Carlo."""
    rng = np.random.default_rng(5)
    control, *arms = (rng.normal(m, 1, 6) for m in (0.0, 0.3, 1.2, 2.5))
    want = stats.dunnett(*arms, control=control, rng=np.random.default_rng(1)).pvalue
    spread = pooled([[*control], *([*a] for a in arms)], paired=False)
    assert spread is not None
    ts = [(a.mean() - control.mean()) / (spread.sd * math.sqrt(2 / 6)) for a in arms]
    got = [dunnett_p(t, comparisons=3, df=spread.df) for t in ts]
    assert got == pytest.approx(list(want), abs=2e-3)


def test_pooled_spread() -> None:
    """Unpaired: the root of the mean variance. Paired: what least squares leaves beside arms and seeds."""
    table = np.random.default_rng(2).normal(0, 1, (4, 5)) + np.arange(5)
    free, paired = pooled(table.tolist(), paired=False), pooled(table.tolist(), paired=True)
    assert free is not None
    assert paired is not None
    assert free.sd == pytest.approx(math.sqrt(table.var(1, ddof=1).mean()))
    assert free.ratio == pytest.approx(table.std(1).max() / table.std(1).min())
    arms, seeds = np.indices(table.shape).reshape(2, -1)
    design = np.column_stack([arms == a for a in range(4)] + [seeds == s for s in range(1, 5)]).astype(float)
    left = np.linalg.lstsq(design, table.ravel(), rcond=None)[1][0]
    assert (paired.sd, paired.df) == (pytest.approx(math.sqrt(left / 12)), 12)


def test_check_of_equal_spreads() -> None:
    """An arm with a hundredfold spread is refused, equal ones are not; without spread there is nothing to pool."""
    same = np.random.default_rng(4).normal(0, 1, (4, 5))
    wild = same * np.array([[1], [1], [1], [100]])
    for paired in (True, False):
        ok, refused = pooled(same.tolist(), paired=paired), pooled(wild.tolist(), paired=paired)
        assert ok is not None
        assert refused is not None
        assert ok.equal
        assert not refused.equal
    assert pooled([[1.0, 1.0], [1.0, 2.0], [3.0, 2.0]], paired=False) is None
    assert pooled([[1.0], [2.0], [3.0]], paired=True) is None
    with pytest.raises(ValueError, match="same number"):
        pooled([[1.0], [2.0, 1.0], [3.0]], paired=True)


@pytest.mark.parametrize(("arms", "df", "point"), [(3, 4, 15.5), (4, 10, 5.67), (5, 20, 3.54), (2, 2, 39.0)])
def test_ratio_is_hartleys_table(arms: int, df: int, point: float) -> None:
    """Upper 5% points of the ratio of variances as published in Pearson and Hartley, Biometrika Tables, table 31."""
    assert ratio_p(math.sqrt(point), arms=arms, df=df) == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize(("arms", "seeds"), [(3, 3), (4, 3)])
def test_equal_spreads_of_paired_arms_are_refused_at_the_level(arms: int, seeds: int) -> None:
    """A quarter of studies with equal spreads, within three standard errors."""
    studies = np.random.default_rng(6).normal(0, 1, (4000, arms, seeds))
    spreads = [pooled(study, paired=True) for study in studies.tolist()]
    refused = [not spread.equal for spread in spreads if spread]
    assert np.mean(refused) == pytest.approx(UNEQUAL, abs=3 * math.sqrt(UNEQUAL * (1 - UNEQUAL) / len(refused)))


def test_ratio_of_two_is_f() -> None:
    """With two arms the ratio is an F test in both directions."""
    for ratio in (1.2, 2.0, 5.0):
        assert ratio_p(ratio, arms=2, df=6) == pytest.approx(2 * stats.f.sf(ratio**2, 6, 6), abs=1e-6)
