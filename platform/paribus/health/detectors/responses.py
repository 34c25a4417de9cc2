"""Rules on responses: their length, truncation, repetition, and text without content."""

from __future__ import annotations

import math
from typing import Literal

from paribus.health.detector import OK, Detector, RuleResult, above
from paribus.health.signals import DEGENERATE, DISTINCT, REPETITIVE, REWARD
from paribus.health.window import Window

LENGTH = "response/length_mean"
TRUNCATED = "response/truncated_frac"
_RIGHT, _WRONG = "response/length_mean_correct", "response/length_mean_incorrect"


def _balloon(run: Window) -> RuleResult | None:
    """Compare the length with that when the reward was last at a new best: growth with reward is no fault."""
    now, reward = run.median(LENGTH), run.median(REWARD)
    if now is None or reward is None:
        return None
    gain = run.p["reward_gain"] * run.scale(REWARD)
    if "best" not in run.memory or reward > run.memory["best"] + gain:
        run.memory.update(best=reward, length=now, step=run.line.step)
        return OK
    before, best = run.memory["length"], run.memory["best"]
    numbers = {"length": now, "before": before, "reward gain": reward - best, "limit": run.p["growth"]}
    rising = run.trend(REWARD, run.W)
    if rising is not None and rising.up(run.p["rising"]):
        return OK
    grew = now > run.p["growth"] * before
    if grew:
        text = f"responses grew from {before:.3g} to {now:.3g} tokens since step {run.memory['step']}, "
        text += f"and the reward went from {best:.3g} to {reward:.3g}"
    else:
        text = _wrong_grow(run)
    if not text:
        return OK
    truncated = run.median(TRUNCATED)
    cut = truncated is not None and truncated > run.p["truncated"]
    text += f"; {truncated:.0%} are truncated" if cut else ""
    state: Literal["warn", "critical"] = "critical" if cut else "warn"
    return RuleResult(state=state, evidence=text, numbers=numbers, since=run.memory["step"] if grew else None)


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
    reached, begins = run.memory.get("reward"), run.first_median(REWARD)
    least = run.p["reward_gain"] * run.scale(REWARD)
    gained = None if reward is None or reached is None else reward - reached
    if now < run.p["critical_share"] * first:  # whatever the reward does: so little text may please a weak grader
        return RuleResult(state="critical", evidence=text, numbers=numbers)
    rises = gained is not None and gained >= least
    # a reward that has risen already, and has not fallen since, may have no room left to rise
    kept = gained is not None and gained > -least and _over(reward, begins) >= least
    if now < run.p["tokens"] and not (rises or kept):
        return RuleResult(state="critical", evidence=text, numbers=numbers)
    solved = run.scale(REWARD) == 1 and reward is not None and reward >= run.p["solved"]
    if gained is None or rises or (kept and solved):
        return OK
    text += f" and the reward has moved by {gained:+.2g} since they were long"
    return RuleResult(state="warn", evidence=text, numbers=numbers)


def _over(now: float | None, begins: float | None) -> float:
    return 0.0 if now is None or begins is None else now - begins


def _truncation(run: Window) -> RuleResult | None:
    """Judge the mean share less its error, as few responses a step give a share in large steps."""
    now = run.mean(TRUNCATED)
    if now is None:
        return None
    begins = run.first(TRUNCATED)
    first = run.memory.setdefault("first", now.value if begins is None else math.fsum(begins) / run.w)
    if now.value <= run.p["note"]:
        return OK
    surely = now.value - run.sure(run.p["chance"]) * now.error
    risen = now.value > run.p["rising"] * first and surely > first
    numbers = {"truncated": now.value, "at the beginning": first}
    text = f"{now.value:.1%} of the responses are truncated, {first:.1%} in the first {run.w} points"
    ranks = [limit for limit in ("note", "warn", "critical") if surely > run.p[limit]]
    if not ranks:
        return OK
    # a share that was there from the first step on and does not grow is the setting of the run
    grown = risen and ranks[-1] == "note"
    state, limit = ("warn", run.p["rising"] * first) if grown else (ranks[-1], run.p[ranks[-1]])
    return RuleResult(state=state, evidence=text, numbers={**numbers, "limit": limit})  # type: ignore[arg-type]


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


LENGTHS = (
    Detector(
        name="length_balloon",
        looks_for="responses grow while the reward does not, or wrong ones grow beside right ones",
        needs=(LENGTH, REWARD),
        uses=(TRUNCATED, _RIGHT, _WRONG),
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
)
"""Listed before the others: those may be their effect."""

DETECTORS = (
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
