"""Rules on the training reward: noise, stalls, and reward gained without correctness."""

from __future__ import annotations

import math

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import REWARD
from paribus.health.statistics import noise
from paribus.health.window import Window
from paribus.recipe.analysis.facts import rewards_correctness_alone
from paribus.recipe.recipe import Recipe

_TOTAL, _CORRECT = "reward/mean", "reward/correct_frac"


def _noise(run: Window) -> RuleResult | None:
    count = math.ceil(2.5 * run.w)
    last, first = run.last(REWARD, count), run.first(REWARD, count)
    if last is None or first is None or run.count(REWARD) < 2 * count:
        return None
    now, before = noise(last), noise(first)
    if not (math.isfinite(now) and math.isfinite(before)):
        return None
    numbers = {"noise": now, "at the beginning": before, "limit": max(run.p["factor"] * before, run.p["least"])}
    if now <= numbers["limit"]:
        return OK
    text = f"the reward's noise from step to step is {now:.2g}, {before:.2g} at the beginning"
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=run.step_ago(REWARD, count // 2))


def _stall(run: Window) -> RuleResult | None:
    count = math.ceil(7.5 * run.w)
    gain, now = run.gain(REWARD, count - run.w), run.median(REWARD)
    if gain is None or now is None:
        return None
    if gain >= run.p["gain"] or now >= run.p["solved"]:
        return OK
    trend = run.trend(REWARD, count)
    if trend is not None and trend.up(run.p["p"]):
        return OK
    began = run.first_median(REWARD)
    never = began is not None and now - began < run.p["gain"]
    text = f"the reward is {now:.3g} and moved by {gain:+.2g} over {count} points"
    text += "; it has never risen" if never else ""
    onset = run.step_ago(REWARD, count - 1)
    return RuleResult(
        state="warn", evidence=text, numbers={"gain": gain, "limit": run.p["gain"], "reward": now}, onset=onset
    )


def _format(run: Window) -> RuleResult | None:
    total, right = run.trend(_TOTAL, run.W), run.trend(_CORRECT, run.W)
    gain = run.gain(_TOTAL, run.W - run.w)
    if total is None or right is None or gain is None:
        return None
    if not total.up() or gain < run.p["gain"] or right.up(0.05) or right.slope * run.W > run.p["right"] * gain:
        return OK
    text = f"the reward rose by {gain:.2g} while the share of correct responses did not ({right.slope * run.W:+.2g})"
    numbers = {"reward gain": gain, "correctness slope": right.slope, "limit": run.p["gain"]}
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=run.step_ago(_TOTAL, run.W // 2))


def _no_other_reward(recipe: Recipe) -> str:
    return "the reward is correctness only" if rewards_correctness_alone(recipe) else ""


DETECTORS = (
    Detector(
        name="reward_noise",
        looks_for="the reward varies from step to step far more than at the beginning",
        needs=(REWARD,),
        rule=_noise,
        head=2.5,
        confirm=(1.0, 1.25),
        keep=1.5,
    ),
    Detector(
        name="reward_stall",
        looks_for="the reward stalls below its maximum, or has never risen",
        needs=(REWARD,),
        rule=_stall,
        confirm=(1.0, 1.25),
        keep=6.5,
    ),
    Detector(
        name="format_hacking",
        looks_for="the reward rises without more correct responses",
        needs=(_TOTAL, _CORRECT),
        rule=_format,
        why_not=_no_other_reward,
        keep=4.0,
    ),
)
