"""Prompts that are left out because the policy solves them, and the walk through the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from paribus_runners.native.objective import segment
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.tasks import Problem, Task, size_of


class AllRetired(Exception):
    """No training problem is left."""


@dataclass(frozen=True)
class Retired:
    """What a run knows of solved prompts (No-Positive-Resampling, ScaleRL, arXiv 2510.13786, section 3.2).

    Attributes:
        place: how far the run is in its endless walk through the problems, the left-out ones counted.
        prompts: identities of the prompts that are left out.
    """

    place: int = 0
    prompts: frozenset[str] = frozenset()

    def record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"place": self.place, "prompts": sorted(self.prompts)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Retired:
        """Return what :meth:`record` wrote."""
        return cls(int(record["place"]), frozenset(map(str, record["prompts"])))

    def problems(self, task: Task, seed: int, step: int, round_: int, wanted: int) -> tuple[list[Problem], Retired]:
        """Return the problems of a sampling round, and what is known after it.

        The first round of a step goes on where the last one ended, in the order in which a run without retirement
        visits all problems: the left-out ones are passed by. Further rounds go through shuffles of the step.

        Args:
            task: one with a number of problems.
            seed: seed of the run.
            step: from 1.
            round_: sampling round in the step, from 0.
            wanted: problems in each round.

        Raises:
            AllRetired: no problem is left.
        """
        size = size_of(task)
        assert size is not None
        if round_ == 0:
            left = self._left(lambda place: task.training(seed, place + 1, 0, 1)[0], self.place, size)
            found = list(islice(left, wanted))
            return [problem for _, problem in found], Retired(found[-1][0] + 1, self.prompts)
        left = self._left(lambda place: task.training(seed, step, place + 1, 1)[0], 0, size)
        return [problem for _, problem in islice(left, (round_ - 1) * wanted, round_ * wanted)], self

    def after(self, rollouts: Rollouts, pass_rate: float) -> Retired:
        """Return what is known after new groups: those whose share of right responses is ``pass_rate`` or more go."""
        scored, fresh = rollouts.scored, ~rollouts.carried
        rate = segment.mean(scored.correct.double(), scored.group, scored.groups)
        solved = ((rate >= pass_rate) & fresh).nonzero().squeeze(1).tolist()
        return Retired(self.place, self.prompts | {rollouts.problems[i] for i in solved})

    def _left(self, at: Any, place: int, size: int) -> Iterator[tuple[int, Problem]]:
        """Yield place and problem along a walk, the left-out ones passed by; two empty passes are the end."""
        last = place
        for here in count(place):
            problem = at(here)
            if identity(problem) not in self.prompts:
                last = here
                yield here, problem
            elif here - last >= 2 * size:
                raise AllRetired


def identity(problem: Problem) -> str:
    """Return what a prompt is known by, at every visit and in every checkpoint."""
    return hashlib.sha256(problem.prompt.encode()).hexdigest()[:16]
