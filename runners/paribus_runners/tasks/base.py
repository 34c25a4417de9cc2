"""What every task provides: problems for training, a fixed held-out set, and a verifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any, Protocol, TypeVar

from paribus_runners.rewards.verifiers import Verdict

T = TypeVar("T")


class Rendered(str):
    """A prompt that a chat template wrote: it has all its special tokens, and the tokenizer adds none.

    As with ``markupsafe.Markup``, the type says what has been done to the text.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        identity: the same for the same problem in every run.
        prompt: the text that the model continues; :class:`Rendered` if a chat template wrote it.
        answer: the reference answer, in the form that the task's verifier reads.
        columns: what else the data say about it, JSON values by name; reward functions get them.
    """

    identity: str
    prompt: str
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Task(Protocol):
    """A source of problems with a verifier."""

    def training(self, seed: int, step: int, round_: int, count: int) -> list[Problem]:
        """Return the problems of one sampling round, a function of the arguments alone, never of history."""

    def heldout(self, count: int) -> list[Problem]:
        """Return the first ``count`` problems of the fixed held-out set."""

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Return the verdict on a response; ``finished`` is False where it hit the length limit."""


class Generated(ABC):
    """A task whose problems are drawn at random: new ones in every sampling round, or from a fixed pool.

    Args:
        kind: name of the task.
        draw: yields (prompt, answer) without end.
        problems: distinct training problems in the pool; None draws new problems in every round.
    """

    def __init__(self, kind: str, draw: Callable[[Random], Iterator[tuple[str, str]]], problems: int | None) -> None:
        self._kind, self._draw = kind, draw
        self._pool = None if problems is None else self._number(islice(_distinct(self._stream("pool")), problems))

    def training(self, seed: int, step: int, round_: int, count: int) -> list[Problem]:
        """Return the problems of one sampling round; a pool is visited as in :func:`visit`."""
        if self._pool is not None:
            return visit(self._pool, self._kind, seed, step, round_, count)
        return self._number(islice(self._stream(f"train/{seed}/{step}/{round_}"), count))

    def heldout(self, count: int) -> list[Problem]:
        """Return the first ``count`` held-out problems, the same in all runs."""
        return self._number(islice(self._stream("heldout"), count))

    @abstractmethod
    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Return the verdict on a response; ``finished`` is False where it hit the length limit."""

    def _stream(self, name: str) -> Iterator[tuple[str, str]]:
        return self._draw(Random(f"{self._kind}/{name}"))

    def _number(self, drawn: Iterable[tuple[str, str]]) -> list[Problem]:
        """Return problems numbered in their identity, because short prompts are drawn more than once."""
        return [Problem(f"{self._kind}-{i:05d}:{prompt}", prompt, answer) for i, (prompt, answer) in enumerate(drawn)]


def _distinct(drawn: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    seen = set()
    for prompt, answer in drawn:
        if prompt not in seen:
            seen.add(prompt)
            yield prompt, answer


def gaps(rows: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """Return all columns of rows, each with the place of the first row that lacks it; empty where none does.

    Args:
        rows: place and columns of each row.
    """
    found: dict[str, str] = {}
    first = ""
    for place, names in rows:
        there = set(names)
        new = dict.fromkeys(sorted(there - found.keys()), first)
        found = {name: found[name] or ("" if name in there else place) for name in found} | new
        first = first or place
    return found


def visit(problems: Sequence[T], kind: str, seed: int, step: int, round_: int, count: int) -> list[T]:
    """Return the problems that a sampling round takes from a list, a function of the arguments alone.

    The first rounds of the steps go through the list in passes, each shuffled differently, so with one round a step a
    problem comes again only after all the others. Further rounds of a step go through shuffles of that step.

    Args:
        problems: the list.
        kind: name of the task.
        seed: seed of the run.
        step: from 1.
        round_: sampling round in the step, from 0.
        count: problems in each round.
    """
    walk, first = (f"refill/{seed}/{step}", round_ - 1) if round_ else (f"order/{seed}", step - 1)
    passes = (divmod(place, len(problems)) for place in range(first * count, (first + 1) * count))
    return [problems[_order(f"{kind}/{walk}/{n}", len(problems))[place]] for n, place in passes]


@lru_cache(maxsize=4)
def _order(name: str, size: int) -> list[int]:
    order = list(range(size))
    Random(name).shuffle(order)
    return order
