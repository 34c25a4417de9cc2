"""Times until something happens: a worked example, agreement with counting, and what is never seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.stats.survival import median_time, survivors


def test_a_worked_example() -> None:
    """Events at 3, 5 and 6 among seven, ends without at 4, 5 and 8: the product by hand; ends count as after events."""
    times = [(3.0, True), (4.0, False), (5.0, True), (5.0, False), (6.0, True), (6.0, True), (8.0, False)]
    assert survivors(times) == [
        (3.0, pytest.approx(6 / 7)),
        (5.0, pytest.approx(6 / 7 * 4 / 5)),
        (6.0, pytest.approx(6 / 7 * 4 / 5 * 1 / 3)),
    ]
    assert median_time(times) == 6.0
    assert median_time(times[:2]) == 3.0
    assert median_time([(8.0, False)] * 2) is None


@given(st.lists(st.integers(1, 6).map(float), min_size=1, max_size=8), st.integers(0, 4))
def test_with_one_horizon_it_is_counting(reached: list[float], never: int) -> None:
    """Where nobody leaves before the horizon the share is the plain share of runs that came later."""
    times = [*((t, True) for t in reached), *[(9.0, False)] * never]
    for at, share in survivors(times):
        assert share == pytest.approx(sum(t > at for t, _ in times) / len(times))
