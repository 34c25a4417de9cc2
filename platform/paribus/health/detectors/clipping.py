"""Rules on the clipped share of tokens: too many, and none where some are expected."""

from __future__ import annotations

from paribus.health.detector import OK, Detector, Rule, RuleResult, above
from paribus.health.signals import CLIPPED
from paribus.health.window import Window
from paribus.recipe.analysis.facts import on_policy
from paribus.recipe.recipe import Recipe

LOW, HIGH = "clip/low_frac", "clip/high_frac"
_ENTROPY = "policy/entropy"
_BOUNDS = {LOW: "low", HIGH: "high"}
SEQUENCE = frozenset({"seq_geo", "seq_geo_token", "seq_product", "geo_clipped"})


def _saturation(metric: str, side: str) -> Rule:
    def rule(run: Window) -> RuleResult | None:
        now, where = run.median(metric), side
        if now is None and metric == HIGH:
            now, where = run.median(CLIPPED), "above or below (the log has only the sum)"
        if now is None:
            return None
        whole = run.recipe is not None and run.recipe.ratio.kind in SEQUENCE
        warn, critical = (run.p["sequence_warn"], 1.0) if whole else (run.p["warn"], run.p["critical"])
        text = f"{now:.1%} of the trained tokens are clipped {where}"
        bound = getattr(run.recipe.clip, _BOUNDS[metric], None) if run.recipe is not None and not whole else None
        if bound is not None and bound < run.p["tight"]:
            warn = run.p["tight_warn"]
            text += f"; the bound is {bound:g}, usual bounds are {run.p['tight']:g} or more"
        other = run.median(LOW if metric == HIGH else HIGH)
        entropy, before = run.median(_ENTROPY), run.first_median(_ENTROPY)
        eats = metric == HIGH and other is not None and now > 3 * other
        if eats and entropy is not None and before is not None and entropy < 0.8 * before:
            text += ", and entropy falls: clipping reduces exploration"
        return above(now, warn, critical, text, "clipped")

    return rule


def _zero(run: Window) -> RuleResult | None:
    """Judge only if the ratio can differ from 1; without a recipe, only earlier clipping proves that (TRL #3120)."""
    run.memory["clipped"] = run.memory.get("clipped", False) or run.line.values[LOW] > 0 or run.line.values[HIGH] > 0
    low, high = run.last(LOW, run.W), run.last(HIGH, run.W)
    if low is None or high is None or (run.recipe is None and not run.memory["clipped"]):
        return None
    if max(low) > 0 or max(high) > 0:
        return OK
    known = "tokens were clipped earlier" if run.recipe is None else "each batch gets more than one update"
    text = f"no token was clipped in {run.W} points, although {known}"
    return RuleResult(state="warn", evidence=text, numbers={"clipped": 0.0}, onset=run.step_ago(LOW, run.W - 1))


def _ratio_is_one(recipe: Recipe) -> str:
    if recipe.clip.kind in ("none", "soft_gate"):
        return f"`clip: {recipe.clip.kind}` has no bounds"
    return "one update per rollout batch: the ratio is always 1" if on_policy(recipe) else ""


def _rarely_left(recipe: Recipe) -> str:
    kind = recipe.ratio.kind
    return f"`ratio: {kind}` is not clipped per token" if kind in SEQUENCE else _ratio_is_one(recipe)


DETECTORS = (
    Detector(
        name="clip_saturation_high",
        looks_for="so many tokens are clipped above that good tokens are no longer reinforced",
        any_of=(HIGH, CLIPPED),
        uses=(LOW, _ENTROPY),
        rule=_saturation(HIGH, "above"),
        why_not=_ratio_is_one,
    ),
    Detector(
        name="clip_saturation_low",
        looks_for="so many tokens are clipped below that the updates are too large",
        needs=(LOW,),
        rule=_saturation(LOW, "below"),
        why_not=_ratio_is_one,
    ),
    Detector(
        name="clip_zero",
        looks_for="no token is ever clipped: the policy does not move, or the old log-probabilities are wrong",
        needs=(LOW, HIGH),
        rule=_zero,
        why_not=_rarely_left,
        keep=4.0,
    ),
)
