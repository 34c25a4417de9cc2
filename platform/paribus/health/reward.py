"""Rules on the training reward: noise, standstill, and reward that is not correctness."""

from __future__ import annotations

import math

from paribus.health.detector import FINE, Detector, Verdict
from paribus.health.primitives import noise
from paribus.health.signals import REWARD
from paribus.health.view import View
from paribus.recipe.analysis.facts import rewards_correctness_alone
from paribus.recipe.recipe import Recipe

_TOTAL, _CORRECT = "reward/mean", "reward/correct_frac"


def _noise(v: View) -> Verdict | None:
    count = math.ceil(2.5 * v.w)
    last, first = v.tail(REWARD, count), v.first(REWARD, count)
    if last is None or first is None or v.count(REWARD) < 2 * count:
        return None
    now, before = noise(last), noise(first)
    if not (math.isfinite(now) and math.isfinite(before)):
        return None
    numbers = {"noise": now, "at the beginning": before, "limit": max(v.p["factor"] * before, v.p["least"])}
    if now <= numbers["limit"]:
        return FINE
    says = f"the reward's noise from step to step is {now:.2g}, {before:.2g} at the beginning"
    return Verdict(state="warn", says=says, numbers=numbers, onset=v.step_ago(REWARD, count // 2))


def _stall(v: View) -> Verdict | None:
    count = math.ceil(7.5 * v.w)
    gain, now = v.gain(REWARD, count - v.w), v.middle(REWARD)
    if gain is None or now is None:
        return None
    if gain >= v.p["gain"] or now >= v.p["solved"]:
        return FINE
    trend = v.trend(REWARD, count)
    if trend is not None and trend.up(v.p["p"]):
        return FINE
    began = v.began(REWARD)
    never = began is not None and now - began < v.p["gain"]
    says = f"the reward is {now:.3g} and moved by {gain:+.2g} over {count} points"
    says += "; it has never risen" if never else ""
    onset = v.step_ago(REWARD, count - 1)
    return Verdict(state="warn", says=says, numbers={"gain": gain, "limit": v.p["gain"], "reward": now}, onset=onset)


def _format(v: View) -> Verdict | None:
    total, right = v.trend(_TOTAL, v.W), v.trend(_CORRECT, v.W)
    gain = v.gain(_TOTAL, v.W - v.w)
    if total is None or right is None or gain is None:
        return None
    if not total.up() or gain < v.p["gain"] or right.up(0.05) or right.slope * v.W > v.p["right"] * gain:
        return FINE
    says = f"the reward rose by {gain:.2g} while the share of correct responses did not ({right.slope * v.W:+.2g})"
    numbers = {"reward gain": gain, "correctness slope": right.slope, "limit": v.p["gain"]}
    return Verdict(state="warn", says=says, numbers=numbers, onset=v.step_ago(_TOTAL, v.W // 2))


def _no_other_reward(recipe: Recipe) -> str:
    return "the reward is correctness alone" if rewards_correctness_alone(recipe) else ""


DETECTORS = (
    Detector(
        name="reward_noise",
        looks_for="the reward jumps from step to step far more than at the beginning",
        needs=(REWARD,),
        rule=_noise,
        head=2.5,
        confirm=(1.0, 1.25),
        keep=1.5,
    ),
    Detector(
        name="reward_stall",
        looks_for="the reward stands still below what is possible, or has never risen",
        needs=(REWARD,),
        rule=_stall,
        confirm=(1.0, 1.25),
        keep=6.5,
    ),
    Detector(
        name="format_hacking",
        looks_for="the reward rises, but not by more correct responses",
        needs=(_TOTAL, _CORRECT),
        rule=_format,
        why_not=_no_other_reward,
        keep=4.0,
    ),
)
