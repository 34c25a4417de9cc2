"""Rules on responses: their length, truncation, repetition, and text without content."""

from __future__ import annotations

import math

from paribus.health.detector import OK, Detector, RuleResult, above
from paribus.health.signals import DEGENERATE, DISTINCT, REPETITIVE, REWARD, SCORE
from paribus.health.window import Window

LENGTH = "response/length_mean"
TRUNCATED = "response/truncated_frac"
_RIGHT, _WRONG = "response/length_mean_correct", "response/length_mean_incorrect"


def _balloon(run: Window) -> RuleResult | None:
    now, before, gain = run.median(LENGTH), run.median(LENGTH, run.W), run.gain(REWARD, run.W)
    if now is None or before is None or gain is None:
        return None
    moved = _no_gain(run, gain)
    if not moved:
        return OK
    numbers = {"length": now, "a window ago": before, "reward gain": gain, "limit": run.p["growth"]}
    if now > run.p["growth"] * before:
        text = f"responses grew from {before:.3g} to {now:.3g} tokens while {moved}"
    else:
        text = _wrong_grow(run)
    if not text:
        return OK
    truncated = run.median(TRUNCATED)
    cut = truncated is not None and truncated > run.p["truncated"]
    text += f"; {truncated:.0%} are truncated" if cut else ""
    onset = run.step_ago(LENGTH, run.W // 2)
    return RuleResult(state="critical" if cut else "warn", evidence=text, numbers=numbers, onset=onset)


def _no_gain(run: Window, gain: float) -> str:
    """Return that the reward or the last six evaluations did not gain, with the number; empty if they did."""
    if gain < run.p["reward_gain"]:
        return f"the reward moved by {gain:+.2g}"
    scores = run.last(SCORE, 6)
    rise = None if scores is None else (sum(scores[3:]) - sum(scores[:3])) / 3
    return f"the held-out score moved by {rise:+.2g}" if rise is not None and rise < run.p["score_gain"] else ""


def _wrong_grow(run: Window) -> str:
    """Return that wrong answers grow relative to right ones, with the numbers; empty if they do not."""
    parts = [run.median(_WRONG), run.median(_RIGHT), run.median(_WRONG, run.W), run.median(_RIGHT, run.W)]
    if any(p is None for p in parts):
        return ""
    wrong, right, wrong_before, right_before = (p or 0.0 for p in parts)
    if min(right, right_before, wrong_before) <= 0:
        return ""
    ratio, before = wrong / right, wrong_before / right_before
    if ratio <= run.p["wrong_ratio"] or ratio <= run.p["growth"] * before:
        return ""
    return f"wrong answers are {ratio:.2g} times as long as right ones, {before:.2g} times before"


def _collapse(run: Window) -> RuleResult | None:
    now, first = run.median(LENGTH), run.first_median(LENGTH)
    if now is None or first is None:
        return None
    reward = run.median(REWARD)
    if now >= (1 + run.p["share"]) / 2 * first and reward is not None:
        run.memory["reward"] = reward
    if now >= run.p["share"] * first:
        return OK
    numbers = {"length": now, "at the beginning": first, "limit": run.p["share"]}
    text = f"responses shrank from {first:.3g} to {now:.3g} tokens"
    if now < run.p["tokens"] or now < run.p["critical_share"] * first:
        return RuleResult(state="critical", evidence=text, numbers=numbers)
    before = run.memory.get("reward")
    if reward is None or before is None or reward - before >= run.p["reward_gain"]:
        return OK
    text += f" and the reward has moved by {reward - before:+.2g} since they were long"
    return RuleResult(state="warn", evidence=text, numbers=numbers)


def _truncation(run: Window) -> RuleResult | None:
    now = run.median(TRUNCATED)
    if now is None:
        return None
    if now > run.p["warn"]:
        begins = run.first(TRUNCATED, 1)
        at_first = begins is not None and begins[0] > run.p["at_first"]
        text = f"{now:.1%} of the responses are truncated"
        text += " since the first step: the limit is too low, or responses have no end mark" if at_first else ""
        critical = run.p["at_first"] if at_first else run.p["critical"]
        return above(now, run.p["warn"], critical, text, "truncated")
    before = run.median(TRUNCATED, run.W)
    if before is None or now <= run.p["rising"] or now <= 2 * before:
        return OK
    trend = run.trend(TRUNCATED, run.W)
    if trend is not None and trend.up():
        numbers = {"truncated": now, "a window ago": before}
        return RuleResult(
            state="warn", evidence=f"truncated responses rose from {before:.1%} to {now:.1%}", numbers=numbers
        )
    return OK


def _repetition(run: Window) -> RuleResult | None:
    share = run.newest(REPETITIVE)
    if share is None or not math.isfinite(share):
        return None
    return above(share, run.p["warn"], run.p["critical"], f"{share:.0%} of the samples are repetitive")


def _degenerate(run: Window) -> RuleResult | None:
    single, distinct = run.newest(DEGENERATE), run.newest(DISTINCT)
    if single is None:
        return None
    if single > run.p["single"]:
        text = f"{single:.0%} of the samples repeat a single character"
        return RuleResult(state="critical", evidence=text, numbers={"share": single, "limit": run.p["single"]})
    if distinct is not None and distinct < run.p["distinct"]:
        text = f"samples of different prompts are the same: {distinct:.0%} are distinct"
        return RuleResult(state="warn", evidence=text, numbers={"distinct": distinct, "limit": run.p["distinct"]})
    return OK


DETECTORS = (
    Detector(
        name="length_balloon",
        looks_for="responses grow while the reward does not, or wrong ones grow beside right ones",
        needs=(LENGTH, REWARD),
        uses=(TRUNCATED, _RIGHT, _WRONG, SCORE),
        rule=_balloon,
        confirm=(1.5, 2.0),
        keep=5.0,
    ),
    Detector(
        name="length_collapse",
        looks_for="responses shrink to a fraction of their length while the reward does not rise",
        needs=(LENGTH,),
        uses=(REWARD,),
        rule=_collapse,
    ),
    Detector(
        name="truncation",
        looks_for="responses hit the generation limit",
        needs=(TRUNCATED,),
        rule=_truncation,
        keep=5.0,
    ),
    Detector(
        name="repetition",
        looks_for="responses are repetitive",
        needs=(REPETITIVE,),
        rule=_repetition,
        points=(2, 2),
    ),
    Detector(
        name="degenerate_text",
        looks_for="responses have no content, or are the same for different prompts",
        needs=(DEGENERATE,),
        uses=(DISTINCT,),
        rule=_degenerate,
        points=(2, 2),
    ),
)
