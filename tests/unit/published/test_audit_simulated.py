"""The verdicts of an audit hold for tables of another model: beta-distributed success rates, binomial responses."""

from __future__ import annotations

import numpy as np
import pytest

from paribus.published.audit import audit
from paribus.published.tables import Published, PublishedRow

TABLES = 1500


def table_of(scores, problems: int, samples: int, **more) -> Published:
    """Return a table with these scores in percent."""
    rows = tuple(PublishedRow(label=str(k), value=100 * float(v), **more) for k, v in enumerate(scores))
    return Published(name="made up", rows=rows, problems=problems, samples=samples)


@pytest.mark.parametrize(("problems", "samples"), [(30, 32), (30, 1), (500, 1)])
@pytest.mark.parametrize("shape", [(0.3, 0.3), (2.0, 5.0), (0.1, 2.0), (50.0, 50.0)])
def test_the_same_problems_again(problems, samples, shape):
    """Four rows with the same rates: at most 5% of tables have a step, and intervals cover 0 in 95% and more."""
    dice = np.random.default_rng(1)
    wrong = covered = 0
    for _ in range(TABLES):
        rates = dice.beta(*shape, size=problems)
        scores = dice.binomial(samples, rates, size=(4, problems)).mean(1) / samples
        steps = audit(table_of(scores, problems, samples)).steps
        wrong += any(step.same_p < 0.05 for step in steps)
        covered += sum(step.same.low <= 0 <= step.same.high for step in steps)
    limit = 0.05 + 3 * (0.05 * 0.95 / TABLES) ** 0.5
    assert wrong / TABLES <= limit
    assert covered / (3 * TABLES) >= 0.95 - 3 * (0.05 * 0.95 / (3 * TABLES)) ** 0.5


@pytest.mark.parametrize("shape", [(0.3, 0.3), (0.05, 0.05), (2.0, 5.0)])
def test_other_problems_like_these(shape):
    """Rows whose rates are drawn independently for each problem, with equal means: the wide interval still holds."""
    dice = np.random.default_rng(2)
    wrong = covered = 0
    for _ in range(TABLES):
        rates = dice.beta(*shape, size=(4, 30))
        scores = dice.binomial(32, rates).mean(1) / 32
        steps = audit(table_of(scores, 30, 32)).steps
        wrong += any(step.like_p < 0.05 for step in steps)
        covered += sum(step.like.low <= 0 <= step.like.high for step in steps)
    assert wrong / TABLES <= 0.05 + 3 * (0.05 * 0.95 / TABLES) ** 0.5
    assert covered / (3 * TABLES) >= 0.95 - 3 * (0.05 * 0.95 / (3 * TABLES)) ** 0.5


def test_a_true_difference_is_found_and_covered():
    """A shift of 10 points on 30 problems with 32 responses exceeds the noise of the same problems nearly always."""
    dice = np.random.default_rng(3)
    found = covered = 0
    for _ in range(TABLES):
        rates = dice.beta(2, 5, size=30) * 0.9
        scores = [dice.binomial(32, r).mean() / 32 for r in (rates, rates + 0.1)]
        (step,) = audit(table_of(scores, 30, 32)).steps
        found += step.reach != "within noise"
        covered += step.same.low <= 10 <= step.same.high
    assert found / TABLES > 0.97
    assert covered / TABLES >= 0.94


def test_seeds_of_a_known_spread():
    """Rows that differ by seeds alone: at most 5% of tables have a step beyond the assumed spread."""
    dice = np.random.default_rng(4)
    tables = (table_of(dice.normal(0.5, 0.02, size=5), 1000, 1) for _ in range(TABLES))
    wrong = sum(any(step.seeds[0].exceeds for step in audit(table, [2.0]).steps) for table in tables)
    assert wrong / TABLES <= 0.05 + 3 * (0.05 * 0.95 / TABLES) ** 0.5
