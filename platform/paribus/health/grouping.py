"""Rules on what a group is: responses to one prompt, each drawn by itself.

Responses to one prompt agree more often than responses to different ones, because some prompts are easy and some hard;
and they do not agree always, because each is drawn. Both follow from shares that every run logs: correct responses, and
groups that are all right or all wrong.
"""

from __future__ import annotations

import math

from paribus.health.detector import FINE, Detector, Verdict
from paribus.health.view import View
from paribus.recipe.recipe import Recipe

CORRECT, ENTROPY = "reward/correct_frac", "policy/entropy"
RIGHT, WRONG = "group/all_correct_frac", "group/all_wrong_frac"


def agreement(p: float, size: int, correlation: float) -> float:
    """Return the probability that all responses of a group are right, or all wrong.

    The number of right ones is beta-binomial (Skellam 1948): binomial where the correlation is 0.

    Args:
        p: probability of a right response.
        size: responses a group.
        correlation: that of two responses of a group, from 0 to below 1.
    """
    if not 0 < p < 1:
        return 1.0
    if correlation == 0:
        return p**size + (1 - p) ** size
    a, b = (x * (1 - correlation) / correlation for x in (p, 1 - p))
    rest = math.lgamma(a + b) - math.lgamma(a + b + size)
    parts = (math.lgamma(x + size) - math.lgamma(x) + rest for x in (a, b))
    return math.fsum(map(math.exp, parts))


def _mixed(v: View) -> Verdict | None:
    if v.recipe is None:
        return None
    correct, right, wrong = (v.tail(m, v.W) for m in (CORRECT, RIGHT, WRONG))
    if correct is None or right is None or wrong is None:
        return None
    size, prompts = v.recipe.schedule.group_size, v.recipe.schedule.prompts_per_step
    seen = prompts * (sum(right) + sum(wrong))
    chance, groups = (prompts * sum(agreement(p, size, c) for p in correct) for c in (0.0, v.p["correlation"]))
    if groups - seen <= v.p["errors"] * math.sqrt(groups) or seen - chance > v.p["nearer"] * math.sqrt(chance):
        return FINE
    says = f"{seen:.0f} of {prompts * v.W} groups are all right or all wrong, {chance:.0f} would be if each held "
    says += f"responses to different prompts, {groups:.0f} or more if to one: group ids are wrong"
    numbers = {"groups": seen, "by chance": chance, "limit": groups}
    return Verdict(state="critical", says=says, numbers=numbers, onset=v.step_ago(CORRECT, v.W - 1))


def _copied(v: View) -> Verdict | None:
    right, wrong, entropy = v.tail(RIGHT, v.w), v.tail(WRONG, v.w), v.middle(ENTROPY)
    if right is None or wrong is None or entropy is None:
        return None
    shares = sum(right) / v.w, sum(wrong) / v.w
    alike = min(r + w for r, w in zip(right, wrong, strict=True)) > 1 - 1e-6
    if not alike or min(shares) < v.p["each"] or entropy < v.p["entropy"]:
        return FINE
    says = f"each group is all right ({shares[0]:.0%}) or all wrong ({shares[1]:.0%}) for {v.w} points, though the "
    says += f"policy has an entropy of {entropy:.2g} nats/token: the responses of a group are copies"
    numbers = {"all right": shares[0], "all wrong": shares[1], "entropy": entropy, "limit": v.p["entropy"]}
    return Verdict(state="critical", says=says, numbers=numbers, onset=v.step_ago(RIGHT, v.w - 1))


def _no_groups(recipe: Recipe) -> str:
    return "" if recipe.schedule.group_size > 1 else "groups have one response"


DETECTORS = (
    Detector(
        name="mixed_groups",
        looks_for="groups hold responses to different prompts: wrong group ids",
        needs=(CORRECT, RIGHT, WRONG),
        rule=_mixed,
        why_not=_no_groups,
        keep=4.0,
        points=(1, 5),
    ),
    Detector(
        name="copied_responses",
        looks_for="the responses of a group are one response over and over, though the policy has a choice",
        needs=(RIGHT, WRONG, ENTROPY),
        rule=_copied,
        why_not=_no_groups,
        points=(1, 5),
    ),
)
