"""Rules on updates: those that go too far, gradients that jump, and updates that change nothing."""

from __future__ import annotations

import math
import statistics

from paribus.health.detector import FINE, Detector, Verdict
from paribus.health.view import View

NORM = "optim/grad_norm"
_ZERO = "group/zero_std_frac"
MOVED, _RATIO = "kl/old_k3", "ratio/mean"


def _huge(v: View) -> Verdict | None:
    k3, ratio, usual = v.value(MOVED), v.value(_RATIO), v.middle(MOVED)
    if k3 is None or not math.isfinite(k3):
        return None
    # k3 - (mean ratio - 1) is k1: a single token whose ratio is huge moves the former alone
    moved = k3 if ratio is None else k3 - (ratio - 1)
    if moved > v.p["critical"]:
        says = f"the updates on one batch have moved the policy by {moved:.2g} nats a token"
        return Verdict(state="critical", says=says, numbers={"nats": moved, "limit": v.p["critical"]})
    if usual is None or usual <= v.p["warn"]:
        return FINE
    says = f"the updates on a batch move the policy by {usual:.2g} nats a token"
    return Verdict(state="warn", says=says, numbers={"nats": usual, "limit": v.p["warn"]})


def _spike(v: View) -> Verdict | None:
    now = v.value(NORM)
    assert now is not None
    if not math.isfinite(now):
        return Verdict(state="critical", says="the gradient norm is not finite")
    count = math.ceil(2.5 * v.w)
    usual = v.tail(NORM, count)
    if usual is None:
        return None
    middle = statistics.median(usual)
    spread = 1.4826 * statistics.median(abs(g - middle) for g in usual)
    limit = max(v.p["factor"] * middle, middle + v.p["spreads"] * max(spread, 0.05 * middle))
    spikes = sum(g > limit for g in usual)
    if now <= limit or spikes < v.p["twice"]:
        return FINE
    says = f"gradient norm {now:.3g}, usually {middle:.3g}; {spikes} such in {count} points"
    numbers = {"gradient norm": now, "limit": limit}
    return Verdict(state="critical" if spikes >= v.p["often"] else "warn", says=says, numbers=numbers)


def _dead(v: View) -> Verdict | None:
    count = round(v.p["points"])
    norms, zero = v.tail(NORM, count), v.tail(_ZERO, count)
    if norms is None:
        return None
    if max(norms) >= v.p["norm"] or (zero is not None and min(zero) >= v.p["zero"]):
        return FINE
    says = f"the gradient norm is {max(norms):.2g} at most in {count} points, though groups have spread"
    return Verdict(state="critical", says=says, numbers={"gradient norm": max(norms), "limit": v.p["norm"]},
                   onset=v.step_ago(NORM, count - 1))  # fmt: skip


DETECTORS = (
    Detector(
        name="huge_update",
        looks_for="the updates on one batch carry the policy away from the one that sampled it",
        needs=(MOVED,),
        uses=(_RATIO,),
        rule=_huge,
        points=(1, 20),
    ),
    Detector(
        name="grad_spike",
        looks_for="the gradient norm jumps",
        needs=(NORM,),
        rule=_spike,
        points=(1, 20),
        keep=1.5,
    ),
    Detector(
        name="dead_update",
        looks_for="updates change nothing though there is something to learn",
        needs=(NORM,),
        uses=(_ZERO,),
        rule=_dead,
        points=(1, 5),
    ),
)
