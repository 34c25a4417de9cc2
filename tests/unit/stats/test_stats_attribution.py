"""Contributions of tricks as contrasts of cells."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest

from paribus.stats.factorial import Weights, both_ends_weights, shapley_weights

Game = Mapping[frozenset[str], float]


def game(tricks: str, order: int, seed: int = 0) -> dict[frozenset[str], float]:
    """Values of all cells, with interactions of at most so many tricks."""
    dice = random.Random(seed)
    sets = [frozenset(c) for n in range(len(tricks) + 1) for c in itertools.combinations(tricks, n)]
    terms = {s: dice.gauss(0, 1) for s in sets if len(s) <= order}
    return {s: sum(v for t, v in terms.items() if t <= s) for s in sets}


def value(weights: Weights, cells: Game) -> float:
    """The contrast."""
    return sum(w * cells[c] for c, w in weights.items())


@pytest.mark.parametrize("tricks", ["a", "ab", "abc", "abcd", "abcde"])
def test_shapley_is_the_mean_over_all_orders(tricks: str) -> None:
    """To 1e-12 the brute-force mean of the gain over all orders; the values add up to the whole difference."""
    cells = game(tricks, order=len(tricks))
    found = {t: value(w, cells) for t, w in shapley_weights(tricks).items()}
    for trick in tricks:
        gains = [
            cells[frozenset(o[: o.index(trick) + 1])] - cells[frozenset(o[: o.index(trick)])]
            for o in itertools.permutations(tricks)
        ]
        assert found[trick] == pytest.approx(sum(gains) / len(gains), abs=1e-12)
    assert sum(found.values()) == pytest.approx(cells[frozenset(tricks)] - cells[frozenset()], abs=1e-12)


def test_glove_game() -> None:
    """The textbook game: one left glove, two right ones; the left is worth 2/3, each right 1/6."""
    sets = [frozenset(c) for n in range(4) for c in itertools.combinations("lrs", n)]
    cells = {s: float("l" in s and len(s) > 1) for s in sets}
    found = {t: value(w, cells) for t, w in shapley_weights("lrs").items()}
    assert found == pytest.approx({"l": 2 / 3, "r": 1 / 6, "s": 1 / 6})


@pytest.mark.parametrize("tricks", ["a", "ab", "abc", "abcd"])
def test_both_ends_are_shapley_without_triples(tricks: str) -> None:
    """With pairs at most the mean of both ends is the Shapley value, from 2 k + 2 cells."""
    cells = game(tricks, order=2)
    for trick, weights in both_ends_weights(tricks).items():
        assert value(weights, cells) == pytest.approx(value(shapley_weights(tricks)[trick], cells), abs=1e-12)


def test_triples_show_in_the_gap() -> None:
    """The sum of both ends misses the whole difference by half the triple terms."""
    cells = dict.fromkeys(game("abcd", 4), 0.0) | {frozenset("abc"): 1.0, frozenset("abcd"): 1.0}
    total = sum(value(w, cells) for w in both_ends_weights("abcd").values())
    assert cells[frozenset("abcd")] - total == pytest.approx(-0.5)
