"""Rules on updates: too large, with gradient spikes, or without effect."""

from __future__ import annotations

import math
import statistics

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.window import Window

NORM = "optim/grad_norm"
_ZERO = "group/zero_std_frac"
MOVED, _RATIO = "kl/old_k3", "ratio/mean"


def _huge(run: Window) -> RuleResult | None:
    k3, ratio, usual = run.newest(MOVED), run.newest(_RATIO), run.median(MOVED)
    if k3 is None or not math.isfinite(k3):
        return None
    # k3 - (mean ratio - 1) is k1; a single token with a huge ratio raises k3 alone
    moved = k3 if ratio is None else k3 - (ratio - 1)
    if moved > run.p["critical"]:
        text = f"the updates on one batch moved the policy by {moved:.2g} nats per token"
        return RuleResult(state="critical", evidence=text, numbers={"nats": moved, "limit": run.p["critical"]})
    if usual is None or usual <= run.p["warn"]:
        return OK
    text = f"the updates on a batch move the policy by {usual:.2g} nats per token"
    return RuleResult(state="warn", evidence=text, numbers={"nats": usual, "limit": run.p["warn"]})


def _spike(run: Window) -> RuleResult | None:
    now = run.newest(NORM)
    assert now is not None
    if not math.isfinite(now):
        return RuleResult(state="critical", evidence="the gradient norm is not finite")
    count = math.ceil(2.5 * run.w)
    usual = run.last(NORM, count)
    if usual is None:
        return None
    middle = statistics.median(usual)
    spread = 1.4826 * statistics.median(abs(g - middle) for g in usual)
    limit = max(run.p["factor"] * middle, middle + run.p["spreads"] * max(spread, 0.05 * middle))
    spikes = sum(g > limit for g in usual)
    if now <= limit or spikes < run.p["twice"]:
        return OK
    text = f"gradient norm {now:.3g}, usually {middle:.3g}; {spikes} spikes in {count} points"
    numbers = {"gradient norm": now, "limit": limit}
    return RuleResult(state="critical" if spikes >= run.p["often"] else "warn", evidence=text, numbers=numbers)


def _dead(run: Window) -> RuleResult | None:
    count = round(run.p["points"])
    norms, zero = run.last(NORM, count), run.last(_ZERO, count)
    if norms is None:
        return None
    if max(norms) >= run.p["norm"] or (zero is not None and min(zero) >= run.p["zero"]):
        return OK
    text = f"the gradient norm is {max(norms):.2g} at most in {count} points, although rewards differ within groups"
    return RuleResult(state="critical", evidence=text, numbers={"gradient norm": max(norms), "limit": run.p["norm"]},
                   onset=run.step_ago(NORM, count - 1))  # fmt: skip


DETECTORS = (
    Detector(
        name="huge_update",
        looks_for="the updates on one batch move the policy far from the one that sampled the batch",
        needs=(MOVED,),
        uses=(_RATIO,),
        rule=_huge,
        points=(1, 20),
    ),
    Detector(
        name="grad_spike",
        looks_for="the gradient norm spikes",
        needs=(NORM,),
        rule=_spike,
        points=(1, 20),
        keep=1.5,
    ),
    Detector(
        name="dead_update",
        looks_for="updates have no effect although there is something to learn",
        needs=(NORM,),
        uses=(_ZERO,),
        rule=_dead,
        points=(1, 5),
    ),
)
