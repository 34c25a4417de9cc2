"""Exact tests beside the t tests: they do not ask for normal scores, and with few seeds they cannot reach 5%."""

from __future__ import annotations

from collections.abc import Collection
from math import comb

from paribus.report.analysis import Effect
from paribus.report.model import Cell, stored
from paribus.report.text import NOT_APPLICABLE, p_text
from paribus.stats.compare import ALPHA
from paribus.stats.intervals import MOST_SPLITS, least_permutation_p, permutation_p, sign_flip_p
from paribus.stats.sequential import adjusted

FROM, TO = 5, 16
"""Pairs for which the sign-flip test is printed; below it is far from 5%."""

PAIRED = "paired sign-flip test, uncorrected"
UNPAIRED = "permutation test of both means, seeds not paired; uncorrected"


def sign_flip_cell(effect: Effect, share: float) -> Cell:
    """Return the exact p of a difference whose seeds are paired; ``share``: of the 5%, at this look."""
    differences = [d for _, d in effect.by_seed]
    if not FROM <= len(differences) <= TO:
        return NOT_APPLICABLE
    return _cell(adjusted(sign_flip_p(differences), share), len(differences))


def sign_flip_note(pairs: int) -> list[str]:
    """Return why there is no such test, where there are too few pairs."""
    if not 2 <= pairs < FROM:
        return []
    smallest = f"{2.0 ** (1 - pairs):g}"
    return [
        f"With {pairs} pairs an exact sign-flip test cannot go below {smallest}: p values rest on near-normal scores."
    ]


def permutation_cell(first: Collection[float], second: Collection[float], share: float) -> Cell:
    """Return the exact p of two arms whose seeds are not paired; ``share``: of the 5%, at this look."""
    n, m = len(first), len(second)
    if not testable(n, m):
        return NOT_APPLICABLE
    return _cell(adjusted(permutation_p([*first], [*second]), share), min(n, m))


def testable(n: int, m: int) -> bool:
    """Whether a permutation test of so many scores is printed: it can reach 5%, and its splits can be enumerated."""
    return min(n, m) > 0 and least_permutation_p(n, m) < ALPHA and comb(n + m, n) <= MOST_SPLITS


def permutation_note(n: int, m: int) -> list[str]:
    """Return why there is no such test, where there are too few scores."""
    if min(n, m) < 2 or least_permutation_p(n, m) < ALPHA:
        return []
    smallest = f"{least_permutation_p(n, m):.2g}"
    return [
        f"With {n} and {m} seeds an exact permutation test cannot go below {smallest}: p values rest on near-normal "
        "scores."
    ]


def _cell(p: float, n: int) -> Cell:
    return Cell(text=p_text(p), value=stored(p), n=n)
