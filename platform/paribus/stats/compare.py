"""Several comparisons at once."""

from __future__ import annotations

from collections.abc import Sequence

ALPHA = 0.05
"""Two-sided error rate of all tests of a report."""


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return p values adjusted for their number, in the same order; ``None`` (no test) stays ``None``.

    Source: Holm 1979, Scandinavian Journal of Statistics 6: the i-th smallest of m is multiplied by ``m - i + 1``,
    then the running maximum is taken, at most 1. Comparisons without a test are not counted in m.

    Raises:
        ValueError: a p value outside 0 to 1.
    """
    tested = [(p, i) for i, p in enumerate(p_values) if p is not None]
    if any(not 0 <= p <= 1 for p, _ in tested):
        raise ValueError(f"p values lie in 0..1, got {list(p_values)}")
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(sorted(tested)):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        adjusted[i] = largest
    return tuple(adjusted)
