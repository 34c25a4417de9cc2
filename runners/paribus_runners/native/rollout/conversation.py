"""Turns of the model as tokens, answered by an environment that reads and writes text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paribus.errors import RunnerError
from paribus_runners.native.policy import Policy
from paribus_runners.native.requirements import mark_faults
from paribus_runners.native.rollout.sampler import Ended
from paribus_runners.tasks import Asked, Environment, Problem


@dataclass(frozen=True)
class Conversation:
    """Answers turns of the model in the responses to some problems; implements :class:`.sampler.Turns`.

    Attributes:
        environment: says what the answers are.
        policy: writes the turns.
        problems: the problem of each prompt of the requests.
        marks: tokens that end a turn beside the end marks.
    """

    environment: Environment
    policy: Policy
    problems: Sequence[Problem]
    marks: Sequence[int]

    @property
    def most(self) -> int:
        """Answers that a response may get."""
        return self.environment.level.most

    @property
    def room(self) -> int:
        """Tokens that an answer may have."""
        return self.environment.level.answer_tokens

    @property
    def longest(self) -> int | None:
        """Tokens that the model may write in a turn."""
        return self.environment.level.turn_tokens

    def answers(self, ended: Sequence[Ended]) -> list[tuple[Sequence[int] | None, bool]]:
        """Return for each turn the tokens of its answer, or ``None`` where the response ends, and whether it failed."""
        texts = self.policy.decode([one.tokens for one in ended])
        asked = [Asked(self.problems[one.prompt], text, one.turn) for one, text in zip(ended, texts, strict=True)]
        found: list[tuple[Sequence[int] | None, bool]] = []
        for answer in self.environment.answers(asked):
            if answer.text is None:
                found.append((None, answer.failed))
                continue
            tokens = self.policy.encode_inside(answer.text)
            if len(tokens) > self.room:
                reason = f"an answer has {len(tokens)} tokens, more than `turns.answer_tokens: {self.room}`"
                found.append((None, self.environment.failed(reason).failed))
                continue
            found.append((tokens, False))
        return found


def conversation(environment: Environment | None, policy: Policy, problems: Sequence[Problem]) -> Conversation | None:
    """Return what answers turns of the model in the responses to these problems; ``None`` without an environment.

    Raises:
        RunnerError: a mark is not one token of the model.
    """
    if environment is None:
        return None
    marks = environment.level.marks
    if faults := mark_faults(marks, policy.encode_inside, policy.tokenizer.unk_token_id):
        raise RunnerError("; ".join(faults))
    return Conversation(environment, policy, problems, [policy.encode_inside(mark)[0] for mark in marks])
