"""Interquartile mean and probability of improvement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paribus.stats.intervals import better_share, iqm_interval

values = st.lists(st.integers(-20, 20).map(float), min_size=4, max_size=25)


@given(values)
def test_iqm_is_scipys_trimmed_mean(found: list[float]) -> None:
    """The mean after a quarter is cut at each end; the interval is scipy's of the trimmed t test."""
    assert iqm_interval(found).value == pytest.approx(stats.trim_mean(found, 0.25), abs=1e-9)


def test_iqm_interval_is_scipys_trimmed_variance() -> None:
    """The standard error is that of the winsorised sample, as in Tukey and McLaughlin."""
    found = np.random.default_rng(3).normal(0, 1, 12).tolist()
    wins = stats.mstats.winsorize(np.array(found), (0.25, 0.25))
    want = np.sqrt(np.var(wins) * 12 / (6 * 5))
    got = iqm_interval(found)
    assert got.se == pytest.approx(want)
    assert got.half_width == pytest.approx(stats.t.ppf(0.975, 5) * want)
    with pytest.raises(ValueError, match="4 values"):
        iqm_interval([1.0, 2.0, 3.0])


@given(values, values)
def test_better_share_is_mann_whitneys(first: list[float], second: list[float]) -> None:
    """U over the number of pairs, ties half; the other way round it adds up to 1."""
    want = stats.mannwhitneyu(first, second).statistic / (len(first) * len(second))
    assert better_share(first, second) == pytest.approx(want)
    assert better_share(first, second) + better_share(second, first) == pytest.approx(1)
