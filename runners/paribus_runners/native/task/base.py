"""What every task gives: problems for training, a fixed held-out set, and a verifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        identity: the same for the same problem in every run.
        prompt: text that the model continues.
        answer: reference answer, as the task's verifier reads it.
    """

    identity: str
    prompt: str
    answer: str


class Verdict(NamedTuple):
    """What the verifier says about a response.

    Attributes:
        score: the task's own reward, +1 for a correct response, -1 for any other (DAPO, arXiv 2503.14476, Eq. 7).
        correct: whether the response is accepted.
        answer: the answer that was taken out of the response; empty if it has none.
    """

    score: float
    correct: bool
    answer: str

    @classmethod
    def of(cls, correct: bool, answer: str) -> Verdict:
        """Return the verdict with the score that belongs to ``correct``."""
        return cls(1.0 if correct else -1.0, correct, answer)


class Task(Protocol):
    """A source of problems with a verifier."""

    def training(self, seed: int, step: int, round_: int, count: int) -> list[Problem]:
        """Return the problems of one sampling round; they depend on the arguments only, never on history."""

    def heldout(self, count: int) -> list[Problem]:
        """Return the first ``count`` problems of the fixed held-out set."""

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Judge a response; ``finished`` is False where it hit the length limit."""


def streamed(kind: str, draw: Iterator[tuple[str, str]], count: int) -> list[Problem]:
    """Return ``count`` generated problems; the identity counts them, since short prompts come more than once."""
    return [
        Problem(f"{kind}-{i:05d}:{prompt}", prompt, answer) for i, (prompt, answer) in enumerate(islice(draw, count))
    ]


def stream(kind: str, seed: int, step: int, round_: int) -> Random:
    """Return the random source of one sampling round."""
    return Random(f"{kind}/train/{seed}/{step}/{round_}")


def heldout_stream(kind: str) -> Random:
    """Return the random source of the held-out set: the same for all runs."""
    return Random(f"{kind}/heldout")
