"""Rules on distances between policies: learner and sampler, old and new, trained and reference."""

from __future__ import annotations

import math
import statistics

from paribus.health.detector import FINE, Detector, Verdict
from paribus.health.primitives import trend
from paribus.health.signals import MISMATCH_K3, REWARD
from paribus.health.view import View
from paribus.recipe.analysis.facts import fresh
from paribus.recipe.recipe import Recipe

LOGP = "mismatch/logp_abs_diff_mean"
_WEIGHT, _EFFECTIVE = "correction/weight_mean", "correction/effective_frac"
STALE = "staleness/steps_mean"
KL = "kl/ref_k3"


def _mismatch(v: View) -> Verdict | None:
    found = []
    for metric, name, low, high in (
        (LOGP, "|log p learner - log p sampler|", None, ("logp_warn", "logp_critical")),
        (MISMATCH_K3, "k3 between learner and sampler", None, ("k3_warn", "k3_critical")),
        (_EFFECTIVE, "effective sample of the weights", ("effective_warn", "effective_critical"), None),
        (_WEIGHT, "mean weight", ("weight_low_warn", "weight_low"), ("weight_high_warn", "weight_high")),
    ):
        now = None if metric == LOGP and _stale(v) else v.middle(metric)
        if now is None:
            continue
        bounds = [(x, 1.0) for x in (high,) if x] + [(x, -1.0) for x in (low,) if x]
        for (warn, critical), sign in bounds:
            rank = sum(sign * now > sign * v.p[limit] for limit in (warn, critical))
            limit = v.p[(warn, critical)[max(rank - 1, 0)]]
            found.append((rank, f"{name} {now:.2g}, limit {limit:g}", {"value": now, "limit": limit}))
    if not found:
        return None
    rank, says, numbers = max(found, key=lambda f: f[0])
    if rank:
        return Verdict(state="critical" if rank == 2 else "warn", says=says, numbers=numbers)
    return _mismatch_rises(v)


def _stale(v: View) -> bool:
    """Tell whether the difference holds updates of the policy, too, so that it says nothing of the engines."""
    return v.recipe is not None and not fresh(v.recipe)


def _mismatch_rises(v: View) -> Verdict:
    now, first = v.middle(LOGP), v.began(LOGP)
    if _stale(v) or now is None or first is None or now < v.p["rise_from"] or now <= v.p["rise"] * first:
        return FINE
    rising = v.trend(LOGP, v.W)
    if rising is None or not rising.up():
        return FINE
    says = f"|log p learner - log p sampler| has grown from {first:.2g} to {now:.2g} and still grows"
    return Verdict(state="warn", says=says, numbers={"value": now, "at the beginning": first, "limit": v.p["rise"]})


def _staleness(v: View) -> Verdict | None:
    now = v.middle(STALE)
    if now is None:
        return None
    limit = v.p["updates"] if v.recipe is None else configured_staleness(v.recipe)
    if now <= limit:
        return FINE
    says = f"what is trained on is {now:.3g} updates old, at most {limit:g} are configured"
    return Verdict(state="warn", says=says, numbers={"staleness": now, "limit": limit})


def configured_staleness(recipe: Recipe) -> int:
    """Return how many updates old what a recipe trains on may be."""
    behind = recipe.schedule.staleness + (1 if getattr(recipe.filter, "max_surplus", 0) else 0)
    return behind * recipe.schedule.updates_per_rollout


def _blowup(v: View) -> Verdict | None:
    now, start = v.middle(KL), v.first(KL, 5 * v.w)
    if now is None or start is None:
        return None
    usual = statistics.median(start[math.ceil(2.5 * v.w) :])
    if now <= v.p["least"]:
        return FINE
    rising, values = v.trend(KL, v.W), v.tail(REWARD, v.W)
    reward = None if values is None else trend(values, max(1, v.w // 4))
    before = v.middle(KL, v.W - v.w)
    grows = rising is not None and rising.up() and before is not None and now > v.p["growth"] * before
    says = f"KL to the reference {now:.2g} nats/token, {usual:.2g} at the beginning"
    numbers = {"kl": now, "at the beginning": usual, "limit": v.p["factor"] * usual}
    if grows and reward is not None and reward.slope < 0 and reward.p < 0.01:
        return Verdict(state="critical", says=f"{says}; it rises and the reward falls", numbers=numbers)
    if now > v.p["factor"] * usual:
        return Verdict(state="warn", says=says, numbers=numbers)
    if grows and reward is not None and reward.p >= v.p["flat_p"]:
        return Verdict(state="warn", says=f"{says}; it rises while the reward is flat", numbers=numbers)
    return FINE


def _nothing_stale(recipe: Recipe) -> str:
    return "every response comes from the newest policy" if fresh(recipe) else ""


def _no_reference(recipe: Recipe) -> str:
    return "`kl: off`: no reference is loaded" if recipe.kl.kind == "off" else ""


DETECTORS = (
    Detector(
        name="mismatch",
        looks_for="sampler and learner give different probabilities to the same tokens",
        any_of=(LOGP, MISMATCH_K3, _WEIGHT, _EFFECTIVE),
        rule=_mismatch,
        keep=4.0,
    ),
    Detector(
        name="staleness",
        looks_for="what is trained on is older than configured",
        needs=(STALE,),
        rule=_staleness,
        why_not=_nothing_stale,
    ),
    Detector(
        name="kl_blowup",
        looks_for="the policy runs away from the reference without gain",
        needs=(KL,),
        uses=(REWARD,),
        rule=_blowup,
        head=5.0,
        why_not=_no_reference,
        keep=4.0,
    ),
)
