"""Intervals over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from paribus.stats.intervals import (
    Estimate,
    band,
    correlation,
    decimals_of,
    difference_interval,
    least_permutation_p,
    mean_interval,
    permutation_p,
    sign_flip_p,
    weighted_sum,
    welch_interval,
)
from paribus.stats.multiple_testing import at_look

scores = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=12)


def paired_difference(after: list[float], before: list[float]) -> Estimate:
    """The difference of two paired arms."""
    return difference_interval([a - b for a, b in zip(after, before, strict=True)])


def welch_difference(after: list[float], before: list[float]) -> Estimate:
    """The difference of two arms without pairs."""
    return welch_interval([(1.0, after), (-1.0, before)])


def spread_out(values: list[float]) -> list[float]:
    """The values with a standard deviation that means something."""
    return [v + i for i, v in enumerate(values)] if not spread(values) else values


def spread(values: list[float]) -> bool:
    """Whether the values differ enough for a standard deviation to mean something."""
    return float(np.std(values)) > 1e-3


@given(st.lists(scores, min_size=2, max_size=6))
def test_a_band_is_the_interval_at_each_place(places: list[list[float]]) -> None:
    """Means and ends of all places at once are those of each place alone, without any spread too."""
    seeds = min(map(len, places))
    table = [values[:seeds] for values in places] + [[0.1] * seeds]
    found = list(zip(*band([*zip(*table, strict=True)]), strict=True))
    for values, got in zip(table, found, strict=True):
        one = mean_interval(values)
        assert got == pytest.approx((one.value, one.low, one.high), abs=1e-9)
    assert found[-1] == (0.1, 0.1, 0.1)


@given(scores)
def test_mean_interval_is_scipys(values: list[float]) -> None:
    """Mean, standard error and ends agree with scipy's t interval."""
    assume(spread(values))
    got = mean_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (got.value, got.se) == pytest.approx((np.mean(values), stats.sem(values)))
    assert (got.low, got.high) == pytest.approx((low, high))


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=9))
def test_paired_and_welch_are_scipys(pairs: list[tuple[float, float]]) -> None:
    """Interval and p of both differences agree with scipy's tests."""
    after, before = [round(a, 3) for a, _ in pairs], [round(b, 3) for _, b in pairs]
    assume(spread([a - b for a, b in zip(after, before, strict=True)]) and spread(after) and spread(before))
    for got, want in (
        (paired_difference(after, before), stats.ttest_rel(after, before)),
        (welch_difference(after, before), stats.ttest_ind(after, before, equal_var=False)),
    ):
        ends = want.confidence_interval(0.95)
        assert got.p == pytest.approx(want.pvalue, rel=1e-6, abs=1e-12)
        assert (got.low, got.high) == pytest.approx((ends.low, ends.high), rel=1e-6, abs=1e-9)


@given(scores, st.floats(-5, 5))
def test_paired_difference_ignores_what_seeds_share(values: list[float], shift: float) -> None:
    """A constant shift between arms is found exactly, whatever the spread over seeds, and cannot be tested."""
    after = [v + round(shift, 3) for v in values]
    assert paired_difference(after, values).value == pytest.approx(round(shift, 3), abs=1e-9)
    same = paired_difference(values, values)
    assert (same.value, same.sd, same.p, same.separated) == (0, 0, None, False)


def test_means_of_equal_values_differ_by_nothing() -> None:
    """0.1 as a mean of ten and of fifteen steps differs in the last bit: no difference, in either design of seeds."""
    ten, fifteen = [sum([0.1] * 10) / 10] * 3, [sum([0.1] * 15) / 15] * 3
    assert ten != fifteen
    assert welch_interval([(1, ten), (-1, fifteen)]).value == 0
    assert weighted_sum([(1, ten[0]), (-1, fifteen[0])]) == 0
    assert weighted_sum([(1, 0.5), (-1, 0.25)]) == 0.25


def test_few_seeds() -> None:
    """One seed has no interval and no p; two have the factor 8.98 of their standard deviation, three 2.48."""
    assert mean_interval([0.5]).low is None
    assert paired_difference([0.5], [0.2]).p is None
    two, three = mean_interval([0.0, 1.0]), mean_interval([0.0, 1.0, 2.0])
    assert two.half_width == pytest.approx(8.985 * math.sqrt(0.5), abs=1e-3)
    assert three.half_width == pytest.approx(2.484, abs=1e-3)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_nothing_or_not_finite_is_refused(values: list[float]) -> None:
    """No number is made from no data or from nan."""
    with pytest.raises(ValueError, match="finite"):
        mean_interval(values)


@given(scores, st.floats(0.01, 5), st.integers(2, 500))
def test_the_noise_of_the_evaluation_is_a_lower_limit(values: list[float], se: float, df: int) -> None:
    """With known noise the interval is the wider of both, p the larger; noise far below the spread changes nothing."""
    assume(spread(values))
    plain, held = difference_interval(values), difference_interval(values, noise=(se, df))
    by_noise = stats.t.ppf(0.975, df) * se
    assert held.half_width == pytest.approx(max(plain.half_width or 0, by_noise))
    assert held.p == pytest.approx(max(plain.p or 0, 2 * stats.t.sf(abs(held.value) / se, df)), abs=1e-9)
    assert held.separated == (held.p is not None and held.p < 0.05) or held.p == pytest.approx(0.05, abs=1e-6)
    assert held.sd is not None
    assert held.sd >= (plain.sd or 0) * (1 - 1e-12)


def test_three_lucky_seeds_do_not_beat_their_evaluation() -> None:
    """Three runs of 200 single answers that agree exactly still have the interval of 600 binomial answers."""
    lucky = mean_interval([0.63, 0.63, 0.63], noise=(math.sqrt(0.63 * 0.37 / 600), 400))
    assert lucky.half_width == pytest.approx(0.0387, abs=1e-3)
    assert mean_interval([0.63, 0.63, 0.63]).half_width == 0


@given(
    st.lists(st.tuples(st.sampled_from([-1.0, -0.5, 0.25, 2.0]), st.builds(spread_out, scores)), min_size=2, max_size=5)
)
def test_contrast_of_many_arms(arms: list[tuple[float, list[float]]]) -> None:
    """Value, standard error and degrees of freedom are those of Satterthwaite's formula, computed with numpy."""
    got = welch_interval(arms)
    parts = np.array([w**2 * np.var(v, ddof=1) / len(v) for w, v in arms])
    df = parts.sum() ** 2 / sum(p**2 / (len(v) - 1) for p, (_, v) in zip(parts, arms, strict=True))
    assert got.value == pytest.approx(sum(w * np.mean(v) for w, v in arms), abs=1e-6)
    assert got.errors[0] == pytest.approx((math.sqrt(parts.sum()), df))
    assert got.half_width == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(parts.sum()))


@given(scores, st.floats(0.1, 50))
def test_equivalence_is_two_one_sided_tests(values: list[float], margin: float) -> None:
    """P is the larger of scipy's one-sided tests, below 5% exactly where the 90% interval lies inside the margin."""
    assume(spread(values))
    p = difference_interval(values).equivalence_p(margin)
    above = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert p == pytest.approx(max(above, below), abs=1e-9)
    ends = at_look(difference_interval(values), 2.0)  # at 90%
    assert ends.low is not None
    assert ends.high is not None
    assume(abs(p - 0.05) > 1e-6)
    assert (p < 0.05) == (-margin < ends.low and ends.high < margin)


def test_equivalence_needs_noise() -> None:
    """Without any noise nothing is tested."""
    assert difference_interval([0.0, 0.0, 0.0]).equivalence_p(0.1) is None
    assert difference_interval([0.0]).equivalence_p(0.1) is None


@pytest.mark.parametrize(("n", "smallest"), [(2, 0.5), (3, 0.25), (4, 0.125), (5, 0.0625), (6, 0.03125)])
def test_smallest_sign_flip_p(n: int, smallest: float) -> None:
    """With all differences of one sign the exact p is 2^(1-n), the smallest there is."""
    assert sign_flip_p([0.1 * (i + 1) for i in range(n)]) == smallest


@given(st.lists(st.integers(-9, 9), min_size=3, max_size=7))
def test_sign_flip_p_is_scipys_exact_permutation(differences: list[int]) -> None:
    """Enumeration agrees with scipy's exact permutation test of the paired kind."""
    want = stats.permutation_test(
        (np.array(differences, float), np.zeros(len(differences))),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    got = sign_flip_p([float(d) for d in differences])
    assert got == pytest.approx(min(1.0, want.pvalue))


@pytest.mark.parametrize(("n", "smallest"), [(2, 1 / 3), (3, 0.1), (4, 1 / 35), (5, 1 / 126)])
def test_smallest_permutation_p(n: int, smallest: float) -> None:
    """Where one arm lies wholly above the other there is no smaller p; with unequal numbers one split alone has it."""
    first, second = [0.1 * i for i in range(n)], [9 + 0.2 * i for i in range(n)]
    assert permutation_p(first, second) == permutation_p(second, first) == least_permutation_p(n, n)
    assert least_permutation_p(n, n) == pytest.approx(smallest)
    assert (
        permutation_p(first, [*second, 9.1])
        == least_permutation_p(n, n + 1)
        == pytest.approx(1 / math.comb(2 * n + 1, n))
    )


@settings(max_examples=40)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=5), st.lists(st.integers(-9, 9), min_size=2, max_size=5))
def test_permutation_p_is_scipys_over_all_splits(first: list[int], second: list[int]) -> None:
    """Enumeration agrees with scipy's exact test of the size of the difference of means, ties included."""
    want = stats.permutation_test(
        (np.array(first, float), np.array(second, float)),
        lambda x, y, axis: np.round(np.abs(np.mean(x, axis=axis) - np.mean(y, axis=axis)), 9),
        alternative="greater",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert permutation_p([*map(float, first)], [*map(float, second)]) == pytest.approx(want.pvalue)


def test_too_many_splits_are_refused() -> None:
    """Ten and ten values are enumerated, eleven and ten are not; an arm without values has no test."""
    assert permutation_p([0.0] * 10, [*map(float, range(10))]) < 0.001
    for first, second in (([0.0] * 11, [1.0] * 10), ([], [1.0])):
        with pytest.raises(ValueError, match="at most 200000 splits"):
            permutation_p(first, second)


@pytest.mark.parametrize(
    ("se", "decimals"), [(0.0116, 2), (0.00996, 2), (0.0949, 2), (0.951, 0), (0.4, 1), (3.0, 0), (2130.0, -3)]
)
def test_decimals_keep_one_digit_of_the_standard_error(se: float, decimals: int) -> None:
    """Hand values, with the carry of 0.00996 to 0.01."""
    assert decimals_of(se) == decimals


def test_correlation() -> None:
    """Agrees with numpy, and is missing without spread or with two pairs."""
    assert correlation([1, 2, 4], [2, 1, 5]) == pytest.approx(np.corrcoef([1, 2, 4], [2, 1, 5])[0, 1])
    assert correlation([1, 1, 1], [1, 2, 3]) is None
    assert correlation([1, 2], [1, 2]) is None


@pytest.mark.parametrize("n", [3, 5])
def test_coverage(n: int) -> None:
    """Over 2,000 simulated studies a 95% interval covers the truth in 95%, within the error of the simulation."""
    generator = np.random.default_rng(20261121)
    hits = {"mean": 0, "paired": 0, "welch": 0}
    for _ in range(2000):
        block = generator.normal(0, 1, n)
        before, after = (0.5 + block + generator.normal(0, s, n) for s in (1.0, 1.5))
        estimates = {
            "mean": (mean_interval(before.tolist()), 0.5),
            "paired": (paired_difference(after.tolist(), before.tolist()), 0.0),
            "welch": (welch_difference((after - block).tolist(), (before - block).tolist()), 0.0),
        }
        for name, (estimate, truth) in estimates.items():
            assert estimate.low is not None
            assert estimate.high is not None
            hits[name] += estimate.low <= truth <= estimate.high
    margin = 3.5 * math.sqrt(0.95 * 0.05 / 2000)
    assert all(abs(h / 2000 - 0.95) < margin + (0.02 if name == "welch" else 0) for name, h in hits.items()), hits
