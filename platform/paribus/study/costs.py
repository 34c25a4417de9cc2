"""Estimates what the runs of a plan cost: from recorded runs of the same kind, else from the prior of the study."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from paribus.contract import Options
from paribus.recipe.recipe import flatten
from paribus.study.fingerprint import without_added
from paribus.study.plan import Plan, PlannedRun
from paribus.study.spec import RunHours

PRIOR = "`budget.prior`"


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run with a result, and what it cost.

    Attributes:
        runner: name of its runner.
        recipe: its recipe, as stored in the plan.
        evaluate: its evaluation, as stored in the plan.
        seconds: device time of all its attempts: of its GPUs together, or of the run on CPU cores.
        gpus: GPUs that it held; 0: it ran on CPU cores.
        options: what its study said to the runner.
        waited_s: seconds from a claim to the first report of the attempt, the least of its attempts.
    """

    runner: str
    recipe: Mapping[str, Any]
    evaluate: Mapping[str, Any]
    seconds: float
    gpus: float
    options: Options = field(default_factory=Options)
    waited_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Hours of devices.

    Attributes:
        low: if every run costs as little as the cheapest recorded ones, without the cheapest tenth.
        expected: by the mean.
        high: if every run costs as much as the dearest recorded ones, without the dearest tenth.
        unit: ``GPU-hours``, ``CPU run-hours``, or ``device-hours`` where runs differ.
        sources: where the numbers come from.
    """

    low: float
    expected: float
    high: float
    unit: str
    sources: tuple[str, ...]


def run_costs(plan: Plan, prior: RunHours | None, past: Sequence[PastRun] = ()) -> dict[str, Cost]:
    """Return the cost of one run of each arm, by key of the arm, without the arms whose cost is unknown.

    Sources, in this order: runs of the same recipe and evaluation; runs of the same kind (:func:`kind_of`); the prior
    of the study.

    Args:
        plan: the plan.
        prior: of the study file.
        past: runs with a result, newest first; runs on another kind of device than the newest are ignored.
    """
    on_gpus = bool(past) and past[0].gpus > 0
    alike = [
        run
        for run in past
        if (run.gpus > 0) == on_gpus and (run.runner, run.options.said) == (plan.runner, plan.options.said)
    ]
    evaluate = plan.evaluate.model_dump(mode="json")
    same: dict[str, list[float]] = {}
    kinds: dict[str, list[float]] = {}
    for run in alike:
        same.setdefault(_text([without_added(flatten(run.recipe)), run.evaluate]), []).append(run.seconds / 3600)
        kinds.setdefault(kind_of(run.recipe, run.evaluate), []).append(run.seconds / 3600)
    unit = "GPU-hours" if on_gpus else "CPU run-hours"
    found = {}
    for arm in plan.arms:
        recipe = arm.recipe.model_dump(mode="json")
        if hours := same.get(_text([without_added(flatten(recipe)), evaluate])):
            found[arm.key] = _cost(hours, unit, "recorded runs of the same recipe")
        elif hours := kinds.get(kind_of(recipe, evaluate)):
            found[arm.key] = _cost(hours, unit, "recorded runs of the same kind")
        elif prior is not None:
            found[arm.key] = Cost(**prior.model_dump(), unit="GPU-hours", sources=(PRIOR,))
    return found


def total(costs: Mapping[str, Cost], runs: Iterable[PlannedRun]) -> Cost | None:
    """Return the cost of these runs together; ``None`` without runs, or if the cost of one is unknown."""
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
    """Return the parts of a recipe that decide most of the cost: model, task, schedule, evaluation, kinds of factors.

    Values of factors (clip bounds, coefficients) cost nothing. Their kinds may cost: a filter that samples again, a
    critic, a reference model.
    """
    whole = {name: recipe.get(name) for name in ("model", "task", "schedule")}
    ways = {name: recipe[name] for name in ("rollout", "compute") if name in recipe}
    factors = {name: value for name, value in recipe.items() if isinstance(value, Mapping) and name not in ways}
    kinds = {name: value.get("kind") for name, value in factors.items()} | without_added(flatten(ways))
    cheap = ("primary", "checkpoint", "temperature")
    return _text([whole, kinds, {k: v for k, v in evaluate.items() if k not in cheap}])


def _cost(hours: Sequence[float], unit: str, source: str) -> Cost:
    ordered = sorted(hours)
    cut = len(ordered) // 10
    mean = fsum(ordered) / len(ordered)
    return Cost(low=ordered[cut], expected=mean, high=ordered[-1 - cut], unit=unit, sources=(source,))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
