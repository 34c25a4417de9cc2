"""What the runs of a plan will cost: as much as runs of the same kind did, else as the study file believes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from paribus.study.plan import Plan, PlannedRun
from paribus.study.spec import RunHours

PRIOR = "`budget.prior`"


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run with a result, and what it cost.

    Attributes:
        runner: what trained it.
        recipe: its recipe, as a plan keeps it.
        evaluate: how it was evaluated, as a plan keeps it.
        seconds: charged for all its attempts: of its GPUs together, or of a CPU slot.
        gpus: GPUs that it held; 0: a CPU slot.
    """

    runner: str
    recipe: Mapping[str, Any]
    evaluate: Mapping[str, Any]
    seconds: float
    gpus: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Hours of devices.

    Attributes:
        low: if all goes as cheaply as it has gone, a tenth of the runs left out.
        expected: by the mean.
        high: if all is as dear as it has been, a tenth of the runs left out.
        unit: ``GPU-hours``, ``CPU-slot-hours``, or ``device-hours`` where runs differ.
        sources: where the numbers come from.
    """

    low: float
    expected: float
    high: float
    unit: str
    sources: tuple[str, ...]


def run_costs(plan: Plan, prior: RunHours | None, past: Sequence[PastRun] = ()) -> dict[str, Cost]:
    """Return what one run of each arm costs, by key of the arm; arms of which nothing is known are left out.

    Known are, first, runs of the same recipe and evaluation; then runs of the same kind, see :func:`kind_of`; then the
    prior of the study file.

    Args:
        plan: the plan.
        prior: of the study file.
        past: runs with a result, newest first; those on other devices than the newest are not looked at.
    """
    on_gpus = bool(past) and past[0].gpus > 0
    alike = [run for run in past if (run.gpus > 0) == on_gpus and run.runner == plan.runner]
    evaluate = plan.evaluate.model_dump(mode="json")
    same: dict[str, list[float]] = {}
    kinds: dict[str, list[float]] = {}
    for run in alike:
        same.setdefault(_text([run.recipe, run.evaluate]), []).append(run.seconds / 3600)
        kinds.setdefault(kind_of(run.recipe, run.evaluate), []).append(run.seconds / 3600)
    unit = "GPU-hours" if on_gpus else "CPU-slot-hours"
    found = {}
    for arm in plan.arms:
        recipe = arm.recipe.model_dump(mode="json")
        if hours := same.get(_text([recipe, evaluate])):
            found[arm.key] = _cost(hours, unit, "recorded runs of the same recipe")
        elif hours := kinds.get(kind_of(recipe, evaluate)):
            found[arm.key] = _cost(hours, unit, "recorded runs of the same kind")
        elif prior is not None:
            found[arm.key] = Cost(**prior.model_dump(), unit="GPU-hours", sources=(PRIOR,))
    return found


def total(costs: Mapping[str, Cost], runs: Iterable[PlannedRun]) -> Cost | None:
    """Return what these runs cost together; ``None`` if nothing is known of one of them, or there are none."""
    each = [costs.get(run.arm) for run in runs]
    known = [cost for cost in each if cost is not None]
    if not known or len(known) < len(each):
        return None
    units = {cost.unit for cost in known}
    return Cost(
        low=fsum(cost.low for cost in known),
        expected=fsum(cost.expected for cost in known),
        high=fsum(cost.high for cost in known),
        unit=units.pop() if len(units) == 1 else "device-hours",
        sources=tuple(dict.fromkeys(source for cost in known for source in cost.sources)),
    )


def kind_of(recipe: Mapping[str, Any], evaluate: Mapping[str, Any]) -> str:
    """Return what the cost of a run mostly depends on: model, task, schedule, evaluation and the kinds of factors.

    The values of factors (clip bounds, coefficients) cost nothing; their kinds may: a filter that samples again, a
    critic, a reference model.
    """
    whole = {name: recipe.get(name) for name in ("model", "task", "schedule")}
    kinds = {name: value.get("kind") for name, value in recipe.items() if isinstance(value, Mapping)}
    cheap = ("primary", "checkpoint", "temperature")
    return _text([whole, kinds, {k: v for k, v in evaluate.items() if k not in cheap}])


def _cost(hours: Sequence[float], unit: str, source: str) -> Cost:
    ordered = sorted(hours)
    cut = len(ordered) // 10
    mean = fsum(ordered) / len(ordered)
    return Cost(low=ordered[cut], expected=mean, high=ordered[-1 - cut], unit=unit, sources=(source,))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
