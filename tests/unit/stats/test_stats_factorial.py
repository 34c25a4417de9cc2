"""Weights of contrasts of factorials of which runs are missing, and Shapley weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest

from paribus.stats.factorial import shapley_weights, weights_where_runs_are_missing
from paribus.stats.intervals import difference_interval

TRICKS = "abc"
CELLS = {
    "".join(c) or "none": [frozenset(c)] for n in range(len(TRICKS) + 1) for c in itertools.combinations(TRICKS, n)
}


def effect(trick: str) -> dict[str, float]:
    """Weights of a main effect."""
    return {arm: (1 if trick in on else -1) / 4 for arm, (on,) in CELLS.items()}


def shapley(trick: str) -> dict[str, float]:
    """Weights of a Shapley value."""
    by_cell = shapley_weights(TRICKS)[trick]
    return {arm: by_cell[on] for arm, (on,) in CELLS.items()}


def total(weights: Mapping[str, float] | None, scores: Mapping[str, float]) -> float:
    """The weighted sum."""
    assert weights is not None
    return math.fsum(w * scores[arm] for arm, w in weights.items())


@pytest.mark.parametrize("weights", [effect("a"), shapley("b")])
def test_with_all_arms_the_weights_stay(weights: Mapping[str, float]) -> None:
    """Nothing is assumed where nothing is missing."""
    assert weights_where_runs_are_missing(CELLS, weights, [*CELLS]) == weights


@pytest.mark.parametrize("lost", [{"ab"}, {"none"}, {"abc"}])
@pytest.mark.parametrize("weights", [effect("a"), effect("c"), shapley("b")])
def test_without_larger_interactions_the_estimate_is_exact(weights: Mapping[str, float], lost: set[str]) -> None:
    """Scores made of main effects and pairs give the contrast of all arms from those that are there."""
    rng = np.random.default_rng(1)
    size = {term: rng.normal() for n in (1, 2) for term in itertools.combinations(TRICKS, n)}
    scores = {arm: 0.3 + sum(v for t, v in size.items() if on >= set(t)) for arm, (on,) in CELLS.items()}
    found = weights_where_runs_are_missing(CELLS, weights, CELLS.keys() - lost)
    assert found is not None
    assert not lost & found.keys()
    assert sum(found.values()) == pytest.approx(0, abs=1e-12)
    assert total(found, scores) == pytest.approx(total(weights, scores), abs=1e-12)


def test_weights_are_those_of_least_squares() -> None:
    """The estimate is that of the normal equations, term by term."""
    rng = np.random.default_rng(2)
    present = [arm for arm in CELLS if arm != "ab"]
    y = {arm: rng.normal() for arm in present}
    terms = [(), *itertools.chain.from_iterable(itertools.combinations(TRICKS, n) for n in (1, 2))]
    signs = {arm: [math.prod(1 if t in on else -1 for t in term) for term in terms] for arm, (on,) in CELLS.items()}
    left, right = np.array([signs[a] for a in present], float), np.array([y[a] for a in present])
    beta = np.linalg.lstsq(left, right, rcond=None)[0]
    found = weights_where_runs_are_missing(CELLS, effect("a"), present)
    assert total(found, y) == pytest.approx(2 * beta[1], abs=1e-12)


def test_what_arms_do_not_determine_is_refused() -> None:
    """A lost arm leaves effects of a full factorial of three, not those of one with as many arms as terms."""
    two = {arm: on for arm, on in CELLS.items() if "c" not in on[0]}
    main = {"ab": 0.5, "a": 0.5, "b": -0.5, "none": -0.5}
    assert weights_where_runs_are_missing(two, main, ["none", "a", "b"]) is None
    assert weights_where_runs_are_missing(two, {"a": 1.0, "none": -1.0}, ["none", "a", "b"]) is not None
    assert weights_where_runs_are_missing(two, main, []) is None


@pytest.mark.parametrize("lost", [{("ab", 0)}, {("ab", 0), ("none", 1)}, {("c", s) for s in range(4)}])
def test_intervals_cover_with_lost_runs(lost: set[tuple[str, int]]) -> None:
    """One number a seed, and t over four seeds: in 92 to 98% of 800 studies without effects the interval holds 0."""
    rng, held = np.random.default_rng(4), 0
    there = [[arm for arm in CELLS if (arm, seed) not in lost] for seed in range(4)]
    by_seed = [weights_where_runs_are_missing(CELLS, effect("a"), arms) for arms in there]
    for _ in range(800):
        scores = [{arm: rng.normal() for arm in CELLS} for _ in range(4)]
        found = difference_interval([total(w, y) for w, y in zip(by_seed, scores, strict=True)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert 0.92 < held / 800 < 0.98


def test_shapley_weights_add_up() -> None:
    """The values of all tricks add up to the full recipe minus the base."""
    rng = np.random.default_rng(3)
    scores = {arm: rng.normal() for arm in CELLS}
    assert sum(total(shapley(t), scores) for t in TRICKS) == pytest.approx(scores["abc"] - scores["none"])
