"""What a run will cost, by a few steps of one like it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, fsum

from paribus.contract import Evaluate
from paribus.recipe.recipe import Recipe
from paribus.study.costs import Cost, kind_of
from paribus.study.evaluation import set_sizes
from paribus.study.plan import Arm, Plan
from paribus.text import plural

STEPS = 6
"""Steps of a probe: the first warms up and the last is followed by an evaluation, so that four are timed."""

PRETRAINING = 2
"""Steps of value pretraining in a probe."""


@dataclass(frozen=True, kw_only=True)
class PilotTimes:
    """What a probe took.

    Attributes:
        start: seconds from the start of the runner to the end of its first evaluation.
        steps: seconds of single steps, without evaluations.
        evaluation: seconds of one evaluation.
        length: tokens of a response on average; ``None`` if the runner does not record it.
        gpus: GPUs that it held; 0: it ran on CPU cores.
    """

    start: float
    steps: tuple[float, ...]
    evaluation: float
    length: float | None
    gpus: float

    @property
    def step(self) -> float:
        """Seconds of a step on average."""
        return fsum(self.steps) / len(self.steps)


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """Arms whose runs cost about the same, and the times of a pilot run of the first of them."""

    arms: tuple[Arm, ...]
    times: PilotTimes


def pilot_times(
    ends: tuple[float, ...], *, evaluation: float | None = None, length: float | None = None, gpus: float = 0.0
) -> PilotTimes:
    """Return the times of a pilot run.

    Args:
        ends: seconds from the start of the runner to the end of its first evaluation and of each step; the last of them
            holds an evaluation.
        evaluation: seconds of that; ``None``: by how much the last step took longer.
        length: tokens of a response.
        gpus: GPUs held.
    """
    each = [after - before for before, after in pairwise(ends)]
    steps = tuple(each[1:-1] or each[:1])
    if evaluation is None:
        evaluation = max(0.0, each[-1] - fsum(steps) / len(steps))
    return PilotTimes(start=ends[0], steps=steps, evaluation=evaluation, length=length, gpus=gpus)


def kinds_without(plan: Plan, recorded: Collection[str], known: Collection[str]) -> tuple[tuple[Arm, ...], ...]:
    """Return the arms whose cost is unknown, grouped by kind (:func:`kind_of`).

    Args:
        plan: the plan.
        recorded: fingerprints of the runs that have a result; arms without a run left cost nothing more.
        known: keys of the arms whose cost is known.
    """
    evaluate = plan.evaluate.model_dump(mode="json")
    left = {run.arm for run in plan.runs if run.fingerprint not in recorded}
    kinds: dict[str, list[Arm]] = {}
    for arm in plan.arms:
        if arm.key in left and arm.key not in known:
            kinds.setdefault(kind_of(arm.recipe.model_dump(mode="json"), evaluate), []).append(arm)
    return tuple(map(tuple, kinds.values()))


def shortened(recipe: Recipe) -> Recipe:
    """Return the recipe with the few steps of a pilot run."""
    schedule = recipe.schedule.model_copy(update={"steps": min(STEPS, recipe.schedule.steps), "tokens": None})
    value = recipe.auxiliary.value
    if value is not None:
        value = value.model_copy(update={"pretrain_steps": min(PRETRAINING, value.pretrain_steps)})
    auxiliary = recipe.auxiliary.model_copy(update={"value": value})
    return recipe.model_copy(update={"schedule": schedule, "auxiliary": auxiliary})


def cost_of(times: PilotTimes, recipe: Recipe, evaluate: Evaluate) -> Cost:
    """Return the cost of a whole run: ``start + steps x step + evaluations x evaluation``.

    A pilot run evaluates all sets after its last step; a set that is due less often counts that much less.

    Low and expected take the fastest step and the mean. High takes the slowest, with all responses as long as they may
    become: they grow in training, and sampling and updates with them. A step of value pretraining counts as a step.

    Args:
        times: of the pilot run of this recipe, or of one of its kind.
        recipe: the whole recipe.
        evaluate: how its runs are evaluated.
    """
    value, probed = recipe.auxiliary.value, shortened(recipe).auxiliary.value
    pretraining = value.pretrain_steps - probed.pretrain_steps if value and probed else 0
    steps = _steps(recipe, times.length) + pretraining
    evaluations = _evaluations(recipe, evaluate)
    growth = max(1.0, recipe.schedule.max_new_tokens / times.length) if times.length else 1.0

    def hours(step: float, grown: float = 1.0) -> float:
        seconds = times.start + grown * (steps * step + evaluations * times.evaluation)
        return seconds * (times.gpus or 1.0) / 3600

    return Cost(
        low=hours(min(times.steps)),
        expected=hours(times.step),
        high=hours(max(times.steps), growth),
        unit="GPU-hours" if times.gpus else "CPU run-hours",
        sources=(f"a probe of {plural(shortened(recipe).schedule.steps, 'step')}",),
    )


def _steps(recipe: Recipe, length: float | None) -> int:
    """Return the steps of a run; with a budget, those that it lasts for with responses of the probe's length."""
    schedule, steps = recipe.schedule, recipe.schedule.steps
    if schedule.prompts is not None:
        steps = min(steps, ceil(schedule.prompts / schedule.prompts_per_step))
    if schedule.tokens is None or not length:
        return steps
    return min(steps, ceil(schedule.tokens / (schedule.responses * length)))


def _evaluations(recipe: Recipe, evaluate: Evaluate) -> float:
    """Return the evaluations after training began, each set's weighed by the tokens that it may sample at once."""
    sizes = set_sizes(evaluate, recipe)
    weights = [size.responses * size.limit for size in sizes]
    return fsum(w * (size.evaluations - 1) for w, size in zip(weights, sizes, strict=True)) / fsum(weights)
