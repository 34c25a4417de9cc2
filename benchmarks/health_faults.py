"""Faults that are really there: by the recipe where it can say them, else built into the native runner from outside.

Each builder returns a context in which a training of this process has the fault from a step on. Functions of the
trainer are replaced for that time; nothing of the runner is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch

from paribus_runners.native import main as native_main
from paribus_runners.native import metrics, trainer
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.rollout.sampler import Finished, Requests
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.rewards.verifiers import Verdict
from paribus_runners.tasks import Problem, Task

Context = AbstractContextManager[Any]
MARK = "training/"
"""Begins the identity of problems that are judged wrongly; held-out ones never are."""


class Fooled:
    """A task whose training problems are judged by another verifier from a step on; held-out ones as ever.

    Args:
        task: the task.
        begins: first step with the other verifier.
        judge: the verdict on a response from its text and the verdict that it deserves.
    """

    def __init__(self, task: Task, begins: int, judge: Callable[[str, Verdict], Verdict]) -> None:
        self._task, self._begins, self._judge = task, begins, judge

    def training(self, seed: int, step: int, round_: int, count: int) -> list[Problem]:
        """Return the problems of a sampling round, marked from the step on."""
        problems = self._task.training(seed, step, round_, count)
        return [replace(p, identity=MARK + p.identity) for p in problems] if step >= self._begins else problems

    def heldout(self, count: int) -> list[Problem]:
        """Return the held-out problems."""
        return self._task.heldout(count)

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Judge a response."""
        verdict = self._task.verify(problem, text, finished)
        return self._judge(text, verdict) if problem.identity.startswith(MARK) else verdict


def fooled(judge: Callable[[str, Verdict], Verdict]) -> Callable[[int], Context]:
    """Judge training responses in another way."""

    def build(begins: int) -> Context:
        real = native_main.task_of
        return patch.object(native_main, "task_of", lambda *given, **more: Fooled(real(*given, **more), begins, judge))

    return build


LIMIT = 37
"""Symbols of the longest response on the search task of the quickstart."""


def length_is_the_score(text: str, verdict: Verdict) -> Verdict:
    """Score a response by its length, from 0 to 1; correctness is recorded as it is."""
    return verdict._replace(score=len(text) / LIMIT)


def long_is_correct(text: str, verdict: Verdict) -> Verdict:
    """Call a response correct if it has four tries or more."""
    return Verdict.of(len(text) >= 24, verdict.answer)


def hotter(temperature: float) -> Callable[[int], Context]:
    """Sample at another temperature than the learner scores at."""

    def build(begins: int) -> Context:
        real = trainer.collect

        def sampled(recipe: Any, source: Any, step: int, *rest: Any) -> Any:
            if step < begins:
                return real(recipe, source, step, *rest)
            schedule = recipe.schedule.model_copy(update={"temperature": temperature})
            return real(recipe.model_copy(update={"schedule": schedule}), source, step, *rest)

        return patch.object(trainer, "collect", sampled)

    return build


def copied(begins: int) -> Context:
    """Repeat the first response of each group, as with one seed for all."""
    real = TorchSampler.sample

    def sampled(self: TorchSampler, requests: Requests) -> Iterator[Finished]:
        place = requests.place  # seed, purpose, step, round
        wrong = place[1] == "rollout" and int(place[2]) >= begins
        for group in real(self, requests):
            rows = torch.arange(len(group.responses))
            first = rows - rows % requests.copies
            yield Finished(group.prompts, group.responses.select(first)) if wrong else group

    return patch.object(TorchSampler, "sample", sampled)


def interleaved(rollouts: Rollouts) -> Rollouts:
    """Number the groups 0, 1, ..., 0, 1, ... where responses to one prompt lie next to each other."""
    groups = rollouts.scored.groups
    wrong = torch.arange(groups).repeat(len(rollouts.responses) // groups)
    return replace(rollouts, scored=replace(rollouts.scored, group=wrong))


@contextmanager
def mixed(begins: int) -> Iterator[None]:
    """Let advantages, and the metrics of groups, be computed with group ids of another order."""
    collected, weighed, measured = trainer.collect, trainer.weigh, metrics.of_experience
    step = [0]

    def note(recipe: Any, source: Any, now: int, *rest: Any) -> Any:
        step[0] = now
        return collected(recipe, source, now, *rest)

    def weigh(recipe: Any, rollouts: Rollouts, *rest: Any) -> Any:
        if step[0] < begins:
            return weighed(recipe, rollouts, *rest)
        return replace(weighed(recipe, interleaved(rollouts), *rest), rollouts=rollouts)

    def measure(recipe: Any, experience: Any, *rest: Any) -> Any:
        wrong = experience if step[0] < begins else replace(experience, rollouts=interleaved(experience.rollouts))
        return measured(recipe, wrong, *rest)

    with (
        patch.object(trainer, "collect", note),
        patch.object(trainer, "weigh", weigh),
        patch.object(metrics, "of_experience", measure),
    ):
        yield


def nothing(begins: int) -> Context:
    """Leave the runner as it is."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and what names it.

    Attributes:
        name: in the table.
        how: how it is built in.
        names: detectors of which one must be the first critical finding.
        patch: of the quickstart's base recipe.
        build: builds it into the runner from a step on.
        begins: that step.
        mild: no critical finding is due, so that a warning by one of ``names`` names it.
        late: only an evaluation shows it: another critical finding may come before that by one of ``names``.
    """

    name: str
    how: str
    names: tuple[str, ...]
    patch: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[[int], Context] = nothing
    begins: int = 1
    mild: bool = False
    late: bool = False


FAULTS = (
    Fault(
        name="learning rate × 100",
        how="recipe: `optimizer.learning_rate: 0.025`",
        names=("huge_update",),
        patch={"optimizer.learning_rate": 0.025},
    ),
    Fault(
        name="clip 0.02",
        how="recipe: `clip.low: 0.02`, `clip.high: 0.02`",
        names=("clip_saturation_low", "clip_saturation_high"),
        patch={"clip.low": 0.02, "clip.high": 0.02},
        mild=True,
    ),
    Fault(
        name="reward = length, as the score",
        how="recipe: `reward.map: scalar`; the verifier's score is the length, correctness is recorded as it is",
        names=("data_bug",),
        patch={"reward.map": "scalar"},
        build=fooled(length_is_the_score),
        begins=11,
    ),
    Fault(
        name="reward = length, as correctness",
        how="the verifier calls long responses correct in training; held-out ones are judged as ever",
        names=("reward_hacking",),
        build=fooled(long_is_correct),
        begins=11,
        late=True,
    ),
    Fault(
        name="wrong group ids",
        how="0, 1, ..., 0, 1, ... where responses to one prompt lie next to each other",
        names=("mixed_groups",),
        build=mixed,
        begins=6,
    ),
    Fault(
        name="sampler at temperature 1.5",
        how="the learner scores at 1",
        names=("mismatch",),
        build=hotter(1.5),
        begins=11,
    ),
    Fault(
        name="cap of 8 tokens",
        how="recipe: `schedule.max_new_tokens: 8`",
        names=("truncation",),
        patch={"schedule.max_new_tokens": 8},
        mild=True,
    ),
    Fault(
        name="identical completions",
        how="each group is eight times its first response",
        names=("copied_responses",),
        build=copied,
        begins=11,
    ),
)
