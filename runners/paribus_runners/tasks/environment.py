"""The environment of a response with several turns: a function of the user that answers them, in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paribus.recipe.turns import FunctionTurns, Turns
from paribus_runners.rewards.failure_log import FailureLog
from paribus_runners.rewards.pool import Outcome, Pool, Worker, workers
from paribus_runners.tasks.base import Problem

GIVEN = ("prompts", "completions", "turns")
"""Arguments that the function gets beside the columns of the data."""


class Asked(NamedTuple):
    """A response whose model has ended a turn.

    Attributes:
        problem: the problem.
        text: the response so far, with all answers, without the end mark that ended the turn.
        turn: the number of the turn, from 1.
    """

    problem: Problem
    text: str
    turn: int


class Answer(NamedTuple):
    """What an environment says to a turn.

    Attributes:
        text: what the model reads next; ``None``: the response ends.
        failed: whether it ends because the call failed.
    """

    text: str | None
    failed: bool = False


class Environment:
    """Answers turns of the model. A context manager: leaving it kills all workers.

    Args:
        level: the function and its limits.
        folder: where the files beside the study lie; ``None`` without any.

    Raises:
        ParibusError: the function cannot be loaded; the message has its traceback.
    """

    def __init__(self, level: FunctionTurns, folder: Path | None = None) -> None:
        self.level, self._log = level, FailureLog()
        beside = "" if folder is None else str(folder)
        worker = Worker(path=level.path, folder=beside, timeout_s=level.timeout_s, memory_gib=level.memory_gib)
        self._pool = Pool(worker, workers())
        try:
            self._pool.wait_until_loaded()
        except BaseException:
            self._pool.close()
            raise

    @property
    def confined(self) -> str:
        """What keeps the worker processes from writing elsewhere."""
        return self._pool.confined

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def answers(self, asked: Sequence[Asked]) -> list[Answer]:
        """Return the answers to some turns, each by a call of its own, so that one can't spoil another."""
        calls = [self._pool.submit(_arguments(one)) for one in asked]
        return [self._answer(call.result()) for call in calls]

    def failed(self, reason: str) -> Answer:
        """Log an answer that cannot be read, and return what becomes of it."""
        self._log.note(self._name, True, reason, Outcome())
        return Answer(None, failed=True)

    def _answer(self, outcome: Outcome) -> Answer:
        reason = outcome.reason if outcome.fault is not None else _unfit(outcome.value)
        self._log.note(self._name, bool(reason), reason, outcome)
        return Answer(None, failed=True) if reason else Answer(outcome.value[0])

    @property
    def _name(self) -> str:
        return f"the function of `turns` ({self.level.path})"


def environment_of(turns: Turns, folder: Path | None) -> Environment | None:
    """Return the environment of a recipe; ``None`` if the model alone writes.

    Raises:
        ParibusError: as for :class:`Environment`.
    """
    return Environment(turns, folder) if isinstance(turns, FunctionTurns) else None


def _arguments(asked: Asked) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {name: [value] for name, value in asked.problem.columns.items()}
    columns |= {"answer": [asked.problem.answer]}
    return {**columns, "prompts": [asked.problem.prompt], "completions": [asked.text], "turns": [asked.turn]}


def _unfit(value: object) -> str:
    """Return why a result is no answer to one turn; empty if it is one."""
    if not isinstance(value, list) or len(value) != 1:
        return f"returned {type(value).__name__} for 1 response, not a list with one text or None"
    if value[0] is not None and not isinstance(value[0], str):
        return f"returned a {type(value[0]).__name__} for a response, not a text or None"
    try:
        (value[0] or "").encode()
    except UnicodeEncodeError:
        return "returned half a character (an unpaired surrogate), which no tokenizer reads"
    return ""
