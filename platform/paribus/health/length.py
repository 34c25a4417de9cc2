"""Rules on the length of responses: growth without gain, collapse, truncation."""

from __future__ import annotations

from paribus.health.detector import FINE, Detector, Verdict, above
from paribus.health.signals import REWARD, SCORE
from paribus.health.view import View

LENGTH = "response/length_mean"
TRUNCATED = "response/truncated_frac"
_RIGHT, _WRONG = "response/length_mean_correct", "response/length_mean_incorrect"


def _balloon(v: View) -> Verdict | None:
    now, before, gain = v.middle(LENGTH), v.middle(LENGTH, v.W), v.gain(REWARD, v.W)
    if now is None or before is None or gain is None:
        return None
    moved = _no_gain(v, gain)
    if not moved:
        return FINE
    numbers = {"length": now, "a window ago": before, "reward gain": gain, "limit": v.p["growth"]}
    if now > v.p["growth"] * before:
        says = f"responses grew from {before:.3g} to {now:.3g} tokens while {moved}"
    else:
        says = _wrong_grow(v)
    if not says:
        return FINE
    truncated = v.middle(TRUNCATED)
    cut = truncated is not None and truncated > v.p["truncated"]
    says += f"; {truncated:.0%} are cut off" if cut else ""
    onset = v.step_ago(LENGTH, v.W // 2)
    return Verdict(state="critical" if cut else "warn", says=says, numbers=numbers, onset=onset)


def _no_gain(v: View, gain: float) -> str:
    """Return how little came of it, or nothing: of the training reward, or of the last six evaluations."""
    if gain < v.p["reward_gain"]:
        return f"the reward moved by {gain:+.2g}"
    scores = v.tail(SCORE, 6)
    rise = None if scores is None else (sum(scores[3:]) - sum(scores[:3])) / 3
    return f"the held-out score moved by {rise:+.2g}" if rise is not None and rise < v.p["score_gain"] else ""


def _wrong_grow(v: View) -> str:
    """Return how wrong answers grow beside right ones, or nothing."""
    parts = [v.middle(_WRONG), v.middle(_RIGHT), v.middle(_WRONG, v.W), v.middle(_RIGHT, v.W)]
    if any(p is None for p in parts):
        return ""
    wrong, right, wrong_before, right_before = (p or 0.0 for p in parts)
    if min(right, right_before, wrong_before) <= 0:
        return ""
    ratio, before = wrong / right, wrong_before / right_before
    if ratio <= v.p["wrong_ratio"] or ratio <= v.p["growth"] * before:
        return ""
    return f"wrong answers are {ratio:.2g} times as long as right ones, {before:.2g} times before"


def _collapse(v: View) -> Verdict | None:
    now, first = v.middle(LENGTH), v.began(LENGTH)
    if now is None or first is None:
        return None
    reward = v.middle(REWARD)
    if now >= (1 + v.p["share"]) / 2 * first and reward is not None:
        v.memory["reward"] = reward
    if now >= v.p["share"] * first:
        return FINE
    numbers = {"length": now, "at the beginning": first, "limit": v.p["share"]}
    says = f"responses shrank from {first:.3g} to {now:.3g} tokens"
    if now < v.p["tokens"] or now < v.p["critical_share"] * first:
        return Verdict(state="critical", says=says, numbers=numbers)
    before = v.memory.get("reward")
    if reward is None or before is None or reward - before >= v.p["reward_gain"]:
        return FINE
    says += f" and the reward has moved by {reward - before:+.2g} since they were long"
    return Verdict(state="warn", says=says, numbers=numbers)


def _truncation(v: View) -> Verdict | None:
    now = v.middle(TRUNCATED)
    if now is None:
        return None
    if now > v.p["warn"]:
        begins = v.first(TRUNCATED, 1)
        at_first = begins is not None and begins[0] > v.p["at_first"]
        says = f"{now:.1%} of the responses are cut off"
        says += " since the first step: the limit is too low or nothing ends a response" if at_first else ""
        critical = v.p["at_first"] if at_first else v.p["critical"]
        return above(now, v.p["warn"], critical, says, "truncated")
    before = v.middle(TRUNCATED, v.W)
    if before is None or now <= v.p["rising"] or now <= 2 * before:
        return FINE
    trend = v.trend(TRUNCATED, v.W)
    if trend is not None and trend.up():
        numbers = {"truncated": now, "a window ago": before}
        return Verdict(state="warn", says=f"responses cut off rose from {before:.1%} to {now:.1%}", numbers=numbers)
    return FINE


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
        looks_for="responses shrink to a fraction while the reward does not rise",
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
)
