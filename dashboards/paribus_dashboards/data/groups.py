"""Groups of responses to one prompt: their numbers, and orders in which to read the groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from paribus.run_folder.folder import Evaluation
from paribus.run_folder.samples import Sample, key_of

Order = Literal["recorded", "zero_variance", "spread", "length", "repetition"]

ORDERS: Mapping[Order, str] = {
    "recorded": "as recorded",
    "zero_variance": "no spread",
    "spread": "spread",
    "length": "length",
    "repetition": "repetition",
}
"""Order of a list of groups to its title; the groups with the most of it come first."""

_NGRAM, _MAX_WORDS = 4, 2000  # words of an n-gram, and of a text that are examined
_TINY = 1e-6  # rewards this close count as equal (`group/zero_std_frac`)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The counts of one problem in an evaluation, over all its responses, whether or not they were kept as text.

    Attributes:
        k: number of responses.
        correct: number of correct responses.
        truncated: number of responses that reached the length limit.
        tokens: generated tokens of all responses together.
        answers: extracted answer and number of responses, the most frequent first; no answer is ``""``.
        right: the ``answers`` that are correct.
    """

    k: int
    correct: int
    truncated: int
    tokens: int
    answers: tuple[tuple[str, int], ...]
    right: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Group:
    """The responses to one prompt at one step.

    Attributes:
        problem: identity of the problem.
        prompt: its text; empty if none was kept.
        samples: the responses that were kept as text.
        counted: counts of the evaluation over all responses; ``None`` without an evaluation.
    """

    problem: str
    prompt: str
    samples: tuple[Sample, ...]
    counted: Counted | None = None

    @property
    def key(self) -> str:
        """Key of the problem in addresses, 16 hexadecimal digits."""
        return f"{key_of(self.problem):016x}"

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """Reward of each counted or kept response; correctness, 0 or 1, if no reward was recorded."""
        if self.counted:
            return (1.0,) * self.counted.correct + (0.0,) * (self.counted.k - self.counted.correct)
        rewards = [s.reward for s in self.samples if s.reward is not None and math.isfinite(s.reward)]
        return tuple(rewards) or tuple(float(s.correct) for s in self.samples if s.correct is not None)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the scores over the group; ``None`` for fewer than two scores."""
        n = len(self.scores)
        if n < 2:
            return None
        mean = math.fsum(self.scores) / n
        return math.sqrt(math.fsum((x - mean) ** 2 for x in self.scores) / n)

    @property
    def mean(self) -> float | None:
        """Mean score; ``None`` without a score."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else None

    @property
    def flat(self) -> bool | None:
        """Whether all scores are equal, so that the group gives no gradient; ``None`` for fewer than two scores."""
        return max(self.scores) - min(self.scores) <= _TINY if len(self.scores) > 1 else None

    @property
    def length(self) -> tuple[float, Literal["tokens", "characters"]] | None:
        """Mean length of the responses; in characters if no tokens were counted, ``None`` without a response."""
        if self.counted:
            return self.counted.tokens / self.counted.k, "tokens"
        tokens = [s.tokens for s in self.samples if s.tokens is not None]
        if tokens:
            return sum(tokens) / len(tokens), "tokens"
        return (sum(len(s.response) for s in self.samples) / len(self.samples), "characters") if self.samples else None

    @cached_property
    def repetition(self) -> float | None:
        """Mean of :func:`repetition` over the kept responses that are long enough; ``None`` if no response is."""
        known = [r for r in (repetition(s.response) for s in self.samples) if r is not None]
        return sum(known) / len(known) if known else None


def repetition(text: str) -> float | None:
    """Return the share of 4-grams that occurred earlier in the text; ``None`` for fewer than five 4-grams.

    This is one minus distinct-4 (Li et al. 2016, arXiv 1510.03055), over words, or over characters if the text has at
    most two words.
    """
    words: Sequence[str] = text.split()
    words = words if len(words) > 2 else text
    words = words[:_MAX_WORDS]
    ngrams = [tuple(words[i : i + _NGRAM]) for i in range(len(words) - _NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if len(ngrams) >= 5 else None


def grouped(samples: Iterable[Sample]) -> tuple[Group, ...]:
    """Return the samples of one step and problem set as groups, in the order of their first lines."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.problem, []).append(sample)
    return tuple(
        Group(
            problem=problem,
            prompt=next((s.prompt for s in members if s.prompt), ""),
            samples=tuple(sorted(members, key=lambda s: math.inf if s.number is None else s.number)),
        )
        for problem, members in found.items()
    )


def counted(evaluation: Evaluation, place: int) -> Counted:
    """Return the counts of the problem at position ``place`` of an evaluation."""
    answers = sorted(evaluation.answers[place].items(), key=lambda a: -a[1])
    return Counted(
        k=evaluation.samples,
        correct=evaluation.correct[place],
        truncated=evaluation.truncated[place],
        tokens=evaluation.tokens[place],
        answers=tuple(answers),
        right=frozenset(evaluation.right[place] if evaluation.right else ()),
    )


def order_of(name: str) -> Order:
    """Return the order of this name, else the order of recording."""
    return next((o for o in get_args(Order) if o == name), "recorded")


def in_order(groups: Iterable[Group], order: Order) -> tuple[Group, ...]:
    """Return the groups in an order. Groups without a value come last; ties stay in the order of recording."""

    def place(group: Group) -> float:
        if order == "zero_variance":
            return {True: 0.0, False: 1.0, None: 2.0}[group.flat]
        if order == "length":
            value = group.length[0] if group.length else None
        else:
            value = group.spread if order == "spread" else group.repetition
        return math.inf if value is None else -value

    return tuple(groups) if order == "recorded" else tuple(sorted(groups, key=place))
