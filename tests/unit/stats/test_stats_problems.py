"""Where the variance over seeds and problems comes from."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from paribus.stats.problems import Part, Parts, over_problems, parts


def made_up(seeds: int, problems: int, arms: int = 1) -> list[np.ndarray]:
    """Tables of scores."""
    rng = np.random.default_rng(seeds * 100 + problems)
    return [rng.normal(0, 1, (seeds, problems)) + rng.normal(0, 1, (seeds, 1)) for _ in range(arms)]


@pytest.mark.parametrize(("seeds", "problems"), [(2, 2), (3, 7), (5, 40)])
def test_one_table_by_hand(seeds: int, problems: int) -> None:
    """The parts are the mean squares of the two-way table over S Q, by loops; seeds give scipy's standard error."""
    (table,) = made_up(seeds, problems)
    found, mean = parts([(1.0, table)]), table.mean()
    ms_s = problems * sum((row.mean() - mean) ** 2 for row in table) / (seeds - 1)
    ms_q = seeds * sum((column.mean() - mean) ** 2 for column in table.T) / (problems - 1)
    left = [
        (table[s, q] - table[s].mean() - table[:, q].mean() + mean) ** 2 for s in range(seeds) for q in range(problems)
    ]
    ms_e = sum(left) / ((seeds - 1) * (problems - 1))
    got = [found.seeds.variance, found.problems.variance, found.rest.variance]
    assert np.allclose(got, np.array([ms_s, ms_q, ms_e]) / (seeds * problems))
    assert [found.seeds.df, found.problems.df, found.rest.df] == [seeds - 1, problems - 1, (seeds - 1) * (problems - 1)]
    assert found.seeds.variance == pytest.approx(stats.sem(table.mean(1)) ** 2)


def test_sums_of_squares_add_up() -> None:
    """Seeds, problems and rest make the whole sum of squares: nothing is counted twice."""
    (table,) = made_up(4, 9)
    found = parts([(1.0, table)])
    pieces = [p.variance * p.df * table.size for p in (found.seeds, found.problems, found.rest)]
    assert sum(pieces) == pytest.approx(((table - table.mean()) ** 2).sum())


def test_independent_arms_are_welchs() -> None:
    """Two tables give the standard error and degrees of freedom of scipy's Welch test; the weights enter squared."""
    first, second = made_up(3, 11)[0], made_up(5, 11)[0]
    found = parts([(1.0, first), (-1.0, second)])
    want = stats.ttest_ind(first.mean(1), second.mean(1), equal_var=False)
    value = first.mean() - second.mean()
    assert value / np.sqrt(found.seeds.variance) == pytest.approx(want.statistic)
    assert found.seeds.df == pytest.approx(want.df)
    assert parts([(2.0, first)]).rest.variance == pytest.approx(4 * parts([(1.0, first)]).rest.variance)


def test_rounding_is_no_noise() -> None:
    """Seeds that answer every problem alike have no rest, not what rounding leaves, which a test would compare with."""
    gains = np.array([0.0] * 45 + [1.0] * 5 + [0.0] * 50)  # 0.05 is no binary number
    for seeds in range(2, 12):
        one, other = np.array([gains] * seeds), np.array([gains / 3] * seeds)
        assert float(parts([(1.0, one)]).rest.variance) == 0, seeds
        assert float(parts([(1.0, one), (-1.0, other)]).rest.variance) == 0, seeds


def test_many_studies_at_once() -> None:
    """Leading axes are studies: each gives what it gives alone."""
    tables = np.array(made_up(3, 5, arms=4))
    together = parts([(1.0, tables)])
    assert np.allclose(together.rest.variance, [float(parts([(1.0, t)]).rest.variance) for t in tables])


def test_single_answers_give_the_binomial_noise() -> None:
    """Independent answers, one a problem: the rest is p (1 - p) / (S Q), within its sampling error."""
    table = np.random.default_rng(1).binomial(1, 0.3, (5, 2000)).astype(float)
    assert parts([(1.0, table)]).rest.variance == pytest.approx(0.3 * 0.7 / 10_000, rel=0.05)


def test_seeds_and_problems_are_needed() -> None:
    """One seed or one problem has no parts."""
    for shape in ((1, 5), (5, 1)):
        with pytest.raises(ValueError, match="two seeds"):
            parts([(1.0, np.zeros(shape))])


def test_other_problems() -> None:
    """The sum with Satterthwaite's degrees of freedom by hand; where that is too small, the larger part stands."""
    a = lambda v, df: Part(np.asarray(float(v)), np.asarray(float(df)))  # noqa: E731 - short
    got = over_problems(Parts(seeds=a(4, 2), problems=a(3, 29), rest=a(1, 58)))
    assert (float(got.variance), float(got.df)) == pytest.approx((6, 36 / (16 / 2 + 9 / 29 + 1 / 58)))
    got = over_problems(Parts(seeds=a(0.5, 2), problems=a(3, 29), rest=a(2, 58)))
    assert (float(got.variance), float(got.df)) == (3, 29)
