"""Rules on the learning signal of groups: how much of a batch has a gradient."""

from __future__ import annotations

from paribus.health.detector import OK, Detector, RuleResult, above
from paribus.health.window import Window
from paribus.recipe.recipe import Recipe

ZERO = "group/zero_std_frac"
RIGHT, WRONG = "group/all_correct_frac", "group/all_wrong_frac"
_WEIGHTS = "correction/effective_frac"


def _zero(run: Window) -> RuleResult | None:
    now = run.median(ZERO)
    if now is None:
        return None
    right, wrong = run.median(RIGHT), run.median(WRONG)
    hard = run.count(ZERO) <= 2.5 * run.w and wrong is not None and wrong > run.p["warn"]
    text = f"rewards are equal in {now:.0%} of the groups"
    if right is not None and wrong is not None:
        text += f" ({right:.0%} all right, {wrong:.0%} all wrong)"
        text += ": the prompts are too hard" if hard or wrong > right else ": the prompts are mastered"
    return above(now, run.p["warn"], run.p["critical"], text, "no spread")


def _effective(run: Window) -> RuleResult | None:
    zero, weights = run.median(ZERO), run.median(_WEIGHTS)
    shares = [1 - zero] if zero is not None else []
    shares += [weights] if weights is not None else []
    if not shares:
        return None
    least = min(shares)
    if least >= run.p["share"]:
        return OK
    what = "groups with a gradient" if zero is not None and least == 1 - zero else "the effective sample of the weights"
    text = f"{what}: {least:.0%} of the batch"
    return RuleResult(state="warn", evidence=text, numbers={"share": least, "limit": run.p["share"]})


def _one_response(recipe: Recipe) -> str:
    return "" if recipe.schedule.group_size > 1 else "groups have a single response"


def _filled_up(recipe: Recipe) -> str:
    if recipe.filter.kind in ("refill", "refill_async"):
        return f"`filter: {recipe.filter.kind}` refills the batch"
    return _one_response(recipe)


DETECTORS = (
    Detector(
        name="zero_variance",
        looks_for="groups whose responses all get the same reward, and therefore no gradient",
        needs=(ZERO,),
        uses=(RIGHT, WRONG),
        rule=_zero,
        why_not=_one_response,
    ),
    Detector(
        name="effective_batch",
        looks_for="the gradient depends on a small part of the batch",
        any_of=(ZERO, _WEIGHTS),
        rule=_effective,
        why_not=_filled_up,
    ),
)
