"""Search: find two of n letters whose digits add up to the target, in visible tries.

A prompt such as ``a3b9c8=2`` gives each letter a digit and asks for two letters whose digits add up to 2, modulo 10.
A response is one or more *tries* of six symbols: a letter, its digit, another letter, its digit, the last digit of the
sum, and what is missing to the target, modulo 10; ``b9a320`` ends the search. More tries find more answers, so length
is useful, and the length limit makes it harmful.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from paribus_runners.rewards.verifiers import Verdict, verify_search
from paribus_runners.tasks.base import Generated, Problem

LETTERS = "abcdefgh"
SYMBOLS = "0123456789" + LETTERS + "="
WIDTH = 18
"""Symbols of the longest prompt."""
LIMIT = 37
"""Symbols of six tries and the end mark; longer traces of the warm-up are cut."""
_PAIR = re.compile(r"([a-h])(\d)")


def draw(random: Random) -> Iterator[tuple[str, str]]:
    """Yield (prompt, target) without end; two to eight letters, and some pair hits the target."""
    while True:
        digits = [random.randrange(10) for _ in range(random.randint(2, 8))]
        first, second = random.sample(range(len(digits)), 2)
        target = (digits[first] + digits[second]) % 10
        yield "".join(f"{k}{d}" for k, d in zip(LETTERS, digits, strict=False)) + f"={target}", str(target)


class Search(Generated):
    """The task ``search``; see :class:`Generated` for ``problems``."""

    def __init__(self, problems: int | None = None) -> None:
        super().__init__("search", draw, problems)

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Accept whole tries whose last two letters add up to the target with the prompt's digits."""
        return verify_search(problem.prompt, problem.answer, text, finished)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How the traces of the warm-up search; all values are probabilities for each try or symbol.

    Attributes:
        knows: a try takes the matching partner of its first letter, if there is one.
        digit: a copied digit is wrong.
        total: the sum is wrong; the same for what is missing.
        overshoot: the search goes on after a hit.
        give_up: the search ends after a miss.
        persistent: share of traces that give up with ``give_up_persistent`` instead.
    """

    knows: float = 0.0
    digit: float = 0.0
    total: float = 0.0
    overshoot: float = 0.0
    give_up: float = 0.0
    persistent: float = 0.0
    give_up_persistent: float = 0.0


CLEAN = Habits()
NOISY = Habits(knows=0.05, digit=0.02, total=0.02, overshoot=0.05, give_up=0.3, persistent=0.2, give_up_persistent=0.05)


def trace(random: Random, prompt: str, habits: Habits) -> tuple[str, bool]:
    """Return a response to ``prompt`` and whether it ends by itself; if not, it is cut at ``LIMIT`` symbols."""
    digits = {k: int(d) for k, d in _PAIR.findall(prompt)}
    target = int(prompt[-1])
    give_up = habits.give_up_persistent if random.random() < habits.persistent else habits.give_up
    text = ""
    while len(text) < LIMIT:
        tried, missing = _one_try(random, digits, target, habits)
        text += tried
        if len(text) < LIMIT and random.random() < (1 - habits.overshoot if missing == 0 else give_up):
            return text, True
    return text[:LIMIT], False


def _one_try(random: Random, digits: dict[str, int], target: int, habits: Habits) -> tuple[str, int]:
    one, two = random.sample(list(digits), 2)
    if random.random() < habits.knows:
        partners = [k for k, d in digits.items() if k != one and (digits[one] + d) % 10 == target]
        two = random.choice(partners) if partners else two
    first = _slip(random, digits[one], habits.digit)
    second = _slip(random, digits[two], habits.digit)
    total = _slip(random, (first + second) % 10, habits.total)
    missing = _slip(random, (target - total) % 10, habits.total)
    return f"{one}{first}{two}{second}{total}{missing}", missing


def _slip(random: Random, digit: int, probability: float) -> int:
    return (digit + random.randint(1, 9)) % 10 if random.random() < probability else digit
