"""Rules on the learning signal of groups: how much of a batch has a gradient."""

from __future__ import annotations

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import REWARD
from paribus.health.window import Window
from paribus.recipe.recipe import Recipe

ZERO = "group/zero_std_frac"
RIGHT, WRONG = "group/all_correct_frac", "group/all_wrong_frac"
_WEIGHTS = "correction/effective_frac"


def _zero(run: Window) -> RuleResult | None:
    now, reward = run.median(ZERO), run.median(REWARD)
    if now is None:
        return None
    right, wrong = run.median(RIGHT), run.median(WRONG)
    best = run.memory["best"] = max(run.memory.get("best", reward), reward) if reward is not None else None
    run.memory["spread"] = run.memory.get("spread", False) or now <= run.p["spread"]
    if now <= run.p["note"]:
        return OK
    text = f"rewards are equal in {now:.0%} of the groups"
    if right is not None and wrong is not None:
        text += f": all right in {right:.0%}, all wrong in {wrong:.0%}"
    first = run.first_median(REWARD)
    risen = reward is not None and first is not None and best is not None and _risen(run, reward, first, best)
    # groups that are all right are what training is for; without the split, a reward that has risen and not fallen
    mastered = right > wrong if right is not None and wrong is not None else risen
    ranks = [limit for limit in ("note", "warn", "critical") if now > run.p[limit]]
    # without spread from the beginning on, a run may only be slow to start: then a long window must be without
    long = run.mean(ZERO, max(run.w, min(run.W, int(run.looks * run.w / 2))))
    if not run.memory["spread"] and (long is None or long.value <= run.p[ranks[-1]]):
        ranks = ranks[:1] if long is None else [x for x in ranks if x == "note" or long.value > run.p[x]]
    state = "note" if mastered or len(ranks) == 1 else "warn" if len(ranks) == 2 else "critical"
    numbers = {"no spread": now, "limit": run.p[state]}
    onset = None if run.memory["spread"] else _since(run)
    return RuleResult(state=state, evidence=text, numbers=numbers, onset=onset)  # type: ignore[arg-type]


def _since(run: Window) -> int:
    """Return the step from which on no group had spread, in a run in which hardly any ever had."""
    steps, values = run.steps(ZERO), run.values(ZERO)
    last = max((i for i, share in enumerate(values) if share <= run.p["spread"]), default=-1)
    if last < 0 and min(run.first(ZERO) or [0.0]) > run.p["spread"]:
        return run.first_step(ZERO)
    return steps[min(last + 1, len(steps) - 1)]


def _risen(run: Window, reward: float, first: float, best: float) -> bool:
    """Return whether the reward has risen since the beginning, and is still where it was at its best."""
    gain = run.p["gain"] * run.scale(REWARD)
    return reward - first > gain and best - reward < gain


def _effective(run: Window) -> RuleResult | None:
    now = run.median(_WEIGHTS)
    if now is None:
        return None
    if now >= run.p["share"]:
        return OK
    text = f"the effective sample of the weights is {now:.0%} of the batch"
    return RuleResult(state="warn", evidence=text, numbers={"share": now, "limit": run.p["share"]})


def _one_response(recipe: Recipe) -> str:
    return "" if recipe.schedule.group_size > 1 else "groups have a single response"


DETECTORS = (
    Detector(
        name="zero_variance",
        looks_for="groups whose responses all get the same reward, and therefore no gradient",
        needs=(ZERO,),
        uses=(RIGHT, WRONG, REWARD),
        rule=_zero,
        why_not=_one_response,
        keep=4.0,
    ),
    Detector(
        name="effective_batch",
        looks_for="the gradient depends on a small part of the batch, as the weights of the correction differ",
        needs=(_WEIGHTS,),
        rule=_effective,
    ),
)
