"""Word-wise difference of two texts: a shortest edit script (Myers 1986, Algorithmica 1, 251-266), bounded in time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal

Kind = Literal["same", "gone", "new"]

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_NEAR = 20_000  # characters that decide which text is the nearest
_EDITS = 800
"""Edits after which texts count as different throughout; work and memory grow with their square."""


@dataclass(frozen=True)
class Part:
    """A stretch of a difference: in both texts, ``gone`` with the earlier one, or ``new`` in the later one."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Difference:
    """How one text differs from another.

    Attributes:
        parts: those that are not ``new`` make the earlier text, those that are not ``gone`` the later.
        unit: what was compared, ``word`` or ``character``.
        shared: share of the units of both texts that are the same, 0 to 1; 1 for two empty texts.
        whole: whether the texts differ so much that what lies between their common ends was not compared.
    """

    parts: tuple[Part, ...]
    unit: Literal["word", "character"]
    shared: float
    whole: bool


def difference(before: str, after: str) -> Difference:
    """Return how ``after`` differs from ``before``: by words, or by characters where the texts are one word."""
    worded = len(before.split()) > 2 or len(after.split()) > 2
    one, two = (_WORDS.findall(t) if worded else list(t) for t in (before, after))
    head = _common(one, two)
    tail = _common(one[head:][::-1], two[head:][::-1])
    left, right = one[head : len(one) - tail], two[head : len(two) - tail]
    script = _script(left, right)
    kinds: list[tuple[Kind, str]] = [("same", t) for t in one[:head]]
    kinds += script if script is not None else [*(("gone", t) for t in left), *(("new", t) for t in right)]
    kinds += [("same", t) for t in one[len(one) - tail :]]
    same = sum(kind == "same" for kind, _ in kinds)
    shared = 2 * same / (len(one) + len(two)) if one or two else 1.0
    return Difference(tuple(_parts(kinds)), "word" if worded else "character", shared, script is None)


def _parts(kinds: Sequence[tuple[Kind, str]]) -> Iterator[Part]:
    """Yield stretches, what is gone before what is new; spaces and signs between two changes are changed along.

    A shortest script keeps them, and a reader would have to piece together words that have nothing in common.
    """
    blocks = [(same, list(run)) for same, run in groupby(kinds, key=lambda k: k[0] == "same")]
    gone, new = list[str](), list[str]()
    for place, (same, run) in enumerate(blocks):
        text = "".join(t for _, t in run)
        if same and (place in (0, len(blocks) - 1) or any(c.isalnum() for c in text)):
            yield from _changed(gone, new)
            gone, new = [], []
            yield Part("same", text)
        else:
            gone += [t for kind, t in run if kind != "new"]
            new += [t for kind, t in run if kind != "gone"]
    yield from _changed(gone, new)


def _changed(gone: Sequence[str], new: Sequence[str]) -> Iterator[Part]:
    sides: tuple[tuple[Kind, Sequence[str]], ...] = (("gone", gone), ("new", new))
    yield from (Part(kind, "".join(side)) for kind, side in sides if side)


def nearest(text: str, others: Sequence[str], place: int) -> int:
    """Return the place of the text that shares most words with this one; of equals that at ``place``, else the first.

    Args:
        text: the text.
        others: at least one.
        place: which one is preferred.
    """
    own = _counted(text)

    def rank(i: int) -> tuple[float, bool, int]:
        other = _counted(others[i])
        return 2 * (own & other).total() / max(1, own.total() + other.total()), i == place, -i

    return max(range(len(others)), key=rank)


@lru_cache(maxsize=256)
def _counted(text: str) -> Counter[str]:
    start = text[:_NEAR]
    return Counter(_WORDS.findall(start) if len(start.split()) > 2 else start)


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _script(one: Sequence[str], two: Sequence[str]) -> list[tuple[Kind, str]] | None:
    """Return a shortest script, or ``None`` where it has more than the edits that are allowed.

    ``reach[k]`` is how far into ``one`` a path of ``d`` edits comes on diagonal ``k``: Myers's greedy algorithm.
    """
    reach, history = {1: 0}, list[dict[int, int]]()
    for d in range(min(len(one) + len(two), _EDITS) + 1):
        history.append(dict(reach))
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and reach[k - 1] < reach[k + 1])
            x = reach[k + 1] if down else reach[k - 1] + 1
            while x < len(one) and x - k < len(two) and one[x] == two[x - k]:
                x += 1
            reach[k] = x
            if x >= len(one) and x - k >= len(two):
                return _walk(one, two, history)
    return None


def _walk(one: Sequence[str], two: Sequence[str], history: Sequence[dict[int, int]]) -> list[tuple[Kind, str]]:
    """Return the script that the histories of ``reach`` hold, from its end to its beginning."""
    x, y, found = len(one), len(two), list[tuple[Kind, str]]()
    for d in range(len(history) - 1, -1, -1):
        reach, k = history[d], x - y
        down = k == -d or (k != d and reach[k - 1] < reach[k + 1])
        before = reach[k + 1] if down else reach[k - 1]
        from_y = before - (k + 1 if down else k - 1)
        while x > before and y > from_y and x > 0 and y > 0:
            x, y = x - 1, y - 1
            found.append(("same", one[x]))
        if d > 0:
            if down:
                y -= 1
                found.append(("new", two[y]))
            else:
                x -= 1
                found.append(("gone", one[x]))
    return found[::-1]
