"""Rules on the entropy of the policy: too low, and too high."""

from __future__ import annotations

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import REWARD, SCORE
from paribus.health.window import Window

ENTROPY = "policy/entropy"
_ZERO = "group/zero_std_frac"


def _collapse(run: Window) -> RuleResult | None:
    now, first = run.median(ENTROPY), run.first_median(ENTROPY)
    if now is None or first is None:
        return None
    numbers = {"entropy": now, "at the beginning": first, "limit": run.p["critical"]}
    if now < run.p["critical"]:
        text = f"entropy {now:.3g} nats/token, below {run.p['critical']:g}; {first:.3g} at the beginning"
        return RuleResult(state="critical", evidence=text, numbers=numbers)
    if now < run.p["warn"] and now < run.p["share"] * first:
        because = _learning_ended(run)
        text = f"entropy {now:.3g} nats/token, {now / first:.0%} of {first:.3g} at the beginning{because}"
        numbers["limit"] = run.p["warn"]
        return RuleResult(state="critical" if because else "warn", evidence=text, numbers=numbers)
    return OK


def _learning_ended(run: Window) -> str:
    """Return further evidence that the run no longer learns; empty without any."""
    zero, before = run.median(_ZERO), run.first_median(_ZERO)
    if zero is not None and before is not None and zero - before >= run.p["zero_rise"]:
        return f", and groups with equal rewards rose from {before:.2f} to {zero:.2f}"
    scores = run.last(SCORE, 6)
    if scores is not None and sum(scores[3:]) <= sum(scores[:3]):
        return ", and the last three evaluations are no better than the three before"
    return ""


def _explosion(run: Window) -> RuleResult | None:
    now, first = run.median(ENTROPY), run.first_median(ENTROPY)
    if now is None or first is None:
        return None
    low = run.memory["low"] = min(now, run.memory.get("low", now))
    beyond = now > run.p["level"] and now > run.p["over_first"] * first
    if not beyond and not (now > run.p["over_low"] * low and now > run.p["over_first"] * first):
        return OK
    longer = _rises(run, "response/length_mean", 1.1) or _rises(run, "response/truncated_frac", 1.5)
    reward = run.gain(REWARD, run.W // 2)
    worse = longer and reward is not None and reward < -run.p["reward_fall"]
    text = f"entropy {now:.3g} nats/token, {first:.3g} at the beginning, {low:.3g} at the least"
    text += ", while responses grow and the reward falls" if worse else ""
    numbers = {"entropy": now, "at the beginning": first, "at the least": low, "limit": run.p["level"]}
    return RuleResult(state="critical" if worse else "warn", evidence=text, numbers=numbers)


def _rises(run: Window, metric: str, factor: float) -> bool:
    now, before = run.median(metric), run.median(metric, run.W // 2)
    return now is not None and before is not None and now > factor * before > 0


DETECTORS = (
    Detector(
        name="entropy_collapse",
        looks_for="the policy has become deterministic and no longer explores",
        needs=(ENTROPY,),
        uses=(_ZERO, SCORE),
        rule=_collapse,
    ),
    Detector(
        name="entropy_explosion",
        looks_for="the policy drifts towards random text",
        needs=(ENTROPY,),
        uses=("response/length_mean", "response/truncated_frac", REWARD),
        rule=_explosion,
        keep=2.5,
    ),
)
