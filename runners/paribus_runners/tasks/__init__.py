"""Tasks: problems that are generated or read from files, each with its verifier.

No torch and no trainer code lives here; verifiers are in :mod:`paribus_runners.rewards`.
"""

from __future__ import annotations

from paribus.recipe.recipe import ChainTask, DatasetTask, JsonlTask
from paribus.recipe.recipe import Task as TaskLevel
from paribus_runners.tasks.base import Problem, Rendered, Task
from paribus_runners.tasks.chain import Chain
from paribus_runners.tasks.dataset import Dataset, Message, Render
from paribus_runners.tasks.environment import Answer, Asked, Environment, environment_of
from paribus_runners.tasks.grader import Batch, Grader
from paribus_runners.tasks.jsonl import Jsonl
from paribus_runners.tasks.search import Search

__all__ = [
    "Answer", "Asked", "Batch", "Chain", "Dataset", "Environment", "Grader", "Jsonl", "Message", "Problem", "Render",
    "Rendered", "Search", "Task", "environment_of", "size_of", "task_of",
]  # fmt: skip


def task_of(level: TaskLevel, render: Render | None = None, *, columns: bool = False) -> Task:
    """Return the task of a recipe.

    Args:
        level: the task of the recipe.
        render: writes messages out by the model's chat template; needed by ``dataset`` alone.
        columns: keep the other columns of a dataset, for functions; those of JSON lines are always kept.

    Raises:
        ParibusError: a problem file is missing or malformed.
    """
    if isinstance(level, DatasetTask):
        return Dataset(level, render, columns=columns)
    if isinstance(level, JsonlTask):
        return Jsonl(level)
    return Chain(level.problems) if isinstance(level, ChainTask) else Search(level.problems)


def size_of(task: Task) -> int | None:
    """Return how many training problems a task has; ``None``: new ones without end.

    It stands here and not in each task, because runs are recorded under a hash of the files of their task.
    """
    problems = getattr(task, "_pool", None) or getattr(task, "_train", None)
    return None if problems is None else len(problems)
