"""Sigmoids through curves: parameters that are found again, what identifies a ceiling, and any size of a score."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import curve_fit

from paribus.stats.sigmoid import MOST_POINTS, fit_sigmoid, thinned

STEPS = [4.0 * k for k in range(26)]


def sigmoid(c: float, start: float, top: float, middle: float, slope: float) -> float:
    """The form as the paper writes it."""
    return start + (top - start) / (1 + (middle / c) ** slope) if c else start


def noisy(curve: Callable[[float], float], sd: float = 0.01, seed: int = 1) -> list[float]:
    """A curve with normal noise."""
    dice = random.Random(seed)
    return [curve(c) + dice.gauss(0, sd) for c in STEPS]


@pytest.mark.parametrize("middle", [8.0, 20.0])
@pytest.mark.parametrize("slope", [1.5, 3.0])
def test_a_sigmoid_is_found_again(middle: float, slope: float) -> None:
    """Without noise all four parameters come back."""
    found = fit_sigmoid(STEPS, [sigmoid(c, 0.2, 0.7, middle, slope) for c in STEPS])
    assert found is not None
    assert (found.start, found.ceiling) == pytest.approx((0.2, 0.7), abs=0.003)
    assert (found.middle, found.slope) == pytest.approx((middle, slope), rel=0.02)


def test_no_optimiser_finds_a_better_curve() -> None:
    """Scipy's least squares, started at the truth, is at most 0.1% better."""
    values = noisy(lambda c: sigmoid(c, 0.2, 0.6, 18, 2), 0.02)
    found = fit_sigmoid(STEPS, values)
    assert found is not None

    def form(x: np.ndarray, start: float, top: float, middle: float, slope: float) -> np.ndarray:
        return np.array([sigmoid(c, start, top, middle, slope) for c in x])

    best, _ = curve_fit(form, STEPS, values, p0=(0.2, 0.6, 18, 2))
    least = float(((form(np.array(STEPS), *best) - values) ** 2).sum())
    assert found.noise**2 * len(STEPS) <= least * 1.001
    assert found.ceiling == pytest.approx(best[1], abs=0.002)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1.0, 1e200, 1e300])
def test_scores_of_any_size(scale: float) -> None:
    """A fit of scaled scores is the scaled fit, and costs may be of any size as well."""
    values = noisy(lambda c: sigmoid(c, 0.2, 0.6, 15, 2))
    plain = fit_sigmoid(STEPS, values)
    found = fit_sigmoid([c * 1e9 for c in STEPS], [v * scale for v in values])
    assert plain is not None
    assert found is not None
    assert plain.identified
    assert found.why == plain.why
    assert [found.ceiling / scale, found.low / scale, found.high / scale, found.middle / 1e9] == pytest.approx(
        [plain.ceiling, plain.low, plain.high, plain.middle], rel=1e-6
    )
    assert plain.low < 0.6 < plain.high


@pytest.mark.parametrize(
    ("curve", "why"),
    [
        (lambda c: 0.2 + 0.004 * c, ""),
        (lambda c: 0.2 + 0.1 * math.sqrt(c / 10), ""),
        (lambda c: 0.3, "does not rise beyond its noise"),
        (lambda c: 0.6 - 0.003 * c, "does not rise beyond its noise"),
        (lambda c: 0.2 + 0.4 * min(c / 30, 1) - 0.4 * max(0, c - 60) / 40, ""),
    ],
)
def test_curves_without_a_ceiling(curve: Callable[[float], float], why: str) -> None:
    """Lines, roots, constants, and curves that fall or collapse identify none, with the reason."""
    found = fit_sigmoid(STEPS, noisy(curve))
    assert found is not None
    assert not found.identified
    assert why in found.why
    assert found.rises == ("beyond its noise" not in found.why)


def test_a_lower_score_can_be_better() -> None:
    """A curve that falls to a floor identifies it if lower values are better."""
    values = noisy(lambda c: sigmoid(c, 0.7, 0.2, 12, 2.5), seed=2)
    found = fit_sigmoid(STEPS, values, better=-1)
    assert found is not None
    assert found.identified
    assert found.low < 0.2 < found.high
    other = fit_sigmoid(STEPS, values)
    assert other is not None
    assert not other.identified


@pytest.mark.parametrize("values", [[0.5] * 26, [0.0] * 26, [math.nan] * 26, [0.1 * k for k in range(7)]])
def test_nothing_to_fit(values: list[float]) -> None:
    """Constants, values that are not finite and few points have no fit."""
    assert fit_sigmoid(STEPS[: len(values)], values) is None


def test_values_that_are_not_finite_are_left_out() -> None:
    """A fit is that of the other points."""
    values = noisy(lambda c: sigmoid(c, 0.2, 0.6, 15, 2))
    holes = [math.nan if k in (3, 9) else math.inf if k == 12 else v for k, v in enumerate(values)]
    kept = [k for k, v in enumerate(holes) if math.isfinite(v)]
    assert fit_sigmoid(STEPS, holes) == fit_sigmoid([STEPS[k] for k in kept], [values[k] for k in kept])


def test_cost_of_a_score() -> None:
    """The cost of a score is where the curve has it; infinity above the ceiling, 0 below the start."""
    found = fit_sigmoid(STEPS, [sigmoid(c, 0.2, 0.7, 15, 2) for c in STEPS])
    assert found is not None
    assert sigmoid(found.cost_of(0.55), found.start, found.ceiling, found.middle, found.slope) == pytest.approx(0.55)
    assert found.cost_of(0.71) == math.inf
    assert found.cost_of(0.1) == 0


def test_long_curves_are_averaged() -> None:
    """A curve of a thousand evaluations enters with 60 points: the first as it is, the rest as means."""
    costs, values = thinned([float(k) for k in range(1001)], [2.0 * k for k in range(1001)])
    assert len(costs) == len(values) == MOST_POINTS
    assert (costs[0], values[0]) == (0, 0)
    assert values == pytest.approx([2 * c for c in costs])
    assert costs == sorted(costs)
