"""Looks spend what the published functions let them, and never more than 5% together."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from paribus.stats.intervals import difference_interval
from paribus.stats.multiple_testing import SPENDING_WORDS, at_look, level_at, shares, spent

PUBLISHED = {
    ("obrien_fleming", 3): (3.7103, 2.5114, 1.9930),
    ("obrien_fleming", 5): (4.8769, 3.3569, 2.6803, 2.2898, 2.0310),
    ("pocock", 5): (2.4380, 2.4268, 2.4101, 2.3966, 2.3859),
}
"""Two-sided bounds at 5% for equally spaced looks at normal statistics, as programs for clinical trials tabulate them
(ldbounds: Casper and Perez; DeMets and Lan 1994, Statistics in Medicine 13)."""


def normal_bounds(upto):
    """Return the bounds that spend so much up to each look; recursion of Armitage, McPherson and Rowe 1969."""
    grid = np.linspace(-12, 12, 4001)
    step, density, found, before = grid[1] - grid[0], None, [], 0.0
    for k, total in enumerate(upto, start=1):
        if density is None:
            density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
        else:
            kernel = np.exp(-((grid[:, None] - grid[None, :]) ** 2) / 2) / math.sqrt(2 * math.pi)
            inside = np.abs(grid) < found[-1] * math.sqrt(k - 1)
            density = kernel @ (density * inside) * step

        def above(bound, density=density, k=k):
            return np.interp(bound * math.sqrt(k), grid, np.cumsum(density[::-1])[::-1] * step) * 2

        wanted, before = total - before, total
        found.append(optimize.brentq(lambda b, f=above, w=wanted: f(b) - w, 0.5, 5.2))
    return found


@pytest.mark.parametrize(("spending", "count"), list(PUBLISHED))
def test_what_is_spent_gives_the_published_bounds(spending, count):
    """Lan and DeMets' functions, through the recursion for normal statistics, give the tabulated bounds."""
    found = normal_bounds([spent(k / count, spending) for k in range(1, count + 1)])
    assert np.allclose(found, PUBLISHED[spending, count], atol=0.01)


@pytest.mark.parametrize(("spending", "count"), list(PUBLISHED))
def test_no_look_is_less_strict_than_the_published_bound(spending, count):
    """By Bonferroni's inequality the first bound is the published one, and the rest lie above."""
    ours = [-special.ndtri(0.05 * share / 2) for share in shares(range(1, count + 1), spending)]
    assert ours[0] == pytest.approx(PUBLISHED[spending, count][0], abs=1e-4)
    assert all(mine >= theirs - 1e-4 for mine, theirs in zip(ours, PUBLISHED[spending, count], strict=True))


@given(
    st.sampled_from(list(SPENDING_WORDS)),
    st.lists(st.integers(3, 60), min_size=2, max_size=6, unique=True).map(sorted),
)
@settings(max_examples=30)
def test_shares_add_up_to_one(spending, looks):
    """All looks together spend the 5%, no less and no more, and each some of it."""
    found = shares(looks, spending)
    assert math.isclose(math.fsum(found), 1)
    assert min(found) > 0


def test_a_look_has_wider_intervals_and_larger_p():
    """Interval and p of a look agree about 5%, and one look alone changes nothing."""
    for d in (0.1, 0.3, 0.6):
        one = difference_interval([d, d + 0.2, d - 0.1, d + 0.1], noise=(0.05, 20.0))
        assert at_look(one, 1.0) == one
        look = at_look(one, 0.2)
        assert look.level == pytest.approx(level_at(0.2)) == pytest.approx(0.99)
        assert look.half_width > one.half_width
        assert look.p == pytest.approx(min(1.0, 5 * one.p))
        assert look.separated == (look.p < 0.05)


def test_t_statistics_of_few_seeds_cross_no_more_often_than_declared():
    """Paired t at 3, 5 and 8 seeds without a difference: at most 5% of studies cross at any look."""
    rng = np.random.default_rng(3)
    draws, looks = rng.standard_normal((40_000, 8)), (3, 5, 8)
    for spending in SPENDING_WORDS:
        crossed = np.zeros(len(draws), bool)
        for n, share in zip(looks, shares(looks, spending), strict=True):
            t = draws[:, :n].mean(1) / (draws[:, :n].std(1, ddof=1) / math.sqrt(n))
            crossed |= 2 * special.stdtr(n - 1, -np.abs(t)) < 0.05 * share
        assert 0.03 < crossed.mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(draws))
