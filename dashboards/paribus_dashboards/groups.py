"""Groups of responses: what a group says in numbers, and the order in which prompts are worth reading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from paribus.track.folder import Evaluation
from paribus.track.samples import Sample, key_of

Order = Literal["recorded", "zero_variance", "spread", "length", "repetition"]

ORDERS: Mapping[Order, str] = {
    "recorded": "as recorded",
    "zero_variance": "no spread",
    "spread": "spread",
    "length": "length",
    "repetition": "repetition",
}
"""Order of a list of groups to what it is called: what there is most of comes first."""

_RUN, _LONGEST = 4, 2000  # words of a run, and of a text that are looked at
_TINY = 1e-6  # rewards this close are the same (`group/zero_std_frac`)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What an evaluation counted of one problem, over all its responses, kept as text or not.

    Attributes:
        k: responses.
        correct: those that were right.
        truncated: those that hit the length limit.
        tokens: generated tokens of all together.
        answers: extracted answer to number of responses, the most frequent first; no answer is ``""``.
        right: those of ``answers`` that are right.
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
        prompt: its text; empty where none was kept.
        samples: the responses that were kept.
        counted: what the evaluation says of all of them.
    """

    problem: str
    prompt: str
    samples: tuple[Sample, ...]
    counted: Counted | None = None

    @property
    def key(self) -> str:
        """The problem in the address of a page."""
        return f"{key_of(self.problem):016x}"

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """Reward of each response that was counted or kept: correctness 0 or 1 where no reward was recorded."""
        if self.counted:
            return (1.0,) * self.counted.correct + (0.0,) * (self.counted.k - self.counted.correct)
        rewards = [s.reward for s in self.samples if s.reward is not None and math.isfinite(s.reward)]
        return tuple(rewards) or tuple(float(s.correct) for s in self.samples if s.correct is not None)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the scores over the group; ``None`` for fewer than two."""
        n = len(self.scores)
        if n < 2:
            return None
        mean = math.fsum(self.scores) / n
        return math.sqrt(math.fsum((x - mean) ** 2 for x in self.scores) / n)

    @property
    def mean(self) -> float | None:
        """Mean score."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else None

    @property
    def flat(self) -> bool | None:
        """Whether all scores are the same, so that the group teaches nothing; ``None`` for fewer than two."""
        return max(self.scores) - min(self.scores) <= _TINY if len(self.scores) > 1 else None

    @property
    def length(self) -> tuple[float, Literal["tokens", "characters"]] | None:
        """Mean length of the responses; in characters where no tokens were counted, ``None`` where nothing is known."""
        if self.counted:
            return self.counted.tokens / self.counted.k, "tokens"
        tokens = [s.tokens for s in self.samples if s.tokens is not None]
        if tokens:
            return sum(tokens) / len(tokens), "tokens"
        return (sum(len(s.response) for s in self.samples) / len(self.samples), "characters") if self.samples else None

    @cached_property
    def repetition(self) -> float | None:
        """Mean of :func:`repetition` over the responses that were kept and are long enough."""
        known = [r for r in (repetition(s.response) for s in self.samples) if r is not None]
        return sum(known) / len(known) if known else None


def repetition(text: str) -> float | None:
    """Return the share of runs of four words that occurred before in the text; ``None`` for fewer than five runs.

    One minus distinct-4 (Li et al. 2016, arXiv 1510.03055), by characters where a text is hardly any words.
    """
    words: Sequence[str] = text.split()
    words = words if len(words) > 2 else text
    words = words[:_LONGEST]
    runs = [tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if len(runs) >= 5 else None


def grouped(samples: Iterable[Sample]) -> tuple[Group, ...]:
    """Return the samples of one step and set by problem, in the order of their first lines."""
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
    """Return what an evaluation says of the problem at this place."""
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
    """Return the order of this name, else the first."""
    return next((o for o in get_args(Order) if o == name), "recorded")


def in_order(groups: Iterable[Group], order: Order) -> tuple[Group, ...]:
    """Return the groups in an order; those whose number is unknown come last, equals stay as recorded."""

    def place(group: Group) -> float:
        if order == "zero_variance":
            return {True: 0.0, False: 1.0, None: 2.0}[group.flat]
        if order == "length":
            value = group.length[0] if group.length else None
        else:
            value = group.spread if order == "spread" else group.repetition
        return math.inf if value is None else -value

    return tuple(groups) if order == "recorded" else tuple(sorted(groups, key=place))
