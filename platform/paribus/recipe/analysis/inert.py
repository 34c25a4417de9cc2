"""Changes that cannot act: two recipes with one normal form are one job.

The normal form of a recipe has each level that cannot act replaced by a plain one that gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import (
    DIVERGENCES,
    OWN_GRADIENT,
    RARE_BAND,
    changed_factors,
    endless,
    fresh,
    on_policy,
    one_advantage_a_response,
    other_reference,
    rewards_correctness_alone,
)
from paribus.recipe.recipe import Recipe
from paribus.text import plural

_SAME = "sampler and learner are the same (float32, staleness 0) and w is 1"
_OWN_TOKEN_RATIOS = frozenset({"none", "token", "seq_geo_token"})
_TOKEN_DENOMINATORS = frozenset({"token_batch", "token_group", "seq_meansum"})


class _Plain(NamedTuple):
    """A replacement: the factor, its plain level, in words what of the factor cannot act, and why."""

    factor: str
    level: f.Level
    what: str
    cause: str


def inert(before: Recipe, after: Recipe, *, sampler_is_learner: bool = False) -> str | None:
    """Return whether a change cannot act, because both recipes give the same gradient in every update.

    Args:
        before: the recipe that is changed.
        after: the recipe after the change.
        sampler_is_learner: the runner samples with the weights and the code that it trains, so that the two differ by
            rounding alone in float32.
    """
    changed = changed_factors(before, after)
    if not changed:
        return None
    one, causes_before = _normal_form(before, sampler_is_learner)
    other, causes_after = _normal_form(after, sampler_is_learner)
    if one != other:
        return None
    found: dict[str, list[str]] = {}
    for factor in sorted(changed):
        what, cause = causes_after.get(factor) or causes_before[factor]
        found.setdefault(cause, []).append(what)
    return "; ".join(f"{cause}, so {' and '.join(what)} cannot act" for cause, what in found.items())


def _normal_form(recipe: Recipe, sampler_is_learner: bool) -> tuple[Recipe, dict[str, tuple[str, str]]]:
    """Return the recipe with plain levels, and for each replaced factor what of it cannot act, and why."""
    causes: dict[str, tuple[str, str]] = {}
    for rule in _RULES:
        for factor, level, what, cause in rule(recipe, sampler_is_learner):
            causes.setdefault(factor, (what, cause))
            recipe = recipe.model_copy(update={factor: level})
    return recipe, causes


def _pairs(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    """A loss of pairs reads whole responses, and of rewards only their order (arXiv 2305.18290, Eq. 7)."""
    if recipe.loss.kind != "pair_dpo":
        return
    cause = "`loss: pair_dpo` compares the best with the worst response of a group"
    plain = {"scale": f.NoScale(), "ratio": f.NoRatio(), "clip": f.NoClip(), "aggregation": f.SequenceSum()}
    for factor, level in plain.items():
        yield _Plain(factor, level, f"`{factor}`", cause)
    if rewards_correctness_alone(recipe):
        yield _Plain("reward", f.Reward(), "the scale of `reward`", cause)


def _empty_first_pass(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    update = recipe.schedule.update
    if isinstance(update, f.Lopti) and update.eta == 0:
        plain = recipe.schedule.model_copy(update={"update": f.Joint()})
        yield _Plain("schedule", plain, "`schedule.update`", "with `eta: 0` no token is in the first of Lopti's passes")


def _best_of_one(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    level = recipe.baseline
    if not isinstance(level, f.PassAtK) or level.k > 1:
        return
    cause = "with `baseline.k: 1` the best of k responses is the response itself"
    yield _Plain("baseline", f.NoBaseline() if level.control == "none" else f.GroupMean(), "`pass_at_k`", cause)
    if isinstance(recipe.scale, f.PassAtKStd):
        yield _Plain("scale", f.GroupStd(ddof=0, eps=recipe.scale.eps), "`scale: pass_at_k_std`", cause)


def _one_step(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    if recipe.baseline.kind == "group_steps" and all(x.unit == "response" for x in recipe.reward.functions.values()):
        yield _Plain("baseline", f.GroupMean(), "`group_steps`", "no reward function has `unit: step`")


def _nowhere_to_return_to(recipe: Recipe, sampler_is_learner: bool) -> Iterator[_Plain]:
    """The gradient of the squared distance to the old policy is 0 where it has not been left."""
    if recipe.loss.kind == "opmd" and on_policy(recipe) and _agree(recipe, sampler_is_learner):
        cause = "with one update per rollout batch and staleness 0 the old policy has not been left"
        yield _Plain("loss", f.PolicyGradient(), "`loss`", cause)


def _weight_of_one(recipe: Recipe, sampler_is_learner: bool) -> Iterator[_Plain]:
    weight, cause = recipe.token_weight, None
    if isinstance(weight, f.TopEntropy) and weight.fraction == 1:
        cause = "`fraction: 1` keeps every token"
    elif isinstance(weight, f.AdvantageReweight) and weight.alpha == 0:
        cause = "`alpha: 0` gives every token the weight 1"
    elif isinstance(weight, f.RouterShift) and weight.floor == 1:
        cause = "`floor: 1` gives every token the weight 1"
    elif isinstance(weight, f.RouterShift) and on_policy(recipe) and _agree(recipe, sampler_is_learner):
        cause = "with one update per rollout batch and staleness 0 the router has not moved"
    if cause:
        yield _Plain("token_weight", f.UniformWeight(), "`token_weight`", cause)


def _agreement(recipe: Recipe, sampler_is_learner: bool) -> Iterator[_Plain]:
    """Where sampler and learner agree, w = 1 but for rounding, and every rule that leaves 1 alone does nothing."""
    level, same = recipe.correction, _agree(recipe, sampler_is_learner)
    mask = level.mask if isinstance(level, f.Chain) else level
    if isinstance(mask, f.OffPolicyMask):
        if on_policy(recipe) and same and (mask is level or _leaves_one(level)):
            cause = "with one update per rollout batch and staleness 0 no response is off-policy"
            yield _Plain("correction", f.NoCorrection(), "`correction`", cause)
        elif fresh(recipe) and same and mask is not level and _leaves_one(level):
            yield _Plain("correction", mask, "`correction.weight`", _SAME)
    elif _leaves_one(level) and fresh(recipe) and same:
        yield _Plain("correction", f.NoCorrection(), "`correction`", _SAME)


def _leaves_one(level: f.Correction) -> bool:
    """Return whether a correction gives the weight 1 where w is 1; a mask by the sign of A has no weight."""
    if isinstance(level, f.Chain):
        return _leaves_one(level.mask) and _leaves_one(level.weight)
    if isinstance(level, f.TokenTruncate | f.SequenceTruncate):
        return level.cap >= 1
    return isinstance(level, f.OffPolicyMask) or (not isinstance(level, f.NoCorrection) and level.low < 1 < level.high)


def _other_names(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    """Clip rules that their parameters make another one, in every update."""
    clip = recipe.clip
    if isinstance(clip, f.GradientPreserving) and clip.beta_low == clip.beta_high == 0:
        cause = "with `beta_low: 0` and `beta_high: 0` a clipped token keeps no gradient, as under ppo_min"
        yield _Plain("clip", f.PpoMin(low=clip.low, high=clip.high), "`clip`", cause)
    elif isinstance(clip, f.AdaptiveBand) and (clip.low_start, clip.high_start) == (clip.low_end, clip.high_end):
        band = f.PpoMin(low=round(1 - clip.low_end, 12), high=round(clip.high_end - 1, 12))
        yield _Plain("clip", band, "`clip`", "bounds that start at their end never move, and the rule is ppo_min")
    elif isinstance(clip, f.DppoTotalVariation) and clip.low == clip.high == 1:
        cause = "no probability moves by more than 1, and without a mask the rule is is_cap_sg"
        yield _Plain("clip", f.CappedWeight(cap=clip.cap), "`clip`", cause)


def _ratio_of_one(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    """At r = 1 every rule whose band holds 1 has the plain policy gradient (arXiv 1707.06347, Eq. 7 at r = 1)."""
    if not _neutral_at_one(recipe):
        return
    cause = (
        "with one update per rollout batch (schedule.minibatches x schedule.epochs = 1) and staleness 0 the ratio is 1"
    )
    if on_policy(recipe) and _gradient_of_own_token(recipe):
        yield _Plain("ratio", f.TokenRatio(), "`ratio`", cause)
        yield _Plain("clip", f.NoClip(), "`clip`", cause)
    elif recipe.ratio.kind == "none" and recipe.clip.kind not in DIVERGENCES:
        yield _Plain("clip", f.NoClip(), "`clip`", "`ratio: none` is 1 in every update")
    elif on_policy(recipe) and recipe.clip.kind not in OWN_GRADIENT:
        yield _Plain("clip", f.NoClip(), "`clip`", cause)


def _same_metric(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    level = recipe.filter
    if not isinstance(level, f.NoFilter) and level.metric == "reward_std" and rewards_correctness_alone(recipe):
        plain = level.model_copy(update={"metric": "correct"})
        cause = "rewards are made of correctness alone and differ in a group exactly where correctness does"
        yield _Plain("filter", plain, "`filter.metric`", cause)


def _nothing_comes_back(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    if recipe.schedule.retire_at is not None and endless(recipe):
        plain = recipe.schedule.model_copy(update={"retire_at": None})
        yield _Plain("schedule", plain, "`schedule.retire_at`", "the task draws new problems without end")


def _steady(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    schedule = recipe.schedule
    if schedule.temperature_change.kind == "none":
        return
    if {schedule.temperature_at(step) for step in range(1, schedule.steps + 1)} == {schedule.temperature}:
        plain = schedule.model_copy(update={"temperature_change": f.SteadyTemperature()})
        cause = f"each step of the run has `schedule.temperature: {schedule.temperature:g}`"
        yield _Plain("schedule", plain, "`schedule.temperature_change`", cause)


def _keeps_all(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    keep, size = recipe.length.keep, recipe.schedule.group_size
    if not isinstance(keep, f.KeepAll) and keep.count == size:
        plain = recipe.length.model_copy(update={"keep": f.KeepAll()})
        yield _Plain("length", plain, "`length.keep`", f"`length.keep.count: {size}` keeps the whole group")


def _nothing_to_count(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    cause = None
    if recipe.length.truncated != "mask_loss":
        cause = "no response is masked"
    elif recipe.aggregation.kind in _TOKEN_DENOMINATORS:
        cause = f"`aggregation: {recipe.aggregation.kind}` does not divide by the number of responses"
    if cause and recipe.length.count_masked_rows:
        plain = recipe.length.model_copy(update={"count_masked_rows": False})
        yield _Plain("length", plain, "`length.count_masked_rows`", cause)


def _same_routing(recipe: Recipe, sampler_is_learner: bool) -> Iterator[_Plain]:
    """Routers whose weights have not changed choose the same experts again, but for rounding."""
    rollout, schedule, cause = recipe.rollout, recipe.schedule, None
    one = schedule.updates_per_rollout == 1 and schedule.update.kind == "joint" and recipe.model.dtype == "float32"
    if rollout.routing_replay == "learner" and one:
        cause = "with one update per rollout batch its router is the one whose choice it would repeat"
    elif rollout.routing_replay == "sampler" and on_policy(recipe) and _agree(recipe, sampler_is_learner):
        cause = "with one update per rollout batch and staleness 0 the router is the one that sampled"
    if cause:
        plain = rollout.model_copy(update={"routing_replay": "off"})
        yield _Plain("rollout", plain, "`rollout.routing_replay`", cause)


def _same_logits(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    model = recipe.model
    if model.logits_dtype == model.dtype:
        plain = model.model_copy(update={"logits_dtype": "auto"})
        yield _Plain("model", plain, "`model.logits_dtype`", f"`model.dtype: {model.dtype}` has such logits already")


def _still_reference(recipe: Recipe, _: bool) -> Iterator[_Plain]:
    reference = getattr(recipe.kl, "reference", None)
    if isinstance(reference, f.SyncedReference) and (reference.mix == 0 or reference.every > recipe.schedule.steps):
        plain = recipe.kl.model_copy(update={"reference": f.FixedReference()})
        cause = f"the reference never moves within {plural(recipe.schedule.steps, 'step')}"
        yield _Plain("kl", plain, "`kl.reference`", cause)
    other, model = other_reference(recipe), recipe.model
    if other is not None and (other.name, other.revision) == (model.name, model.revision):
        plain = recipe.kl.model_copy(update={"reference": f.FixedReference()})
        yield _Plain("kl", plain, "`kl.reference`", f"`{other.name}` is the model that the policy starts from")


_RULES: tuple[Callable[[Recipe, bool], Iterator[_Plain]], ...] = (
    _pairs,
    _empty_first_pass,
    _best_of_one,
    _one_step,
    _nowhere_to_return_to,
    _weight_of_one,
    _agreement,
    _other_names,
    _ratio_of_one,  # after the rules that make the advantages of a response one
    _same_metric,
    _nothing_comes_back,
    _steady,
    _keeps_all,
    _nothing_to_count,
    _still_reference,
    _same_logits,
    _same_routing,
)


def _agree(recipe: Recipe, sampler_is_learner: bool) -> bool:
    return sampler_is_learner and recipe.model.dtype == "float32"


def _neutral_at_one(recipe: Recipe) -> bool:
    """Return whether the clip leaves a ratio of 1 alone, and in bfloat16 one that rounding moves."""
    clip = recipe.clip
    if isinstance(clip, f.CappedWeight):
        return clip.floor <= 1 <= clip.cap
    if isinstance(clip, f.NoClip | f.SoftGate | f.GammaWeight):
        return True
    if isinstance(clip, f.ClipCov | f.KlCov):  # they choose by covariance, whatever the ratio
        return False
    if isinstance(clip, f.DppoTotalVariation | f.DppoBinaryKl) and clip.cap < 1:
        return False
    width = RARE_BAND if recipe.model.dtype == "bfloat16" else 0.0
    low, high = (1 - clip.low_end, clip.high_start - 1) if isinstance(clip, f.AdaptiveBand) else (clip.low, clip.high)
    return low > width and high > width


def _gradient_of_own_token(recipe: Recipe) -> bool:
    """Return whether at r = 1 the gradient of each token is its own advantage times its weight.

    A mean over the response spreads the gradient evenly, which is the same where all tokens have one advantage.
    """
    kind = recipe.ratio.kind
    if kind in _OWN_TOKEN_RATIOS:
        return True
    spread = kind == "seq_geo" or (kind == "geo_clipped" and recipe.aggregation.kind == "seq_mean")
    return spread and one_advantage_a_response(recipe)
