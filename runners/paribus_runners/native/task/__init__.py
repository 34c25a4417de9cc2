"""Tasks: problems that can be generated or read, and verified by a program."""

from __future__ import annotations

from paribus.recipe.recipe import ChainTask, JsonlTask
from paribus.recipe.recipe import Task as TaskLevel
from paribus_runners.native.task.base import Problem, Task, Verdict
from paribus_runners.native.task.chain import Chain
from paribus_runners.native.task.jsonl import Jsonl
from paribus_runners.native.task.search import Search

__all__ = ["Problem", "Task", "Verdict", "task_of"]


def task_of(level: TaskLevel) -> Task:
    """Return the task of a recipe.

    Raises:
        ParibusError: a problem file is missing or malformed.
    """
    if isinstance(level, JsonlTask):
        return Jsonl(level)
    return Chain(level.problems) if isinstance(level, ChainTask) else Search(level.problems)
