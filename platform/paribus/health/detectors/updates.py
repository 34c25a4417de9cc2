"""Rules on updates: the distances between policies (sampler, learner, reference), and the gradient."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import REWARD
from paribus.health.window import Window
from paribus.recipe.analysis.facts import fresh
from paribus.recipe.recipe import Recipe
from paribus.text import plural

LOGP, K3 = "mismatch/logp_abs_diff_mean", "mismatch/k3"
_WEIGHT, _EFFECTIVE = "correction/weight_mean", "correction/effective_frac"
STALE = "staleness/steps_mean"
KL = "kl/ref_k3"


def _mismatch(run: Window) -> RuleResult | None:
    found = []
    for metric, name, low, high in (
        (LOGP, "|log p learner - log p sampler|", None, ("logp_warn", "logp_critical")),
        (K3, "k3 between learner and sampler", None, ("k3_warn", "k3_critical")),
        (_EFFECTIVE, "effective sample of the weights", ("effective_warn", "effective_critical"), None),
        (_WEIGHT, "mean weight", ("weight_low_warn", "weight_low"), ("weight_high_warn", "weight_high")),
    ):
        now = None if metric in (LOGP, K3) and _stale(run) else run.median(metric)
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
    allowed = "the limit is" if run.recipe is None else "the recipe allows"
    text = f"rollouts are {now:.3g} updates old when trained on; {allowed} {limit:g}"
    return RuleResult(state="warn", evidence=text, numbers={"staleness": now, "limit": limit})


def configured_staleness(recipe: Recipe) -> int:
    """Return how many updates old the rollouts of a recipe can be."""
    behind = recipe.schedule.staleness + (1 if getattr(recipe.filter, "max_surplus", 0) else 0)
    return behind * recipe.schedule.updates_per_rollout


def _blowup(run: Window) -> RuleResult | None:
    """Judge a sudden rise: a KL that grows with the steps is usual in long training, however far it gets."""
    newest, now, half = run.newest(KL), run.median(KL), run.W // 2
    run.memory["total"] = run.memory.get("total", 0.0) + (newest if newest and math.isfinite(newest) else 0.0)
    if now is None:
        return None
    begun = run.memory.setdefault("first", now)
    soon, before = (begun if x is None else x for x in (run.median(KL, half), run.median(KL, run.W)))
    if now <= run.p["least"]:
        return OK
    reward, then = run.mean(REWARD), run.mean(REWARD, ago=half)
    if now > run.p["with_fall"] * soon and reward is not None and then is not None:
        fall, error = then.value - reward.value, math.hypot(then.error, reward.error)
        if fall > run.sure(run.p["chance"]) * error:
            text = f"KL to the reference {now:.2g} nats/token, {soon:.2g} {_when(run, half)}"
            text += f"; the reward fell from {then.value:.3g} to {reward.value:.3g}"
            numbers = {"kl": now, "before": soon, "limit": run.p["with_fall"] * soon}
            return RuleResult(state="critical", evidence=text, numbers=numbers)
    count = run.count(KL)
    steady = count / max(count - run.W, run.w)  # by how much a KL in proportion to the steps has grown
    limit = max(run.p["level"], run.p["factor"] * steady * before)
    if now <= limit:
        return _accelerates(run, now, run.memory["total"] / count)
    text = f"KL to the reference {now:.2g} nats/token, {before:.2g} {_when(run, run.W)}"
    numbers = {"kl": now, "before": before, "limit": limit}
    if now > run.p["critical"]:
        return RuleResult(state="critical", evidence=text, numbers={**numbers, "limit": run.p["critical"]})
    return RuleResult(state="warn", evidence=text, numbers=numbers)


def _accelerates(run: Window, now: float, mean: float) -> RuleResult:
    """Judge a KL that is large: what grows in proportion to the steps is twice its mean, to their square three times.

    Noise hardly matters: a median of w points is compared with the mean of all.
    """
    if now <= run.p["critical"] or now <= run.p["accelerates"] * mean:
        return OK
    text = (
        f"KL to the reference {now:.2g} nats/token, {now / mean:.2g} times its mean since the beginning; twice would "
    )
    text += "be growth in proportion to the steps"
    return RuleResult(state="warn", evidence=text, numbers={"kl": now, "mean": mean, "limit": run.p["accelerates"]})


def _when(run: Window, ago: int) -> str:
    """Return of which points a KL is: those up to so many points before, or the first where there are no such."""
    return f"in the first {run.w} points" if run.median(KL, ago) is None else f"up to {ago} points before"


def _nothing_stale(recipe: Recipe) -> str:
    return "every response comes from the newest policy" if fresh(recipe) else ""


def _no_reference(recipe: Recipe) -> str:
    return "`kl: off`: no reference is loaded" if recipe.kl.kind == "off" else ""


NORM = "optim/grad_norm"
_UPDATES = "budget/optimizer_steps"
_ZERO = "group/zero_std_frac"
_RATE, _ENTROPY, _LENGTH = "optim/lr", "policy/entropy", "response/length_mean"
MOVED, _RATIO = "kl/old_k3", "ratio/mean"
_TIMES = 10.0
"""By how much more often than usual huge spikes come under the alternative of their test."""


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
        return RuleResult(state="critical", evidence="the gradient norm is not finite", onset=run.line.step)
    count = math.ceil(2.5 * run.w)
    values = run.last(NORM, count)
    if values is None:
        return None
    middle = statistics.median(values)
    if "usual" not in run.memory:
        run.memory.update(usual=middle, spread=_spread(values, middle), spikes=0, points=count - 1)
    usual, spread = run.memory["usual"], run.memory["spread"]
    limit = max(run.p["factor"] * usual, usual + run.p["spreads"] * max(spread, 0.05 * usual))
    spikes = sum(g > limit for g in values)
    run.memory["points"] += 1
    run.memory["spikes"] += now > limit
    if now > run.p["huge"] * usual > 0:
        run.memory["many"] = run.memory.get("many", 0) + 1
        run.memory.setdefault("first_huge", run.line.step)
    if not spikes:
        run.memory.update(usual=middle, spread=_spread(values, middle))
    recent = run.median(NORM)
    assert recent is not None
    numbers = {"gradient norm": now, "limit": limit}
    since = next((s for s, g in zip(run.steps(NORM)[-count:], values, strict=True) if g > limit), run.line.step)
    if recent > run.p["factor"] * usual > 0:
        text = f"the gradient norm is {recent:.3g} (median of {run.w} points), {usual:.3g} before"
        return RuleResult(state="critical", evidence=text, numbers=numbers, onset=since)
    if now <= limit:
        return OK
    if spikes < run.p["often"] or not _unusual(run, spikes, count):
        return _huge_spikes(run, now, usual)
    text = f"gradient norm {now:.3g}, {usual:.3g} before; {spikes} points above {limit:.3g} in {count}"
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=since)


def _huge_spikes(run: Window, now: float, usual: float) -> RuleResult:
    """Judge how many spikes of many times the usual norm the run has had so far.

    The null hypothesis is a Poisson process; the likelihood ratio against ten times its rate exceeds 1 / chance at any
    time in at most this share of the runs, however long they are.

    Source: Ville 1939 (the bound); Wald 1945 (sequential probability ratio).
    """
    many, points, rate = run.memory.get("many", 0), run.memory["points"], run.p["rate"]
    log_ratio = many * math.log(_TIMES) - (_TIMES - 1) * rate * points
    if now <= run.p["huge"] * usual or log_ratio <= -math.log(run.p["chance"]):
        return OK
    limit = run.p["huge"] * usual
    text = (
        f"gradient norm {now:.3g}, {usual:.3g} before; {many} spikes above {run.p['huge']:g} times the usual norm in "
    )
    text += f"{points} points, {rate * points:.2g} would be usual"
    numbers = {"gradient norm": now, "limit": limit, "spikes": float(many)}
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=run.memory["first_huge"])


def _spread(values: Sequence[float], middle: float) -> float:
    return 1.4826 * statistics.median(abs(g - middle) for g in values)


def _unusual(run: Window, spikes: int, count: int) -> bool:
    """Return whether a Poisson process with the rate of spikes before the window hardly gives so many in it."""
    earlier, points = run.memory["spikes"] - spikes, max(run.memory["points"] - count, count)
    mean = (max(earlier, 0) + 0.5) / points * count
    below = math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(spikes))
    return 1 - below < run.p["chance"]


def _dead(run: Window) -> RuleResult | None:
    count = round(run.p["points"])
    if run.newest(_UPDATES) == 0:  # counted since the start, also in steps without an update, which have no norm
        steps = run.count(_UPDATES)
        text = f"no optimizer update in {plural(steps, 'step')}"
        dead = RuleResult(state="critical", evidence=text, numbers={"updates": 0.0}, onset=run.first_step(_UPDATES))
        return dead if steps >= count else None
    norms, zero = run.last(NORM, count), _equal_rewards(run, count)
    if norms is not None and max(norms) < run.p["norm"] and zero < run.p["zero"]:
        text = f"the gradient norm is {max(norms):.2g} at most in {count} points"
        if run.count(_ZERO):
            text += f", although rewards differ in {1 - zero:.0%} of the groups of one of them"
        numbers = {"gradient norm": max(norms), "limit": run.p["norm"]}
        return RuleResult(state="critical", evidence=text, numbers=numbers, onset=run.step_ago(NORM, count - 1))
    return _still(run, count) or (None if norms is None else OK)


def _equal_rewards(run: Window, count: int) -> float:
    """Return the least share of groups with equal rewards while the last ``count`` norms were recorded.

    Some trainers record it once for several updates; 0 where they never do, 1 where none of these steps has it.
    """
    if not run.count(_ZERO):
        return 0.0
    begins = run.steps(NORM)[-count:]
    shares = zip(run.steps(_ZERO), run.values(_ZERO), strict=True)
    return min((share for step, share in shares if begins and step >= begins[0]), default=1.0)


def _still(run: Window, count: int) -> RuleResult | None:
    """Return that the learning rate is 0, that the KL to the reference is, or that nothing moves; else ``None``."""
    rates, kls = run.last(_RATE, count), run.last(KL, math.ceil(2.5 * run.w))
    early = run.count(_RATE) < 0.8 * run.looks * run.w  # schedules may end at 0
    if rates is not None and early and not any(rates):
        text = f"the learning rate is 0 in {count} points"
        return RuleResult(state="critical", evidence=text, onset=run.step_ago(_RATE, count - 1))
    if kls is not None and not any(kls) and run.count(KL) == len(kls):
        text = f"the KL to the reference is 0 in the first {len(kls)} points: the policy has not moved"
        return RuleResult(state="critical", evidence=text, onset=run.first_step(KL))
    bounds = [_moved_at_most(run, name) for name in (_ENTROPY, _LENGTH, REWARD)]
    if any(b is None or b > run.p["moved"] for b in bounds):
        return None
    entropy, length, reward = bounds
    text = f"nothing is learned: from the first {run.W} points to the last {run.W}, entropy moved by {entropy:.1%} at "
    text += f"most, length by {length:.1%} and reward by {reward:.1%}"
    return RuleResult(state="warn", evidence=text, numbers={"limit": run.p["moved"]}, onset=run.first_step(REWARD))


def _moved_at_most(run: Window, metric: str) -> float | None:
    """Return how far a metric may have moved since the beginning, as a share of its level or of the reward's scale."""
    first, now = run.first(metric, run.W), run.mean(metric, run.W)
    if first is None or now is None or run.count(metric) < 2 * run.W:
        return None
    before = statistics.fmean(first)
    unit = run.scale(metric) if metric == REWARD else abs(before)
    return (abs(now.value - before) + 3 * math.sqrt(2) * now.error) / unit if unit else None


DETECTORS = (
    Detector(
        name="mismatch",
        looks_for="sampler and learner assign different probabilities to the same tokens",
        any_of=(LOGP, K3, _WEIGHT, _EFFECTIVE),
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
        looks_for="the policy suddenly moves away from the reference",
        needs=(KL,),
        uses=(REWARD,),
        rule=_blowup,
        why_not=_no_reference,
        keep=5.0,
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
        looks_for="the gradient norm grows suddenly, or spikes more often than before",
        needs=(NORM,),
        rule=_spike,
        points=(1, 20),
        keep=1.5,
    ),
    Detector(
        name="dead_update",
        looks_for="updates have no effect although there is something to learn",
        any_of=(NORM, _UPDATES, KL, _RATE),
        uses=(_ZERO, _ENTROPY, _LENGTH, REWARD),
        rule=_dead,
        points=(1, 5),
        keep=5.0,
        head=5.0,
    ),
)
