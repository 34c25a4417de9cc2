"""Chain: add n digits, at once or written out.

A prompt such as ``a3b5c8=`` asks for the last digit of the sum. A *direct* response is ``#6``. A *careful* one writes,
for each further letter, the letter, its digit and the running sum, ``b58c86#6``, and may state a running sum again
after ``?``. Direct responses fail for more than three digits; careful ones are rare before reinforcement learning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from paribus_runners.rewards.verifiers import Verdict, verify_chain
from paribus_runners.tasks.base import Generated, Problem

LETTERS = "abcdefgh"
SYMBOLS = "0123456789" + LETTERS + "=#?"
WIDTH = 17
"""Symbols of the longest prompt."""
_PAIR = re.compile(r"([a-h])(\d)")


def draw(random: Random, longest: int = 8) -> Iterator[tuple[str, str]]:
    """Yield (prompt, answer) without end; two to ``longest`` digits."""
    while True:
        digits = [random.randrange(10) for _ in range(random.randint(2, longest))]
        yield "".join(f"{k}{d}" for k, d in zip(LETTERS, digits, strict=False)) + "=", str(sum(digits) % 10)


class Chain(Generated):
    """The task ``chain``; see :class:`Generated` for ``problems``."""

    def __init__(self, problems: int | None = None) -> None:
        super().__init__("chain", draw, problems)

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Accept a finished response that ends with ``#`` and the right digit."""
        return verify_chain(problem.answer, text, finished)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How the traces of the warm-up add; all values are probabilities.

    Attributes:
        careful: a trace is written out.
        step: a running sum is wrong.
        check: a running sum is stated again, each time; ``check_often`` in the share ``often`` of traces.
        check_wrong: the sum stated again differs from the one before.
    """

    careful: float = 1.0
    step: float = 0.0
    check: float = 0.0
    often: float = 0.0
    check_often: float = 0.0
    check_wrong: float = 0.0


CLEAN = Habits()


def noisy(careful: float) -> Habits:
    """Return the habits of the last stage."""
    return Habits(careful=careful, step=0.06, check=0.3, often=0.15, check_often=0.8, check_wrong=0.02)


def trace(random: Random, prompt: str, habits: Habits) -> str:
    """Return a response to ``prompt``."""
    pairs = [(k, int(d)) for k, d in _PAIR.findall(prompt)]
    if random.random() >= habits.careful:
        return f"#{sum(d for _, d in pairs) % 10}"
    check = habits.check_often if random.random() < habits.often else habits.check
    parts, stated = [], pairs[0][1]
    for letter, digit in pairs[1:]:
        stated = _slip(random, (stated + digit) % 10, habits.step)
        parts.append(f"{letter}{digit}{stated}")
        while random.random() < check:
            stated = _slip(random, stated, habits.check_wrong)
            parts.append(f"?{stated}")
    return "".join(parts) + f"#{stated}"


def _slip(random: Random, digit: int, probability: float) -> int:
    return (digit + random.randint(1, 9)) % 10 if random.random() < probability else digit
