"""Fractions of a factorial: as small and as clean as they can be, by brute force over their cells."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.study.fractions import best_fraction

SIZES = st.tuples(st.integers(3, 10), st.sampled_from([3, 4, 5]))


def signs(cells: tuple[int, ...], word: int) -> list[int]:
    """Return the product of the columns of a word's tricks over the cells."""
    return [-1 if (word & ~cell).bit_count() % 2 else 1 for cell in cells]


@pytest.mark.parametrize(("k", "resolution", "cells", "reached", "pattern"), [
    (3, 3, 4, 3, (0, 0, 1)),
    (4, 4, 8, 4, (0, 0, 0, 1)),
    (5, 3, 8, 3, (0, 0, 2, 1, 0)),
    (5, 5, 16, 5, (0, 0, 0, 0, 1)),
    (6, 4, 16, 4, (0, 0, 0, 3, 0, 0)),
    (6, 5, 32, 6, (0, 0, 0, 0, 0, 1)),
    (7, 4, 16, 4, (0, 0, 0, 7, 0, 0, 0)),
    (8, 5, 64, 5, (0, 0, 0, 0, 2, 1, 0, 0)),
    (9, 4, 32, 4, (0, 0, 0, 6, 8, 0, 0, 1, 0)),
    (10, 3, 16, 3, (0, 0, 8, 18, 16, 8, 8, 5, 0, 0)),
])  # fmt: skip
def test_the_fractions_stay_as_they_are(
    k: int, resolution: int, cells: int, reached: int, pattern: tuple[int, ...]
) -> None:
    """Cells, resolution and word lengths are pinned: an existing study must not get another fraction."""
    found = best_fraction(k, resolution)
    assert (len(found.cells), found.resolution, found.aberration) == (cells, reached, pattern)


@given(SIZES)
@settings(deadline=None, max_examples=24)
def test_columns_are_balanced_and_orthogonal_and_the_base_is_there(size: tuple[int, int]) -> None:
    """Each trick is on in half of the cells, each two tricks in a quarter of them; cells are distinct."""
    found = best_fraction(*size)
    assert found.cells[0] == 0
    assert len(set(found.cells)) == len(found.cells)
    for word in [1 << j for j in range(found.k)]:
        assert sum(signs(found.cells, word)) == 0
    for first, second in combinations(range(found.k), 2):
        assert sum(signs(found.cells, 1 << first | 1 << second)) == 0


@given(SIZES)
@settings(deadline=None, max_examples=24)
def test_the_words_are_exactly_the_constant_products(size: tuple[int, int]) -> None:
    """By brute force over all products; none is shorter than the resolution asks."""
    found = best_fraction(*size)
    constant = {w for w in range(1, 2**found.k) if len(set(signs(found.cells, w))) == 1}
    assert set(found.words) == constant
    assert found.resolution is None or found.resolution >= size[1]


@pytest.mark.parametrize(("k", "resolution"), [(2, 3), (11, 3), (4, 2)])
def test_sizes_that_cannot_be_searched_are_refused(k: int, resolution: int) -> None:
    """Neither two nor eleven tricks, nor a resolution that mixes main effects."""
    with pytest.raises(ValueError, match="fractions have 3 to 10 tricks"):
        best_fraction(k, resolution)
