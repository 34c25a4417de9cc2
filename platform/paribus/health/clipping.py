"""Rules on the clip of the ratio: too much of it, and none where there should be some."""

from __future__ import annotations

from paribus.health.detector import FINE, Detector, Rule, Verdict, above
from paribus.health.signals import CLIPPED
from paribus.health.view import View
from paribus.recipe.analysis.facts import on_policy
from paribus.recipe.recipe import Recipe

LOW, HIGH = "clip/low_frac", "clip/high_frac"
_ENTROPY = "policy/entropy"
_BOUNDS = {LOW: "low", HIGH: "high"}
SEQUENCE = frozenset({"seq_geo", "seq_geo_token", "seq_product", "geo_clipped"})


def _saturation(metric: str, side: str) -> Rule:
    def rule(v: View) -> Verdict | None:
        now, where = v.middle(metric), side
        if now is None and metric == HIGH:
            now, where = v.middle(CLIPPED), "above or below, the log does not tell which"
        if now is None:
            return None
        whole = v.recipe is not None and v.recipe.ratio.kind in SEQUENCE
        warn, critical = (v.p["sequence_warn"], 1.0) if whole else (v.p["warn"], v.p["critical"])
        says = f"{now:.1%} of the trained tokens are clipped {where}"
        bound = getattr(v.recipe.clip, _BOUNDS[metric], None) if v.recipe is not None and not whole else None
        if bound is not None and bound < v.p["tight"]:
            warn = v.p["tight_warn"]
            says += f" by a bound of {bound:g}, where {v.p['tight']:g} and more are usual"
        other = v.middle(LOW if metric == HIGH else HIGH)
        entropy, before = v.middle(_ENTROPY), v.began(_ENTROPY)
        eats = metric == HIGH and other is not None and now > 3 * other
        if eats and entropy is not None and before is not None and entropy < 0.8 * before:
            says += ", and entropy falls: the clip eats exploration"
        return above(now, warn, critical, says, "clipped")

    return rule


def _zero(v: View) -> Verdict | None:
    """Judge where the ratio can be other than 1, which a log without its recipe shows by a clip alone (TRL #3120)."""
    v.memory["clipped"] = v.memory.get("clipped", False) or v.line.values[LOW] > 0 or v.line.values[HIGH] > 0
    low, high = v.tail(LOW, v.W), v.tail(HIGH, v.W)
    if low is None or high is None or (v.recipe is None and not v.memory["clipped"]):
        return None
    if max(low) > 0 or max(high) > 0:
        return FINE
    known = "some were before" if v.recipe is None else "a batch is trained on more than once"
    says = f"no token was clipped in {v.W} points, though {known}"
    return Verdict(state="warn", says=says, numbers={"clipped": 0.0}, onset=v.step_ago(LOW, v.W - 1))


def _ratio_is_one(recipe: Recipe) -> str:
    if recipe.clip.kind in ("none", "soft_gate"):
        return f"`clip: {recipe.clip.kind}` has no bound"
    return "one update a rollout batch: the ratio is 1" if on_policy(recipe) else ""


def _rarely_left(recipe: Recipe) -> str:
    kind = recipe.ratio.kind
    return f"`ratio: {kind}` is not clipped token by token" if kind in SEQUENCE else _ratio_is_one(recipe)


DETECTORS = (
    Detector(
        name="clip_saturation_high",
        looks_for="so many tokens are clipped above that good ones are no longer reinforced",
        any_of=(HIGH, CLIPPED),
        uses=(LOW, _ENTROPY),
        rule=_saturation(HIGH, "above"),
        why_not=_ratio_is_one,
    ),
    Detector(
        name="clip_saturation_low",
        looks_for="so many tokens are clipped below that updates go too far",
        needs=(LOW,),
        rule=_saturation(LOW, "below"),
        why_not=_ratio_is_one,
    ),
    Detector(
        name="clip_zero",
        looks_for="nothing is ever clipped: the policy does not move, or old log-probabilities are wrong",
        needs=(LOW, HIGH),
        rule=_zero,
        why_not=_rarely_left,
        keep=4.0,
    ),
)
