"""Which held-out problems also stand in the training data: whole, or thirteen words in a row.

The second rule is that of GPT-3 (arXiv 2005.14165, appendix C): words are compared without case and punctuation, and an
N-gram that is in any training document marks a problem; N is 13, the longest that was used there. What stands in many
training problems is their common wording, such as the instruction that DAPO-Math-17k puts around each, and marks none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GRAM = 13
"""Words in a row."""
COMMON = 10
"""Training problems beyond which their words in a row are common wording."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Overlap:
    """Which held-out problems are in the training data.

    Attributes:
        exact: place of the held-out problem to that of the training problem, for equal texts up to case and space.
        grams: place of a held-out problem to that of a training problem and the words that both have; without those in
            ``exact``.
    """

    exact: dict[int, int]
    grams: dict[int, tuple[int, str]]


def overlap(train: Sequence[str], heldout: Sequence[str]) -> Overlap:
    """Compare all held-out with all training problems, in a time that grows with their sum."""
    whole: dict[str, int] = {}
    for place, text in enumerate(train):
        whole.setdefault(normal(text), place)
    exact = {i: whole[text] for i, text in enumerate(map(normal, heldout)) if text in whole}
    owners: dict[tuple[str, ...], list[int]] = {}
    for i, text in enumerate(heldout):
        for gram in set(_grams(text)):
            owners.setdefault(gram, []).append(i)
    seen: Counter[tuple[str, ...]] = Counter()
    first: dict[tuple[str, ...], int] = {}
    for place, text in enumerate(train):
        for gram in dict.fromkeys(gram for gram in _grams(text) if gram in owners):  # in their order, as a set has none
            seen[gram] += 1
            first.setdefault(gram, place)
    grams: dict[int, tuple[int, str]] = {}
    for gram, place in first.items():
        for i in owners[gram] if seen[gram] <= COMMON else ():
            if i not in exact:
                grams.setdefault(i, (place, " ".join(gram)))
    return Overlap(exact, dict(sorted(grams.items())))


def normal(text: str) -> str:
    """Return a text without case and with single spaces; signs stay, because 2 + 3 and 2 - 3 are two problems."""
    return " ".join(text.casefold().split())


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return zip(*(words[k:] for k in range(GRAM)), strict=False)
