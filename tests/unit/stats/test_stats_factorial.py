"""Fits to factorials of which runs are missing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from paribus.stats.factorial import fit_pairs, shapley_weights
from paribus.stats.intervals import difference_interval
from paribus.stats.problems import rest_alone

TRICKS = "abc"
CELLS = {
    "".join(c) or "none": [frozenset(c)] for n in range(len(TRICKS) + 1) for c in itertools.combinations(TRICKS, n)
}


def effect(trick: str) -> dict[str, float]:
    """Weights of a main effect."""
    return {arm: (1 if trick in on else -1) / 4 for arm, (on,) in CELLS.items()}


def interaction(first: str, second: str) -> dict[str, float]:
    """Weights of an interaction of two."""
    return {arm: (1 if (first in on) == (second in on) else -1) / 2 for arm, (on,) in CELLS.items()}


def shapley(trick: str) -> dict[str, float]:
    """Weights of a Shapley value."""
    by_cell = shapley_weights(TRICKS)[trick]
    return {arm: by_cell[on] for arm, (on,) in CELLS.items()}


def drawn(rng: np.random.Generator, block: float = 1.0) -> dict[str, dict[int, float]]:
    """Scores of three seeds without effects, by arm, with what the runs of a seed share."""
    shared = rng.normal(0, block, 3)
    return {arm: {s: float(shared[s] + rng.normal()) for s in range(3)} for arm in CELLS}


@pytest.mark.parametrize("paired", [True, False])
def test_with_all_runs_effects_are_contrasts(paired: bool) -> None:
    """Main effects, interactions and Shapley values of arms' means, to 1e-12."""
    scores = drawn(np.random.default_rng(1))
    means = {a: math.fsum(v.values()) / 3 for a, v in scores.items()}
    triple = sum((-1) ** (3 - len(on)) * means[a] for a, (on,) in CELLS.items())
    scores["abc"] = {s: v - triple for s, v in scores["abc"].items()}  # a fit would leave it out of Shapley values
    means = {a: math.fsum(v.values()) / 3 for a, v in scores.items()}
    fit = fit_pairs(CELLS, scores, paired=paired)
    assert fit is not None
    assert fit.df == 24 - 7 - (2 if paired else 0)
    for weights in (effect("a"), effect("c"), interaction("a", "b"), shapley("b")):
        found = fit.contrast(weights)
        assert found is not None
        assert found.value == pytest.approx(sum(w * means[a] for a, w in weights.items()), abs=1e-12)
        assert found.n == 3


def test_a_hand_made_fit() -> None:
    """Two tricks, two seeds, a run lost: value, spread and degrees of freedom as the normal equations give them."""
    cells = {"none": [()], "a": ["a"], "b": ["b"]}
    scores = {"none": {0: 1.0, 1: 2.0, 2: 2.5}, "a": {0: 3.0, 1: 3.5}, "b": {0: 0.5, 1: 2.0, 2: 1.0}}
    fit = fit_pairs(cells, scores, paired=True)
    assert fit is not None
    rows = [(arm, seed) for arm, v in scores.items() for seed in v]
    design = np.array([[arm == "a", arm == "b", *(seed == s for s in range(3))] for arm, seed in rows], float)
    y = np.array([scores[arm][seed] for arm, seed in rows])
    inverse = np.linalg.inv(design.T @ design)
    beta = inverse @ design.T @ y
    sd = math.sqrt(((y - design @ beta) ** 2).sum() / 3)
    found = fit.contrast({"a": 1.0, "none": -1.0})
    assert found is not None
    assert found.value == pytest.approx(beta[0], abs=1e-12)
    assert (found.se, fit.df) == (pytest.approx(sd * math.sqrt(inverse[0, 0])), 3)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 3) * sd * math.sqrt(inverse[0, 0]))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(beta[0]) / found.se, 3))


def test_what_runs_do_not_determine_is_refused() -> None:
    """A lost arm leaves effects of a full factorial, not those of one whose cells are as many as its terms."""
    scores = drawn(np.random.default_rng(2))
    most = fit_pairs(CELLS, scores | {"ab": {}}, paired=True)
    assert most is not None
    assert most.contrast(effect("a")) is not None
    two = {arm: on for arm, on in CELLS.items() if "c" not in on[0]}
    least = fit_pairs(two, {arm: v for arm, v in scores.items() if arm != "ab"}, paired=True)
    assert least is not None
    assert least.contrast({"ab": 0.5, "a": 0.5, "b": -0.5, "none": -0.5}) is None
    assert least.contrast({"a": 1.0, "none": -1.0}) is not None
    one = {arm: {0: v[0]} for arm, v in scores.items()}
    assert fit_pairs(CELLS, one, paired=False) is None  # eight runs, seven terms
    assert fit_pairs(CELLS, {}, paired=True) is None


def test_noise_of_the_evaluation_is_that_of_paired_differences() -> None:
    """With two arms and all runs, the part that belongs to single answers is that of the table of differences."""
    rng = np.random.default_rng(3)
    answers = {arm: {s: rng.random(20) for s in range(4)} for arm in ("none", "a")}
    scores = {arm: {s: float(t.mean()) for s, t in found.items()} for arm, found in answers.items()}
    fit = fit_pairs({"none": [()], "a": ["a"]}, scores, paired=True, answers=answers)
    assert fit is not None
    found = fit.contrast({"a": 1.0, "none": -1.0})
    rest = rest_alone([(1.0, np.array([answers["a"][s] - answers["none"][s] for s in range(4)]))])
    noise = math.sqrt(float(rest.variance)), float(rest.df)
    want = difference_interval([scores["a"][s] - scores["none"][s] for s in range(4)], noise=noise)
    assert found is not None
    assert (found.value, found.low, found.p) == pytest.approx((want.value, want.low, want.p))
    less = {**answers, "a": {s: t for s, t in answers["a"].items() if s}}
    unknown = fit_pairs({"none": [()], "a": ["a"]}, scores, paired=True, answers=less)
    assert unknown is not None
    assert unknown.noise is None


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_fits_cover(paired: bool) -> None:
    """With two runs and an arm lost, 95% intervals of 600 studies without effects hold 0 in 92 to 98% of them."""
    rng, held = np.random.default_rng(4), 0
    weights: Mapping[str, float] = effect("a")
    for _ in range(600):
        scores = drawn(rng, 2.0 * paired) | {"c": {}}
        del scores["ab"][1], scores["none"][0]
        fit = fit_pairs(CELLS, scores, paired=paired)
        found = fit and fit.contrast(weights)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert 0.92 < held / 600 < 0.98
