"""Corrections for several comparisons, and power."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paribus.stats.multiple_testing import CORRECTIONS, benjamini_hochberg, holm
from paribus.stats.power import CAP, POWER, detectable_effect, power, seeds_for_width, seeds_needed, spread_bound


def test_holm_hand_value() -> None:
    """Four p values: 4 x .01, then 3 x .02, then the running maximum holds 2 x .03 and .04 at .06."""
    assert holm([0.01, 0.04, 0.03, 0.02]) == pytest.approx((0.04, 0.06, 0.06, 0.06))
    assert holm([0.9, None, 0.6]) == (1.0, None, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), max_size=9))
def test_holm_never_lowers_and_keeps_order(p_values: list[float]) -> None:
    """Adjusted values are at least the raw ones, at most m times them, and in the same order."""
    adjusted = holm(p_values)
    pairs = sorted(zip(p_values, adjusted, strict=True))
    for p, a in pairs:
        assert a is not None
        assert p <= a <= min(1.0, len(p_values) * p) + 1e-12
    assert [a for _, a in pairs] == sorted(a for _, a in pairs if a is not None)


@pytest.mark.parametrize("correction", CORRECTIONS.values())
def test_what_is_no_probability_is_refused(correction: Callable[..., object]) -> None:
    """A p value above 1 is an error."""
    with pytest.raises(ValueError, match=r"0\.\.1"):
        correction([1.5])


def test_benjamini_and_hochbergs_own_example() -> None:
    """Their 15 comparisons after myocardial infarction: four are discoveries at 5%, one more than Holm's method finds.

    Benjamini and Hochberg 1995, Journal of the Royal Statistical Society B 57, section 4.1.
    """
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
         0.7590, 1.0]  # fmt: skip
    assert [sum(q < 0.05 for q in correct(p) if q is not None) for correct in (benjamini_hochberg, holm)] == [4, 3]


@given(st.lists(st.none() | st.floats(0, 1), max_size=9))
def test_q_values_are_scipys_and_never_above_holms(p_values: list[float | None]) -> None:
    """They agree with scipy's over the comparisons that have a test, keep their places, and are less strict."""
    tested = [p for p in p_values if p is not None]
    got = benjamini_hochberg(p_values)
    assert [q is None for q in got] == [p is None for p in p_values]
    want = stats.false_discovery_control(tested) if tested else []
    assert [q for q in got if q is not None] == pytest.approx([*want])
    assert all(q <= h + 1e-12 for q, h in zip(got, holm(p_values), strict=True) if q is not None and h is not None)


@pytest.mark.parametrize(
    ("n", "unpaired", "paired"), [(3, 3.07, 3.26), (4, 2.38, 2.13), (5, 2.02, 1.68), (8, 1.51, 1.16), (10, 1.32, 1.00)]
)
def test_detectable_effects(n: int, unpaired: float, paired: float) -> None:
    """Smallest detectable differences in standard deviations, as tabulated for 80% power at two-sided 5%."""
    assert detectable_effect(n, 1.0, paired=False) == pytest.approx(unpaired, abs=0.006)
    assert detectable_effect(n, 1.0, paired=True) == pytest.approx(paired, abs=0.006)


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 64), (1.0, 17), (1.5, 9), (2.0, 6), (3.0, 4)])
def test_seeds_needed_unpaired(effect: float, seeds: int) -> None:
    """Seeds an arm for given effects, as in Cohen's tables."""
    assert seeds_needed(effect, 1.0, paired=False) == seeds


@given(st.floats(0.3, 8), st.booleans())
def test_seeds_needed_is_the_smallest(effect: float, paired: bool) -> None:
    """The returned number reaches the power and one less does not; its detectable effect is at most the effect."""
    n = seeds_needed(effect, 1.0, paired=paired)
    if n is None:
        assert power(effect, CAP, paired=paired) < POWER
        return
    assert power(effect, n, paired=paired) >= POWER
    assert n == 2 or power(effect, n - 1, paired=paired) < POWER
    assert detectable_effect(n, 1.0, paired=paired) <= effect + 1e-6


@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("effect", [0.0, 0.5, 1.2])
def test_power_is_the_noncentral_t(n: int, effect: float) -> None:
    """Agrees with scipy's noncentral t where that is defined; without an effect it is the error rate."""
    critical, shift = stats.t.ppf(0.975, n - 1), effect * n**0.5
    want = stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift) if effect else 0.05
    assert power(effect, n, paired=True) == pytest.approx(want, abs=1e-4)


def test_no_number_of_seeds_shows_nothing() -> None:
    """A difference of zero, or a tiny one, needs more than the cap; a huge one needs two."""
    assert seeds_needed(0.0, 1.0, paired=True) is None
    assert seeds_needed(0.01, 1.0, paired=True) is None
    assert seeds_needed(1000.0, 1.0, paired=True) == 2


def test_no_spread_is_refused() -> None:
    """Power has no meaning without noise."""
    with pytest.raises(ValueError, match="positive"):
        seeds_needed(1.0, 0.0, paired=True)
    with pytest.raises(ValueError, match="two seeds"):
        detectable_effect(1, 1.0, paired=True)


@given(st.floats(0.05, 10), st.booleans())
def test_seeds_for_a_width_are_the_fewest(half: float, paired: bool) -> None:
    """With the returned seeds the t interval is narrow enough, with one less it is not."""

    def reach(n: int) -> float:
        df, se = (n - 1, n**-0.5) if paired else (2 * (n - 1), (2 / n) ** 0.5)
        return float(stats.t.ppf(0.975, df) * se)

    n = seeds_for_width(half, 1.0, paired=paired)
    if n is None:
        assert reach(CAP) > half
        return
    assert reach(n) <= half + 1e-9
    assert n == 2 or reach(n - 1) > half


@pytest.mark.parametrize("df", [2, 4, 18])
def test_the_true_spread_is_below_its_bound_as_often_as_it_says(df: int) -> None:
    """The bound is that of scipy's chi-square, and for three pairs twice what was seen."""
    assert stats.chi2.cdf(df / spread_bound(1.0, df) ** 2, df) == pytest.approx(0.2)
    assert spread_bound(1.0, 2) == pytest.approx(2.117, abs=0.001)
    assert spread_bound(3.0, df) == pytest.approx(3 * spread_bound(1.0, df))
    with pytest.raises(ValueError, match="degrees of freedom"):
        spread_bound(1.0, 0)
