"""Rules on updates: the distances between policies (sampler, learner, reference), and the gradient."""

from __future__ import annotations

import math
import statistics

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import MISMATCH_K3, REWARD
from paribus.health.window import Window
from paribus.recipe.analysis.facts import fresh
from paribus.recipe.recipe import Recipe

LOGP = "mismatch/logp_abs_diff_mean"
_WEIGHT, _EFFECTIVE = "correction/weight_mean", "correction/effective_frac"
STALE = "staleness/steps_mean"
KL = "kl/ref_k3"


def _mismatch(run: Window) -> RuleResult | None:
    found = []
    for metric, name, low, high in (
        (LOGP, "|log p learner - log p sampler|", None, ("logp_warn", "logp_critical")),
        (MISMATCH_K3, "k3 between learner and sampler", None, ("k3_warn", "k3_critical")),
        (_EFFECTIVE, "effective sample of the weights", ("effective_warn", "effective_critical"), None),
        (_WEIGHT, "mean weight", ("weight_low_warn", "weight_low"), ("weight_high_warn", "weight_high")),
    ):
        now = None if metric == LOGP and _stale(run) else run.median(metric)
        if now is None:
            continue
        bounds = [(x, 1.0) for x in (high,) if x] + [(x, -1.0) for x in (low,) if x]
        for (warn, critical), sign in bounds:
            rank = sum(sign * now > sign * run.p[limit] for limit in (warn, critical))
            limit = run.p[(warn, critical)[max(rank - 1, 0)]]
            found.append((rank, f"{name} {now:.2g}, limit {limit:g}", {"value": now, "limit": limit}))
    if not found:
        return None
    rank, text, numbers = max(found, key=lambda f: f[0])
    if rank:
        return RuleResult(state="critical" if rank == 2 else "warn", evidence=text, numbers=numbers)
    return _mismatch_rises(run)


def _stale(run: Window) -> bool:
    """Return whether the rollouts are stale, so that the difference also contains updates of the policy."""
    return run.recipe is not None and not fresh(run.recipe)


def _mismatch_rises(run: Window) -> RuleResult:
    now, first = run.median(LOGP), run.first_median(LOGP)
    if _stale(run) or now is None or first is None or now < run.p["rise_from"] or now <= run.p["rise"] * first:
        return OK
    rising = run.trend(LOGP, run.W)
    if rising is None or not rising.up():
        return OK
    text = f"|log p learner - log p sampler| grew from {first:.2g} to {now:.2g} and is still growing"
    return RuleResult(
        state="warn", evidence=text, numbers={"value": now, "at the beginning": first, "limit": run.p["rise"]}
    )


def _staleness(run: Window) -> RuleResult | None:
    now = run.median(STALE)
    if now is None:
        return None
    limit = run.p["updates"] if run.recipe is None else configured_staleness(run.recipe)
    if now <= limit:
        return OK
    text = f"rollouts are {now:.3g} updates old when trained on; the recipe allows {limit:g}"
    return RuleResult(state="warn", evidence=text, numbers={"staleness": now, "limit": limit})


def configured_staleness(recipe: Recipe) -> int:
    """Return how many updates old the rollouts of a recipe can be."""
    behind = recipe.schedule.staleness + (1 if getattr(recipe.filter, "max_surplus", 0) else 0)
    return behind * recipe.schedule.updates_per_rollout


def _blowup(run: Window) -> RuleResult | None:
    now, start = run.median(KL), run.first(KL, 5 * run.w)
    if now is None or start is None:
        return None
    usual = statistics.median(start[math.ceil(2.5 * run.w) :])
    if now <= run.p["least"]:
        return OK
    rising, reward = run.trend(KL, run.W), run.trend(REWARD, run.W)
    before = run.median(KL, run.W - run.w)
    grows = rising is not None and rising.up() and before is not None and now > run.p["growth"] * before
    text = f"KL to the reference {now:.2g} nats/token, {usual:.2g} at the beginning"
    numbers = {"kl": now, "at the beginning": usual, "limit": run.p["factor"] * usual}
    if grows and reward is not None and reward.slope < 0 and reward.p < 0.01:
        return RuleResult(state="critical", evidence=f"{text}; it rises and the reward falls", numbers=numbers)
    if now > run.p["factor"] * usual:
        return RuleResult(state="warn", evidence=text, numbers=numbers)
    if grows and reward is not None and reward.p >= run.p["flat_p"]:
        return RuleResult(state="warn", evidence=f"{text}; it rises while the reward is flat", numbers=numbers)
    return OK


def _nothing_stale(recipe: Recipe) -> str:
    return "every response comes from the newest policy" if fresh(recipe) else ""


def _no_reference(recipe: Recipe) -> str:
    return "`kl: off`: no reference is loaded" if recipe.kl.kind == "off" else ""


NORM = "optim/grad_norm"
_UPDATES = "budget/optimizer_steps"
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
    if run.newest(_UPDATES) == 0:  # counted since the start, also in steps without an update, which have no norm
        steps = run.count(_UPDATES)
        text = f"no optimizer update in {steps} steps: nothing was left to train on"
        dead = RuleResult(state="critical", evidence=text, numbers={"updates": 0.0}, onset=run.first_step(_UPDATES))
        return dead if steps >= count else None
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
        name="mismatch",
        looks_for="sampler and learner assign different probabilities to the same tokens",
        any_of=(LOGP, MISMATCH_K3, _WEIGHT, _EFFECTIVE),
        rule=_mismatch,
        keep=4.0,
    ),
    Detector(
        name="staleness",
        looks_for="rollouts are older than the recipe allows",
        needs=(STALE,),
        rule=_staleness,
        why_not=_nothing_stale,
    ),
    Detector(
        name="kl_blowup",
        looks_for="the policy moves away from the reference without a gain in reward",
        needs=(KL,),
        uses=(REWARD,),
        rule=_blowup,
        head=5.0,
        why_not=_no_reference,
        keep=4.0,
    ),
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
        any_of=(NORM, _UPDATES),
        uses=(_ZERO,),
        rule=_dead,
        points=(1, 5),
    ),
)
