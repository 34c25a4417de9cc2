"""Rules that apply to every run: finite numbers, possible values, rollouts without errors, steps that end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from paribus.health.detector import OK, Detector, RuleResult, above
from paribus.health.liveness import not_finite, silence_limit
from paribus.health.signals import EVALUATION_FAULTS, ROLLOUT_ERRORS
from paribus.health.window import Window
from paribus.recipe.analysis.facts import rewards_correctness_alone
from paribus.run_folder.metrics import find_metric

_STEP = "perf/time_step_s"
_TINY = 1e-6
_ROUNDED = 1e-3
"""Tolerance for a mean reward, as a share of its scale: some logs round to four digits."""


def _nan(run: Window) -> RuleResult:
    evidence = not_finite(run.line)
    return RuleResult(state="critical", evidence=evidence) if evidence else OK


def _data(run: Window) -> RuleResult:
    found = [*_impossible(run), *_shrinking(run)]
    return RuleResult(state="critical", evidence="; ".join(found)) if found else OK


def _impossible(run: Window) -> Iterator[str]:
    """Yield impossible values in the newest line."""
    for name, x in run.line.values.items():
        metric = find_metric(name)
        bounded = metric is not None and metric.unit == "fraction" and name not in _UNBOUNDED
        if name.startswith("eval/") and run.line.sources.get(name) == "proxy":
            continue  # another trainer's evaluation can record a reward or percent
        if bounded and not -_TINY <= x <= 1 + _TINY and x == x:
            yield f"{name} is {x:.4g}, a share must be from 0 to 1"
    right, wrong = run.newest("group/all_correct_frac"), run.newest("group/all_wrong_frac")
    if right is not None and wrong is not None and right + wrong > 1 + _TINY:
        yield f"all-right and all-wrong groups are {right + wrong:.4g} of all"
    mean, longest = run.newest("response/length_mean"), run.newest("response/length_max")
    if mean is not None and longest is not None and mean > longest + _TINY:
        yield f"the mean length {mean:.4g} is above the largest {longest:.4g}"
    if run.newest(EVALUATION_FAULTS):
        yield "an evaluation has different problems than the first, or more right answers than samples"
    if run.recipe is None:
        return
    if longest is not None and longest > run.recipe.schedule.max_new_tokens:
        yield f"a response has {longest:.0f} tokens, schedule.max_new_tokens is {run.recipe.schedule.max_new_tokens}"
    yield from _other_reward(run)


def _other_reward(run: Window) -> Iterator[str]:
    """Yield a mean reward that contradicts the share of correct responses, if the recipe rewards nothing else."""
    reward, correct = run.newest("reward/mean"), run.newest("reward/correct_frac")
    assert run.recipe is not None
    if reward is None or not math.isfinite(reward) or not rewards_correctness_alone(run.recipe):
        return
    scale = run.recipe.reward.factor * run.recipe.reward.weights.correct
    low = 0.0 if run.recipe.reward.map == "binary01" else -scale
    if not low - _TINY <= reward <= scale + _TINY:
        yield f"the mean reward {reward:.4g} is not from {low:g} to {scale:g}"
    elif correct is not None and all(abs(reward - r) > _ROUNDED * scale for r in _means(scale, correct)):
        right = low + correct * (scale - low)
        yield f"the mean reward is {reward:.3g}, but {correct:.0%} correct responses give {right:.3g}"


def _means(scale: float, correct: float) -> tuple[float, float]:
    """Return the mean reward if wrong responses get 0, and if they get minus the reward of right ones: logs differ."""
    return scale * correct, scale * (2 * correct - 1)


def _shrinking(run: Window) -> Iterator[str]:
    """Yield cumulative sums that decreased."""
    for name, x in run.line.values.items():
        if name.startswith("budget/"):
            if x < run.memory.get(name, x):
                yield f"{name} fell from {run.memory[name]:.6g} to {x:.6g}"
            if math.isfinite(x):
                run.memory[name] = x


_FAILED = "reward/failed_frac"
_HOW_FAILED = re.compile(r"reward/(\w+)/failed_(\w+)")
_UNBOUNDED = frozenset({"sampling/waste_frac", "critic/explained_variance"})


def _errors(run: Window) -> RuleResult | None:
    now, failed = run.median(ROLLOUT_ERRORS), run.last(_FAILED, run.w)
    results = []
    if now is not None:
        text = f"{now:.0%} of the rollouts are empty, aborted or failed"
        results.append(above(now, run.p["warn"], run.p["critical"], text))
    if failed is not None:  # the mean: a burst of failures in few steps spoils as many rewards as a trickle in all
        share = sum(failed) / run.w
        text = f"{share:.1%} of the responses of {run.w} steps got the score of a failure{_why_failed(run)}"
        results.append(above(share, run.p["reward_warn"], run.p["reward_critical"], text))
    ranks = ("ok", "warn", "critical")
    return max(results, key=lambda result: ranks.index(result.state), default=None)


def _why_failed(run: Window) -> str:
    """Return which function failed how in the newest step, the most frequent first; kept from the last that had any."""
    found = [(x, m[1], m[2].replace("_", " ")) for k, x in run.line.values.items() if (m := _HOW_FAILED.fullmatch(k))]
    if found:
        worst = sorted(found, reverse=True)[:3]
        run.memory["failed"] = ": " + ", ".join(f"`{name}` by {how} ({x:.1%})" for x, name, how in worst)
    return str(run.memory.get("failed", ""))


def _slow(run: Window) -> RuleResult | None:
    now = run.newest(_STEP)
    earlier = run.last(_STEP, run.w, 1)
    if now is None or earlier is None:
        return None
    limit = silence_limit(earlier)
    numbers = {"seconds": now, "limit": limit}
    if now > limit:
        return RuleResult(
            state="critical", evidence=f"a step took {now:.0f} s, the limit is {limit:.0f} s", numbers=numbers
        )
    usual = sorted(run.last(_STEP, run.w, 5) or earlier)[run.w // 2]
    last = run.last(_STEP, 5) or [0.0]
    if min(last) <= run.p["slow"] * usual:
        return OK
    return RuleResult(state="warn", evidence=f"steps take {now:.3g} s, {usual:.3g} s before", numbers=numbers)


DETECTORS = (
    Detector(
        name="nan",
        looks_for="a canonical metric is not a finite number",
        rule=_nan,
        points=(1, 20),
    ),
    Detector(
        name="data_bug",
        looks_for="impossible values: shares outside 0 to 1, rewards outside their range, other evaluation problems",
        rule=_data,
        points=(1, 20),
    ),
    Detector(
        name="rollout_errors",
        looks_for="rollouts are empty, aborted or failed, or rewards of responses could not be computed",
        any_of=(ROLLOUT_ERRORS, _FAILED),
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
