"""Rules that hold in every run: finite numbers, data that can be, rollouts and steps that end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from paribus.health.alive import not_finite, silence_limit
from paribus.health.detector import FINE, Detector, Verdict, above
from paribus.health.signals import EVALUATION_FAULTS, ROLLOUT_ERRORS
from paribus.health.view import View
from paribus.recipe.analysis.facts import rewards_correctness_alone
from paribus.track.metrics import find_metric

_STEP = "perf/time_step_s"
_TINY = 1e-6
_ROUNDED = 1e-3
"""Share of its scale by which a mean of rewards may be off: some logs hold four digits."""


def _nan(v: View) -> Verdict:
    bad = not_finite(v.line.values)
    if not bad:
        return FINE
    return Verdict(state="critical", says=f"not finite at step {v.line.step}: {', '.join(bad)}")


def _data(v: View) -> Verdict:
    found = [*_impossible(v), *_shrinking(v)]
    return Verdict(state="critical", says="; ".join(found)) if found else FINE


def _impossible(v: View) -> Iterator[str]:
    """Yield what cannot be in the newest line."""
    for name, x in v.line.values.items():
        metric = find_metric(name)
        bounded = metric is not None and metric.unit == "fraction" and name not in _UNBOUNDED
        if bounded and not -_TINY <= x <= 1 + _TINY and x == x:
            yield f"{name} is {x:.4g}, a share lies from 0 to 1"
    right, wrong = v.value("group/all_correct_frac"), v.value("group/all_wrong_frac")
    if right is not None and wrong is not None and right + wrong > 1 + _TINY:
        yield f"all-right and all-wrong groups are {right + wrong:.4g} of all"
    mean, longest = v.value("response/length_mean"), v.value("response/length_max")
    if mean is not None and longest is not None and mean > longest + _TINY:
        yield f"the mean length {mean:.4g} is above the largest {longest:.4g}"
    if v.value(EVALUATION_FAULTS):
        yield "an evaluation has other problems than the first, or more right answers than samples"
    if v.recipe is None:
        return
    if longest is not None and longest > v.recipe.schedule.max_new_tokens:
        yield f"a response has {longest:.0f} tokens, schedule.max_new_tokens is {v.recipe.schedule.max_new_tokens}"
    yield from _other_reward(v)


def _other_reward(v: View) -> Iterator[str]:
    """Yield where the reward is not that of the correct responses, though the recipe rewards nothing else."""
    reward, correct = v.value("reward/mean"), v.value("reward/correct_frac")
    assert v.recipe is not None
    if reward is None or not math.isfinite(reward) or not rewards_correctness_alone(v.recipe):
        return
    scale = v.recipe.reward.factor * v.recipe.reward.weights.correct
    low = 0.0 if v.recipe.reward.map == "binary01" else -scale
    if not low - _TINY <= reward <= scale + _TINY:
        yield f"the mean reward {reward:.4g} lies outside {low:g} to {scale:g}"
    elif correct is not None and all(abs(reward - r) > _ROUNDED * scale for r in _means(scale, correct)):
        right = low + correct * (scale - low)
        yield f"the mean reward is {reward:.3g}, but {correct:.0%} correct responses give {right:.3g}"


def _means(scale: float, correct: float) -> tuple[float, float]:
    """Return the mean reward if wrong responses get 0, and if they get the opposite of right ones: logs have either."""
    return scale * correct, scale * (2 * correct - 1)


def _shrinking(v: View) -> Iterator[str]:
    """Yield sums since the start that have become smaller."""
    for name, x in v.line.values.items():
        if name.startswith("budget/"):
            if x < v.memory.get(name, x):
                yield f"{name} fell from {v.memory[name]:.6g} to {x:.6g}"
            if math.isfinite(x):
                v.memory[name] = x


_UNBOUNDED = frozenset({"sampling/waste_frac", "critic/explained_variance"})


def _errors(v: View) -> Verdict | None:
    now = v.middle(ROLLOUT_ERRORS)
    if now is None:
        return None
    return above(now, v.p["warn"], v.p["critical"], f"{now:.0%} of the rollouts are empty, aborted or errors")


def _slow(v: View) -> Verdict | None:
    now = v.value(_STEP)
    earlier = v.tail(_STEP, v.w, 1)
    if now is None or earlier is None:
        return None
    limit = silence_limit(earlier)
    numbers = {"seconds": now, "limit": limit}
    if now > limit:
        return Verdict(state="critical", says=f"a step took {now:.0f} s, the limit is {limit:.0f} s", numbers=numbers)
    usual = sorted(v.tail(_STEP, v.w, 5) or earlier)[v.w // 2]
    last = v.tail(_STEP, 5) or [0.0]
    if min(last) <= v.p["slow"] * usual:
        return FINE
    return Verdict(state="warn", says=f"steps take {now:.3g} s, {usual:.3g} s before", numbers=numbers)


DETECTORS = (
    Detector(
        name="nan",
        looks_for="a canonical metric is not a finite number",
        rule=_nan,
        points=(1, 20),
    ),
    Detector(
        name="data_bug",
        looks_for="numbers that cannot be: shares outside 0 to 1, rewards outside their range, other problems",
        rule=_data,
        points=(1, 20),
    ),
    Detector(
        name="rollout_errors",
        looks_for="rollouts end empty, aborted or in an error",
        needs=(ROLLOUT_ERRORS,),
        rule=_errors,
    ),
    Detector(
        name="dead_run",
        looks_for="steps hang or become much slower",
        needs=(_STEP,),
        rule=_slow,
        points=(1, 5),
        keep=1.0,
    ),
)
