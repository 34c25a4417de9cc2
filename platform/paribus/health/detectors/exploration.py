"""Rules on exploration: the clipped share of tokens, and the entropy of the policy."""

from __future__ import annotations

from paribus.health.detector import OK, Detector, Rule, RuleResult, above
from paribus.health.signals import CLIPPED, REWARD
from paribus.health.window import Window
from paribus.recipe.analysis.facts import DIVERGENCES, on_policy, ratio_band
from paribus.recipe.recipe import Recipe

LOW, HIGH = "clip/low_frac", "clip/high_frac"
DUAL, CAPPED = "clip/dual_frac", "clip/capped_frac"
ENTROPY, _ZERO = "policy/entropy", "group/zero_std_frac"
_LEAST_SHARE = 0.02
"""A truncated share that is smaller may grow as it likes."""

SEQUENCE = frozenset({"seq_geo", "seq_geo_token", "seq_product", "geo_clipped"})


def _saturation(metric: str, side: str) -> Rule:
    def rule(run: Window) -> RuleResult | None:
        now, where = run.median(metric), side
        if now is None and metric == HIGH:
            now, where = run.median(CLIPPED), "above or below (the log has only the sum)"
        if now is None:
            return None
        dual = run.median(DUAL) if metric == HIGH else None
        now += dual or 0.0
        whole = run.recipe is not None and run.recipe.ratio.kind in SEQUENCE
        warn, critical = (run.p["sequence_warn"], 1.0) if whole else (run.p["warn"], run.p["critical"])
        text = f"{now:.1%} of the trained tokens are clipped {where}"
        text += f", {dual:.1%} by the dual clip" if dual else ""
        if (capped := run.median(CAPPED)) is not None:
            text += f"; {capped:.1%} have a capped weight, on either side and with either sign"
        band = ratio_band(run.recipe) if run.recipe is not None and not whole else None
        bound = None if band is None else band[metric == HIGH]
        if bound is not None and bound < run.p["tight"]:
            warn = run.p["tight_warn"]
            text += f"; the bound is {bound:g}, usual bounds are {run.p['tight']:g} or more"
        other = run.median(LOW if metric == HIGH else HIGH)
        entropy, before = run.median(ENTROPY), run.first_median(ENTROPY)
        eats = metric == HIGH and other is not None and now > 3 * other
        if eats and entropy is not None and before is not None and entropy < 0.8 * before:
            text += f"; entropy went from {before:.3g} in the first {run.w} points to {entropy:.3g}"
        return above(now, warn, critical, text, "clipped")

    return rule


def _zero(run: Window) -> RuleResult | None:
    """Judge only if the ratio can differ from 1; without a recipe, only earlier clipping proves that (TRL #3120)."""
    cut = any(run.line.values.get(name, 0.0) > 0 for name in (LOW, HIGH, DUAL, CAPPED))
    clipped = run.memory["clipped"] = run.memory.get("clipped", 0) + cut
    points = run.memory["points"] = run.memory.get("points", 0) + 1
    low, high = run.last(LOW, run.W), run.last(HIGH, run.W)
    if low is None or high is None or (run.recipe is None and not clipped):
        return None
    others = (run.last(name, min(run.W, run.count(name))) or [0.0] for name in (DUAL, CAPPED))
    if any(max(values) > 0 for values in (low, high, *others)):
        return OK
    if clipped and _rare(run, clipped / max(1, points - run.W)):
        return OK
    known = "tokens were clipped earlier" if run.recipe is None else "each batch gets more than one update"
    text = f"no token was clipped in {run.W} points, although {known}"
    return RuleResult(state="warn", evidence=text, numbers={"clipped": 0.0}, onset=run.step_ago(LOW, run.W - 1))


def _rare(run: Window, share: float) -> bool:
    """Return whether a long window without a clipped token is no surprise.

    Args:
        run: what the rule sees.
        share: of the points before the window, how many had a clipped token. Groups without spread move no token, so
            it falls with them.
    """
    now, before = run.median(_ZERO), run.first_median(_ZERO)
    if now is not None and before is not None and before < 1:
        share *= min(1.0, (1 - now) / (1 - before))
    return (1 - min(1.0, share)) ** run.W > run.p["chance"] / max(1.0, run.looks)


def _ratio_is_one(recipe: Recipe) -> str:
    if recipe.clip.kind in ("none", "soft_gate", "vespo", "kl_cov"):
        return f"`clip: {recipe.clip.kind}` has no bounds"
    if recipe.clip.kind in DIVERGENCES:
        return f"`clip: {recipe.clip.kind}` bounds how far a probability moves, and few move that far"
    return "one update per rollout batch: the ratio is always 1" if on_policy(recipe) else ""


def _rarely_left(recipe: Recipe) -> str:
    kind = recipe.ratio.kind
    return f"`ratio: {kind}` is not clipped per token" if kind in SEQUENCE else _ratio_is_one(recipe)


def _collapse(run: Window) -> RuleResult | None:
    now, first = run.median(ENTROPY), run.first_median(ENTROPY)
    if now is None or first is None:
        return None
    numbers = {"entropy": now, "at the beginning": first, "limit": run.p["critical"]}
    text = f"entropy {now:.3g} nats/token (median of {run.w} points), {first:.3g} in the first {run.w}"
    if now < run.p["critical"]:
        return RuleResult(state="critical", evidence=text, numbers=numbers)
    reward = run.median(REWARD)
    solved = reward is not None and run.scale(REWARD) == 1 and reward >= run.p["solved"]
    if now < run.p["warn"] and now < run.p["share"] * first and not solved:
        numbers["limit"] = run.p["warn"]
        zero, before = run.median(_ZERO), run.first_median(_ZERO)
        lost = zero is not None and before is not None and zero - before >= run.p["zero_rise"]
        text += f"; groups with equal rewards rose from {before:.0%} to {zero:.0%}" if lost else ""
        return RuleResult(state="critical" if lost else "warn", evidence=text, numbers=numbers)
    return OK


def _explosion(run: Window) -> RuleResult | None:
    now, first = run.median(ENTROPY), run.first_median(ENTROPY)
    if now is None or first is None:
        return None
    low = run.memory["low"] = min(now, run.memory.get("low", now))
    beyond = now > run.p["level"] and now > run.p["over_first"] * first
    if not beyond and not (now > run.p["over_low"] * low and now > run.p["over_first"] * first):
        return OK
    longer = _rises(run, "response/length_mean", "length", 1.1)
    longer = longer or _rises(run, "response/truncated_frac", "truncated share", 1.5)
    reward = run.gain(REWARD, run.W // 2)
    worse = bool(longer) and reward is not None and reward < -run.p["reward_fall"] * run.scale(REWARD)
    text = f"entropy {now:.3g} nats/token (median of {run.w} points), {first:.3g} in the first {run.w}, "
    text += f"{low:.3g} at the least"
    text += f"; the reward moved by {reward:+.2g} and {longer}" if worse else ""
    numbers = {"entropy": now, "at the beginning": first, "at the least": low, "limit": run.p["level"]}
    return RuleResult(state="critical" if worse else "warn", evidence=text, numbers=numbers)


def _rises(run: Window, metric: str, name: str, factor: float) -> str:
    """Return that a metric has grown by a factor over half a long window; empty if it has not."""
    now, before = run.median(metric), run.median(metric, run.W // 2)
    grown = now is not None and before is not None and now > factor * before > 0 and now > _LEAST_SHARE
    return f"the {name} went from {before:.3g} to {now:.3g} in {run.W // 2} points" if grown else ""


DETECTORS = (
    Detector(
        name="clip_saturation_high",
        looks_for="so many tokens are clipped above that good tokens are no longer reinforced",
        any_of=(HIGH, CLIPPED),
        uses=(LOW, DUAL, CAPPED, ENTROPY),
        rule=_saturation(HIGH, "above"),
        why_not=_ratio_is_one,
    ),
    Detector(
        name="clip_saturation_low",
        looks_for="so many tokens are clipped below that the updates are too large",
        needs=(LOW,),
        uses=(CAPPED,),
        rule=_saturation(LOW, "below"),
        why_not=_ratio_is_one,
    ),
    Detector(
        name="clip_zero",
        looks_for="no token is ever clipped: the policy does not move, or the old log-probabilities are wrong",
        needs=(LOW, HIGH),
        uses=(DUAL, CAPPED, _ZERO),
        rule=_zero,
        why_not=_rarely_left,
        keep=4.0,
    ),
    Detector(
        name="entropy_collapse",
        looks_for="the policy has become deterministic and no longer explores",
        needs=(ENTROPY,),
        uses=(_ZERO, REWARD),
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
