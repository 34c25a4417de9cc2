"""Grades responses group by group: verdicts by the task's verifier, scores by the study's reward functions.

What may hang runs in worker processes. Groups are submitted as they are finished, and graded while others are sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from paribus.recipe.factors import RewardFunction
from paribus_runners.rewards.failure_log import FailureLog
from paribus_runners.rewards.functions import Steps, scores, step_scores
from paribus_runners.rewards.pool import FAULTS, Fault, Outcome, Pool, Worker, workers
from paribus_runners.rewards.verifiers import Verdict
from paribus_runners.tasks.base import Problem, Task
from paribus_runners.tasks.environment import Environment

_LOOK_S = 0.5


class Graded(NamedTuple):
    """What the G responses to one problem got.

    Attributes:
        verdicts: [G] of the task's verifier; one that failed gives an incorrect response without an answer.
        rewards: [G][F] of the functions, in the order of their names; ``on_failure`` where one failed; of functions of
            steps the sum.
        faults: [G][1 + F] how the verifier and the functions failed: 0, or 1 + the place in
            :data:`paribus_runners.rewards.pool.FAULTS`.
        steps: [G][F] the steps that functions of steps found; empty lists of others. ``on_failure`` is one step at the
            end.
    """

    verdicts: list[Verdict]
    rewards: list[list[float]]
    faults: list[list[int]]
    steps: list[list[Steps]]


class Grader:
    """Grades the responses of a run. A context manager: leaving it kills all workers.

    Args:
        task: problems and verifier. With an attribute ``verifier_worker`` (a :class:`Worker` that returns ``[correct,
            answer]`` for each of ``completions`` and ``answer``), its responses are verified in worker processes.
        functions: the reward functions by name.
        folder: where the files beside the study lie; ``None`` without any.
        environment: what answers turns of the model in these problems; the caller ends it.
        idle: it will grade nothing, so there are no workers.

    Attributes:
        confined: what keeps the worker processes from writing elsewhere; empty if there are none.

    Raises:
        ParibusError: a function, or the verifier, cannot be loaded; the message has the traceback.
    """

    def __init__(
        self,
        task: Task,
        functions: Mapping[str, RewardFunction] | None = None,
        folder: Path | None = None,
        environment: Environment | None = None,
        *,
        idle: bool = False,
    ) -> None:
        self.task, self._functions = task, {} if idle else dict(sorted((functions or {}).items()))
        self.environment, self._log = environment, FailureLog()
        apart: Worker | None = None if idle else getattr(task, "verifier_worker", None)
        beside = "" if folder is None else str(folder)
        with ExitStack() as stack:
            self._verifier = None if apart is None else stack.enter_context(Pool(apart, workers()))
            self._pools = {
                name: stack.enter_context(Pool(
                    Worker(path=f.path, folder=beside, timeout_s=f.timeout_s, memory_gib=f.memory_gib), workers()
                ))
                for name, f in self._functions.items()
            }  # fmt: skip
            pools = (*([self._verifier] if self._verifier else []), *self._pools.values())
            for pool in pools:
                pool.wait_until_loaded()
            self.confined = pools[0].confined if pools else "" if environment is None else environment.confined
            self._stack = stack.pop_all()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def batch(self, *, rewards: bool = True) -> Batch:
        """Return an empty batch; without ``rewards`` only the verifier grades it, as in evaluations."""
        return Batch(self, rewards=rewards)

    def _submit(self, problem: Problem, texts: Sequence[str], finished: Sequence[bool], rewards: bool) -> _Pending:
        if self._verifier is None:
            verdicts = [self.task.verify(problem, text, end) for text, end in zip(texts, finished, strict=True)]
            verified = []
        else:
            verdicts = []
            verified = [self._verifier.submit({"completions": [t], "answer": [problem.answer]}) for t in texts]
        columns = {name: [value] * len(texts) for name, value in problem.columns.items()}
        columns |= {"answer": [problem.answer] * len(texts)}
        arguments = {**columns, "prompts": [problem.prompt] * len(texts), "completions": list(texts)}
        called = {name: pool.submit(arguments) for name, pool in self._pools.items()} if rewards else {}
        return _Pending(texts, verdicts, verified, called)

    def _collect(self, pending: _Pending, while_waiting: Callable[[], None]) -> Graded:
        verdicts, faults = list(pending.verdicts), [[0] for _ in range(len(pending.texts))]
        for row, future in enumerate(pending.verified):
            verdict, fault = self._verdict(_waited(future, while_waiting))
            verdicts.append(verdict)
            faults[row] = [code(fault)]
        rewards: list[list[float]] = [[] for _ in range(len(pending.texts))]
        steps: list[list[Steps]] = [[] for _ in range(len(pending.texts))]
        for name, future in pending.called.items():
            function, outcome = self._functions[name], _waited(future, while_waiting)
            found, ends, fault, reason = _read(function, outcome, pending.texts)
            self._log.note(f"reward function `{name}` ({function.path})", fault is not None, reason, outcome)
            for row in range(len(pending.texts)):
                rewards[row].append(found[row] if fault is None else function.on_failure)
                faults[row].append(code(fault))
                steps[row].append(ends[row])
        return Graded(verdicts, rewards, faults, steps)

    def _verdict(self, outcome: Outcome) -> tuple[Verdict, Fault | None]:
        fault, reason = outcome.fault, outcome.reason
        if fault is None:
            try:
                ((correct, answer),) = outcome.value
                return Verdict.of(bool(correct), str(answer)), None
            except (TypeError, ValueError):
                fault, reason = "not_a_number", "returned no verdict"
        self._log.note("the verifier", fault is not None, reason, outcome)
        return Verdict.of(False, ""), fault


def _read(
    function: RewardFunction, outcome: Outcome, texts: Sequence[str]
) -> tuple[list[float], list[Steps], Fault | None, str]:
    """Return the scores of responses, their steps, and how and why a call failed."""
    if function.unit == "response":
        found, fault, reason = scores(outcome, len(texts))
        return found, [[] for _ in texts], fault, reason
    steps, fault, reason = step_scores(outcome, texts)
    if fault is not None:
        steps = [[(len(text), function.on_failure)] for text in texts]
    return [sum(value for _, value in each) for each in steps], steps, fault, reason


def _waited(future: Future[Outcome], while_waiting: Callable[[], None]) -> Outcome:
    while_waiting()
    while not wait([future], _LOOK_S).done:
        while_waiting()
    return future.result()


class _Pending(NamedTuple):
    """A group that was submitted: its responses, verdicts or calls for them, and the calls of the functions."""

    texts: Sequence[str]
    verdicts: list[Verdict]
    verified: list[Future[Outcome]]
    called: dict[str, Future[Outcome]]


class Batch:
    """Groups that are graded together; :meth:`Grader.batch` makes it."""

    def __init__(self, grader: Grader, *, rewards: bool) -> None:
        self._grader, self._rewards = grader, rewards
        self._groups: list[_Pending] = []

    def submit(self, problem: Problem, texts: Sequence[str], finished: Sequence[bool]) -> None:
        """Begin to grade the responses to one problem; returns at once if workers do it.

        Args:
            problem: the problem.
            texts: [G] responses without their end marks.
            finished: [G] whether the model ended the response; False where it hit the length limit.
        """
        self._groups.append(self._grader._submit(problem, texts, finished, self._rewards))

    def collect(
        self, progress: Callable[[], None] = lambda: None, while_waiting: Callable[[], None] = lambda: None
    ) -> list[Graded]:
        """Return the grades of all groups in the order in which they were submitted; waits for the last.

        Args:
            progress: called when a group has its grades.
            while_waiting: called again and again until then; it may raise an exception to leave.
        """
        graded = []
        for group in self._groups:
            graded.append(self._grader._collect(group, while_waiting))
            progress()
        self._groups.clear()
        return graded


def code(fault: Fault | None) -> int:
    """Return the number of a fault in records: 0 for none."""
    return 0 if fault is None else 1 + FAULTS.index(fault)
