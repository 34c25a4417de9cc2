"""Regular two-level fractions: which cells of a factorial to run so that what is measured together is known.

A cell is a number whose bit ``j`` says whether trick ``j`` is on. The first ``m`` tricks take all combinations; each
other trick is on where an odd number of the tricks of its generator are. So the base, without any trick, is a cell.
Sources: Box and Hunter 1961, Technometrics 3 (resolution); Fries and Hunter 1980, Technometrics 22 (aberration).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

MIN_TRICKS, MAX_TRICKS = 3, 10
"""Tricks of a fraction: two have none that separates them, and more than ten take too long to search."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A fraction of the ``2^k`` cells.

    Attributes:
        k: number of tricks.
        generators: for each trick after the first ``k - p``, the bits of those that decide it; empty for all cells.
        words: bits of the products of tricks that are constant over the cells (the defining relation), sorted.
    """

    k: int
    generators: tuple[int, ...]
    words: tuple[int, ...]

    @property
    def resolution(self) -> int | None:
        """Tricks in the shortest word; ``None`` for the full factorial."""
        return min((w.bit_count() for w in self.words), default=None)

    @property
    def aberration(self) -> tuple[int, ...]:
        """Number of words of 1, 2, ..., k tricks: the smaller in this order, the better."""
        counts = Counter(w.bit_count() for w in self.words)
        return tuple(counts[length] for length in range(1, self.k + 1))

    @property
    def cells(self) -> tuple[int, ...]:
        """The cells, the base first."""
        m = self.k - len(self.generators)
        return tuple(
            basic + sum(((basic & g).bit_count() % 2) << (m + i) for i, g in enumerate(self.generators))
            for basic in range(2**m)
        )


@cache
def best_fraction(k: int, resolution: int) -> Generated:
    """Return the smallest fraction of ``k`` tricks with at least this resolution; of those the one of least aberration.

    Least aberration includes the highest resolution. All sets of generators are tried, so the choice is exact; of
    equals the first in the order of the search is taken. If no fraction has the resolution, it is the full factorial.

    Args:
        k: 3 to 10 tricks.
        resolution: 3 or more.

    Raises:
        ValueError: ``k`` or ``resolution`` is out of range.
    """
    if not (MIN_TRICKS <= k <= MAX_TRICKS and resolution >= 3):
        raise ValueError(f"fractions have {MIN_TRICKS} to {MAX_TRICKS} tricks and resolution 3 or more")
    for m in range(2, k):
        candidates = [
            sum(1 << j for j in chosen)
            for size in range(m, resolution - 2, -1)
            for chosen in combinations(range(m), size)
        ]
        found = (
            Generated(k=k, generators=generators, words=tuple(sorted(words)))
            for generators, words in _search(candidates, m, k - m, resolution)
        )
        if (best := min(found, key=lambda f: f.aberration, default=None)) is not None:
            return best
    return Generated(k=k, generators=(), words=())


def _search(
    candidates: Sequence[int], m: int, p: int, resolution: int, words: tuple[int, ...] = (), first: int = 0
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield each set of ``p`` generators whose words are all long enough, with these words."""
    if p == 0:
        yield (), words
        return
    for k, generator in enumerate(candidates[first:], start=first):
        word = generator | 1 << m
        new = (word, *(word ^ w for w in words))
        if all(w.bit_count() >= resolution for w in new):
            for rest, all_words in _search(candidates, m + 1, p - 1, resolution, (*words, *new), k + 1):
                yield (generator, *rest), all_words
