"""Rules on the groups of responses: how much of a batch carries a gradient."""

from __future__ import annotations

from paribus.health.detector import FINE, Detector, Verdict, above
from paribus.health.view import View
from paribus.recipe.recipe import Recipe

ZERO = "group/zero_std_frac"
RIGHT, WRONG = "group/all_correct_frac", "group/all_wrong_frac"
_WEIGHTS = "correction/effective_frac"


def _zero(v: View) -> Verdict | None:
    now = v.middle(ZERO)
    if now is None:
        return None
    right, wrong = v.middle(RIGHT), v.middle(WRONG)
    hard = v.count(ZERO) <= 2.5 * v.w and wrong is not None and wrong > v.p["warn"]
    says = f"{now:.0%} of the groups have no spread"
    if right is not None and wrong is not None:
        says += f" ({right:.0%} all right, {wrong:.0%} all wrong)"
        says += ": the prompts are too hard" if hard or wrong > right else ": the prompts are mastered"
    return above(now, v.p["warn"], v.p["critical"], says, "no spread")


def _effective(v: View) -> Verdict | None:
    zero, weights = v.middle(ZERO), v.middle(_WEIGHTS)
    shares = [1 - zero] if zero is not None else []
    shares += [weights] if weights is not None else []
    if not shares:
        return None
    least = min(shares)
    if least >= v.p["share"]:
        return FINE
    what = "groups with a gradient" if zero is not None and least == 1 - zero else "the effective sample of the weights"
    says = f"{what}: {least:.0%} of the batch"
    return Verdict(state="warn", says=says, numbers={"share": least, "limit": v.p["share"]})


def _one_response(recipe: Recipe) -> str:
    return "" if recipe.schedule.group_size > 1 else "groups have one response"


def _filled_up(recipe: Recipe) -> str:
    if recipe.filter.kind in ("refill", "refill_async"):
        return f"`filter: {recipe.filter.kind}` fills the batch up"
    return _one_response(recipe)


DETECTORS = (
    Detector(
        name="zero_variance",
        looks_for="groups whose responses all get the same reward, and so no gradient",
        needs=(ZERO,),
        uses=(RIGHT, WRONG),
        rule=_zero,
        why_not=_one_response,
    ),
    Detector(
        name="effective_batch",
        looks_for="a small part of the batch decides the gradient",
        any_of=(ZERO, _WEIGHTS),
        rule=_effective,
        why_not=_filled_up,
    ),
)
