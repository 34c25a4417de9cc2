"""Rules on the entropy of the policy: too little of it, and too much."""

from __future__ import annotations

from paribus.health.detector import FINE, Detector, Verdict
from paribus.health.signals import REWARD, SCORE
from paribus.health.view import View

ENTROPY = "policy/entropy"
_ZERO = "group/zero_std_frac"


def _collapse(v: View) -> Verdict | None:
    now, first = v.middle(ENTROPY), v.began(ENTROPY)
    if now is None or first is None:
        return None
    numbers = {"entropy": now, "at the beginning": first, "limit": v.p["critical"]}
    if now < v.p["critical"]:
        says = f"entropy {now:.3g} nats/token, below {v.p['critical']:g}; {first:.3g} at the beginning"
        return Verdict(state="critical", says=says, numbers=numbers)
    if now < v.p["warn"] and now < v.p["share"] * first:
        because = _learning_ended(v)
        says = f"entropy {now:.3g} nats/token, {now / first:.0%} of {first:.3g} at the beginning{because}"
        numbers["limit"] = v.p["warn"]
        return Verdict(state="critical" if because else "warn", says=says, numbers=numbers)
    return FINE


def _learning_ended(v: View) -> str:
    """Return what else shows that the run no longer learns, or nothing."""
    zero, before = v.middle(_ZERO), v.began(_ZERO)
    if zero is not None and before is not None and zero - before >= v.p["zero_rise"]:
        return f", and groups without spread rose from {before:.2f} to {zero:.2f}"
    scores = v.tail(SCORE, 6)
    if scores is not None and sum(scores[3:]) <= sum(scores[:3]):
        return ", and the last three evaluations are no better than the three before"
    return ""


def _explosion(v: View) -> Verdict | None:
    now, first = v.middle(ENTROPY), v.began(ENTROPY)
    if now is None or first is None:
        return None
    low = v.memory["low"] = min(now, v.memory.get("low", now))
    beyond = now > v.p["level"] and now > v.p["over_first"] * first
    if not beyond and not (now > v.p["over_low"] * low and now > v.p["over_first"] * first):
        return FINE
    longer = _rises(v, "response/length_mean", 1.1) or _rises(v, "response/truncated_frac", 1.5)
    reward = v.gain(REWARD, v.W // 2)
    worse = longer and reward is not None and reward < -v.p["reward_fall"]
    says = f"entropy {now:.3g} nats/token, {first:.3g} at the beginning, {low:.3g} at the least"
    says += ", while responses grow and the reward falls" if worse else ""
    numbers = {"entropy": now, "at the beginning": first, "at the least": low, "limit": v.p["level"]}
    return Verdict(state="critical" if worse else "warn", says=says, numbers=numbers)


def _rises(v: View, metric: str, factor: float) -> bool:
    now, before = v.middle(metric), v.middle(metric, v.W // 2)
    return now is not None and before is not None and now > factor * before > 0


DETECTORS = (
    Detector(
        name="entropy_collapse",
        looks_for="the policy has become deterministic, so that exploration is over",
        needs=(ENTROPY,),
        uses=(_ZERO, SCORE),
        rule=_collapse,
    ),
    Detector(
        name="entropy_explosion",
        looks_for="the policy drifts towards noise",
        needs=(ENTROPY,),
        uses=("response/length_mean", "response/truncated_frac", REWARD),
        rule=_explosion,
        keep=2.5,
    ),
)
