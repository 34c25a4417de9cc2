"""Rules on how groups are formed: a group holds independent responses to one prompt.

Responses to the same prompt agree more often than responses to different prompts, because some prompts are easy and
some hard; and they do not always agree, because each is sampled. Both can be checked with metrics that every run logs:
the share of correct responses, and the shares of groups that are all right or all wrong.
"""

from __future__ import annotations

import math

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.window import Window
from paribus.recipe.recipe import Recipe

CORRECT, ENTROPY = "reward/correct_frac", "policy/entropy"
RIGHT, WRONG = "group/all_correct_frac", "group/all_wrong_frac"


def agreement(p: float, size: int, correlation: float) -> float:
    """Return the probability that all responses of a group are right, or all wrong.

    The number of right responses is beta-binomial (Skellam 1948); with correlation 0 it is binomial.

    Args:
        p: probability of a right response.
        size: responses per group.
        correlation: between two responses of a group, in [0, 1).
    """
    if not 0 < p < 1:
        return 1.0
    if correlation == 0:
        return p**size + (1 - p) ** size
    a, b = (x * (1 - correlation) / correlation for x in (p, 1 - p))
    rest = math.lgamma(a + b) - math.lgamma(a + b + size)
    parts = (math.lgamma(x + size) - math.lgamma(x) + rest for x in (a, b))
    return math.fsum(map(math.exp, parts))


def _mixed(run: Window) -> RuleResult | None:
    if run.recipe is None:
        return None
    correct, right, wrong = (run.last(m, run.W) for m in (CORRECT, RIGHT, WRONG))
    if correct is None or right is None or wrong is None:
        return None
    size, prompts = run.recipe.schedule.group_size, run.recipe.schedule.prompts_per_step
    seen = prompts * (sum(right) + sum(wrong))
    chance, groups = (prompts * sum(agreement(p, size, c) for p in correct) for c in (0.0, run.p["correlation"]))
    if groups - seen <= run.p["errors"] * math.sqrt(groups) or seen - chance > run.p["nearer"] * math.sqrt(chance):
        return OK
    text = f"{seen:.0f} of {prompts * run.W} groups are all right or all wrong; {chance:.0f} are expected if "
    text += f"groups mix prompts, at least {groups:.0f} if they do not: group ids are wrong"
    numbers = {"groups": seen, "by chance": chance, "limit": groups}
    return RuleResult(state="critical", evidence=text, numbers=numbers, onset=run.step_ago(CORRECT, run.W - 1))


def _copied(run: Window) -> RuleResult | None:
    right, wrong, entropy = run.last(RIGHT, run.w), run.last(WRONG, run.w), run.median(ENTROPY)
    if right is None or wrong is None or entropy is None:
        return None
    shares = sum(right) / run.w, sum(wrong) / run.w
    alike = min(r + w for r, w in zip(right, wrong, strict=True)) > 1 - 1e-6
    if not alike or min(shares) < run.p["each"] or entropy < run.p["entropy"]:
        return OK
    text = f"each group is all right ({shares[0]:.0%}) or all wrong ({shares[1]:.0%}) for {run.w} points, although the "
    text += f"policy has an entropy of {entropy:.2g} nats/token: the responses of a group are copies"
    numbers = {"all right": shares[0], "all wrong": shares[1], "entropy": entropy, "limit": run.p["entropy"]}
    return RuleResult(state="critical", evidence=text, numbers=numbers, onset=run.step_ago(RIGHT, run.w - 1))


def _no_groups(recipe: Recipe) -> str:
    return "" if recipe.schedule.group_size > 1 else "groups have a single response"


DETECTORS = (
    Detector(
        name="mixed_groups",
        looks_for="groups mix responses to different prompts: wrong group ids",
        needs=(CORRECT, RIGHT, WRONG),
        rule=_mixed,
        why_not=_no_groups,
        keep=4.0,
        points=(1, 5),
    ),
    Detector(
        name="copied_responses",
        looks_for="the responses of a group are copies of one response, although the policy is not deterministic",
        needs=(RIGHT, WRONG, ENTROPY),
        rule=_copied,
        why_not=_no_groups,
        points=(1, 5),
    ),
)
