"""The pooled correlation of seeds over arms, and the correlation from which pairs help."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from paribus.stats.pairing import least_correlation, pooled_correlation


def test_the_correlation_is_that_of_the_published_example() -> None:
    """Shrout and Fleiss 1979, table 4: ICC(3,1) of six targets and four judges is 0.71."""
    ratings = [[9, 6, 8, 7, 10, 6], [2, 1, 4, 1, 5, 2], [5, 3, 6, 2, 6, 4], [8, 2, 8, 6, 9, 7]]
    assert pooled_correlation(ratings) == pytest.approx(0.7148, abs=1e-4)


def test_what_arms_do_does_not_move_it() -> None:
    """A shift of an arm changes nothing; equal arms correlate fully, and arms without any spread not at all."""
    table = np.random.default_rng(0).normal(size=(5, 4))
    shifted = table + np.arange(5)[:, None]
    assert pooled_correlation(shifted.tolist()) == pytest.approx(pooled_correlation(table.tolist()))
    assert pooled_correlation([[1.0, 2.0, 4.0], [0.0, 1.0, 3.0]]) == pytest.approx(1.0)
    assert pooled_correlation([[1.0, 1.0], [2.0, 2.0]]) is None
    assert pooled_correlation([[1.0], [2.0]]) is None


def test_arms_of_different_lengths_are_refused() -> None:
    """There is no table of seeds by arms then, and none with one arm."""
    for arms in ([[1.0, 2.0], [1.0]], [[1.0, 2.0]]):
        with pytest.raises(ValueError, match="two arms or more"):
            pooled_correlation(arms)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_pairs_help_from_there_on(seeds: int) -> None:
    """Above the limit the mean paired interval of simulated arms is the shorter one, below it the longer one."""
    rng = np.random.default_rng(seeds)
    for r, shorter in ((least_correlation(seeds) + 0.08, True), (least_correlation(seeds) - 0.08, False)):
        common = np.sqrt(r) * rng.normal(size=(40_000, 1, seeds))
        both = common + np.sqrt(1 - r) * rng.normal(size=(40_000, 2, seeds))
        pairs = (both[:, 0] - both[:, 1]).var(1, ddof=1).mean() ** 0.5 * stats.t.ppf(0.975, seeds - 1)
        apart = both.var(2, ddof=1).sum(1).mean() ** 0.5 * stats.t.ppf(0.975, 2 * seeds - 2)
        assert bool(pairs < apart) is shorter
