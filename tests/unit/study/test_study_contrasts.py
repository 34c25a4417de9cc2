"""What designs measure: contrasts and their precision against least squares, aliases by brute force."""

from __future__ import annotations

import random
from itertools import combinations
from math import prod, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.stats.power import detectable_effect, detectable_shift
from paribus.study.contrasts import (
    Contrast,
    aliases_of,
    interactions,
    main_effects,
    order_means,
    resolution_of,
    several_orders,
    tricks_of,
)
from paribus.study.designs import expand
from paribus.study.plan import Row
from paribus.study.precision import detectable, standard_error
from paribus.study.spec import Cumulative, Design, Factorial, Fractional, Pairs

NAMES = tuple("abcdefg")
FRACTIONS = st.tuples(st.integers(3, 7), st.sampled_from([3, 4, 5]))


def rows_of(design: Design, k: int) -> list[Row]:
    """Return the rows of a design over the first k tricks; an arm is the set of its tricks."""
    drafts = expand("d", design, {name: {} for name in NAMES[:k]})
    return [
        Row(design=d.design, kind=d.kind, label=d.label, arm="".join(sorted(d.tricks)), parent=d.parent,
            tricks=d.tricks, changes={})
        for d in drafts
    ]  # fmt: skip


def fraction(k: int, resolution: int) -> list[Row]:
    """Return the rows of a fraction."""
    return rows_of(Fractional(kind="fractional", resolution=resolution), k)  # type: ignore[arg-type]


def estimate(contrast: Contrast, means: dict[str, float]) -> float:
    """Return the contrast of arm means."""
    return sum(w * means[arm] for arm, w in contrast.weights.items())


@given(FRACTIONS, st.integers(2, 6), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_main_effects_and_their_precision_are_those_of_least_squares(size: tuple[int, int], n: int, seed: int) -> None:
    """Regression on the -1 and +1 columns with one indicator a seed gives twice the coefficient and its variance."""
    rows = fraction(*size)
    names = tricks_of(rows)
    dice = random.Random(seed)
    scores = np.array([[dice.gauss(0, 1) for _ in range(n)] for _ in rows])
    columns = np.array([[1.0 if name in row.tricks else -1.0 for name in names] for row in rows])
    design = np.hstack([np.repeat(columns, n, axis=0), np.tile(np.eye(n), (len(rows), 1))])
    fitted = np.linalg.lstsq(design, scores.ravel(), rcond=None)[0]
    inverse = np.linalg.inv(design.T @ design)
    means = {row.arm: float(scores[k].mean()) for k, row in enumerate(rows)}
    for j, contrast in enumerate(main_effects(rows)):
        assert contrast.tricks == (names[j],)
        assert estimate(contrast, means) == pytest.approx(2 * fitted[j], abs=1e-9)
        assert standard_error(contrast, n) == pytest.approx(2 * sqrt(inverse[j, j]), rel=1e-9)


def test_interactions_of_a_factorial_are_the_difference_of_differences() -> None:
    """The effect of one trick grows by the interaction when the other is added; its variance is 16 / (N n)."""
    rows = rows_of(Factorial(kind="factorial"), 3)
    means = {row.arm: 1.0 * ("a" in row.tricks) + 0.5 * ({"a", "b"} <= set(row.tricks)) for row in rows}
    found = {c.name: estimate(c, means) for c in interactions(rows)}
    assert found == pytest.approx({"a x b": 0.5, "a x c": 0.0, "b x c": 0.0})
    assert {c.name: estimate(c, means) for c in main_effects(rows)} == pytest.approx({"a": 1.25, "b": 0.25, "c": 0.0})
    assert standard_error(interactions(rows)[0], 4) == pytest.approx(sqrt(16 / (8 * 4)))


def test_interactions_of_pairs_are_both_less_each_alone() -> None:
    """Each has four weights of one, so twice the standard error of a mean."""
    rows = rows_of(Pairs(kind="pairs"), 3)
    found = interactions(rows)
    assert [c.name for c in found] == ["a x b", "a x c", "b x c"]
    assert found[0].weights == {"ab": 1.0, "a": -1.0, "b": -1.0, "": 1.0}
    assert standard_error(found[0], 4) == pytest.approx(1.0)


@given(FRACTIONS)
@settings(deadline=None, max_examples=20)
def test_aliases_are_what_the_design_matrix_confounds(size: tuple[int, int]) -> None:
    """An alias is a product of fewest columns that is the effect's own column or its negative, with that sign."""
    rows = fraction(*size)
    names = tricks_of(rows)

    def column(tricks: tuple[str, ...]) -> list[int]:
        return [prod(1 if t in row.tricks else -1 for t in tricks) for row in rows]

    for name in names:
        expected: list[str] = []
        for count in range(1, len(names) + 1):
            for other in combinations(names, count):
                sign = {a * b for a, b in zip(column((name,)), column(other), strict=True)}
                if other != (name,) and len(sign) == 1:
                    expected.append(f"{'+' if sign == {1} else '-'} {' x '.join(other)}")
            if expected:
                break
        assert list(aliases_of((name,), rows)) == expected


@pytest.mark.parametrize(("k", "resolution", "count"), [(3, 3, 0), (4, 4, 3), (5, 5, 10), (5, 3, 2), (6, 4, 7)])
def test_pairs_that_are_measured_together_stand_once(k: int, resolution: int, count: int) -> None:
    """Cells less the mean and the main effects bound what can be told apart."""
    rows = fraction(k, resolution)
    assert len(interactions(rows)) == count <= len(rows) - 1 - k
    assert resolution_of(rows) == resolution
    if k == 4:
        assert [(c.name, c.aliases) for c in interactions(rows)] == [
            ("a x b", ("+ c x d",)), ("a x c", ("+ b x d",)), ("a x d", ("+ b x c",)),
        ]  # fmt: skip


def test_the_mean_over_all_orders_is_the_shapley_value() -> None:
    """For a score with one interaction each trick of it gets half."""
    orders = (("a", "b"), ("b", "a"))
    ladders = several_orders(rows_of(Cumulative(kind="cumulative", orders=orders), 2))
    assert [rows[0].design for rows in ladders[0]] == ["d", "d-2"]
    means = {"": 0.0, "a": 1.0, "b": 2.0, "ab": 4.0}
    found = {c.name: estimate(c, means) for c in order_means(ladders[0])}
    assert found == pytest.approx({"a": 1.5, "b": 2.5})


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_a_plain_difference_detects_what_the_power_of_a_t_test_says(n: int) -> None:
    """Without pairing in standard deviations of a score; with it the differences have sqrt(2) of them."""
    plain = Contrast(tricks=(), weights={"x": 1.0, "y": -1.0})
    assert detectable(plain, n, paired=False) == pytest.approx(detectable_effect(n, 1.0, paired=False), rel=1e-3)
    assert detectable(plain, n, paired=True) == pytest.approx(detectable_effect(n, sqrt(2), paired=True), rel=1e-3)
    assert detectable(plain, 1, paired=True) is None


def test_a_shift_needs_a_degree_of_freedom() -> None:
    """One seed has no estimate of the spread."""
    with pytest.raises(ValueError, match="one degree of freedom"):
        detectable_shift(0)
