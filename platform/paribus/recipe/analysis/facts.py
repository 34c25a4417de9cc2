"""Facts of one recipe: those that notes on two recipes rest on, and what is odd about it by itself."""

from __future__ import annotations

from paribus.recipe import factors as f
from paribus.recipe.recipe import ChainTask, Recipe, SearchTask, difference
from paribus.text import plural

RARE_BAND = 0.1
"""Width of the band of a sequence's mean ratio that is not left in practice: GSPO's own is 4e-4 (arXiv 2507.18071)."""

SMALL_EPS = 1e-3
"""An ``eps`` up to here is nothing beside the standard deviation of rewards of 0 and 1, or of -1 and 1."""

GROUP_BASELINES = frozenset({"group_mean", "group_loo"})

DIVERGENCES = frozenset({"dppo_tv", "dppo_kl"})
"""Clip rules whose ``low`` and ``high`` bound how far a probability moves, not the ratio."""

OWN_GRADIENT = frozenset({"is_cap_sg", "vespo"}) | DIVERGENCES
"""Clip rules whose weight has no gradient, so that each token has that of its own log-probability."""

CAPS = frozenset({"is_cap_sg", "ce_gppo", "aspo"}) | DIVERGENCES
"""Clip rules that give some tokens a cap or a floor in the place of r, and keep their gradient."""

WHOLE_BATCH = frozenset({"clip_cov", "kl_cov", "bapo"})
"""Clip rules that look at all tokens of an update under the policy that it updates, before it begins."""

_ONE_A_RESPONSE = frozenset({"seq_geo", "seq_geo_token", "seq_product", "geo_clipped"})
_EVEN = frozenset({"seq_mean", "seq_meansum"})


def changed_factors(before: Recipe, after: Recipe) -> set[str]:
    """Return the factors (or other parts) of the recipe in which two recipes differ."""
    return {path.split(".")[0] for path in difference(before, after)}


def has_reference(recipe: Recipe) -> bool:
    """Return whether responses are scored by a reference: for a KL term, or for pairs."""
    return recipe.kl.kind != "off" or recipe.loss.kind == "pair_dpo"


def other_reference(recipe: Recipe) -> f.ModelReference | None:
    """Return the reference of a recipe if it is another model than the policy."""
    reference = getattr(recipe.kl, "reference", None)
    return reference if isinstance(reference, f.ModelReference) else None


def endless(recipe: Recipe) -> bool:
    """Return whether the task draws new training problems without end, so that none comes back."""
    return isinstance(recipe.task, SearchTask | ChainTask) and recipe.task.problems is None


def fresh(recipe: Recipe) -> bool:
    """Return whether all responses of a step come from the policy as it is when the step begins to train."""
    surplus = getattr(recipe.filter, "max_surplus", 0)
    return recipe.schedule.staleness == 0 and surplus == 0


def on_policy(recipe: Recipe) -> bool:
    """Return whether the policy that is updated is the one that sampled, so that the ratio is 1."""
    return fresh(recipe) and recipe.schedule.updates_per_rollout == 1 and recipe.schedule.update.kind == "joint"


def weighs_sampler(recipe: Recipe) -> bool:
    """Return whether the correction compares sampler and learner as they are before the updates.

    A mask by the sign of the advantage alone compares the sampler with the policy in each update, as the ratio does.
    """
    return recipe.correction.kind not in ("off", "off_policy_mask")


def corrected_by_the_update(recipe: Recipe) -> bool:
    """Return whether the forward pass of the update itself gives what the correction needs.

    With one update a step, the policy that is updated is still the old one. What is made of the old log-probabilities
    before the updates, the weights of tokens by probability or by routing, asks for a pass before them all the same.
    """
    return (
        weighs_sampler(recipe)
        and recipe.clip.kind not in WHOLE_BATCH
        and recipe.schedule.updates_per_rollout == 1
        and recipe.schedule.update.kind == "joint"
        and recipe.loss.kind == "policy_gradient"
        and recipe.token_weight.kind in ("uniform", "top_entropy")
    )


def one_advantage_a_response(recipe: Recipe) -> bool:
    """Return whether all tokens of a response have the same advantage, weight and correction."""
    return (
        recipe.baseline.kind != "critic_gae"
        and getattr(recipe.kl, "unit", "sequence") == "sequence"
        and recipe.kl.kind != "advantage"
        and recipe.token_weight.kind == "uniform"
        and recipe.correction.kind == "off"
    )


def rewards_correctness_alone(recipe: Recipe) -> bool:
    """Return whether the reward of a response rises with its correctness and knows nothing else.

    All tasks score a right response +1 and a wrong one -1.
    """
    reward = recipe.reward
    return (
        reward.combine == "sum_then_norm"
        and reward.weights.correct > 0
        and set(reward.counts) == {"correct"}
        and recipe.length.rule.kind == "none"
        and recipe.kl.kind != "reward"
    )


def nothing_without_spread(recipe: Recipe) -> bool:
    """Return whether all advantages of a group with equal rewards are 0."""
    level = recipe.baseline
    if recipe.kl.kind == "advantage":
        return False
    if level.kind in GROUP_BASELINES or level.kind == "group_length_weighted":
        return True
    return isinstance(level, f.PassAtK) and level.control != "none"


def policy_loss_alone(recipe: Recipe) -> bool:
    """Return whether nothing stands beside the policy loss: no KL, no entropy, no distance, no other loss."""
    return recipe.kl.kind in ("off", "reward") and no_auxiliary(recipe) and recipe.loss.kind == "policy_gradient"


def no_auxiliary(recipe: Recipe) -> bool:
    """Return whether the factor F12 is off."""
    auxiliary = recipe.auxiliary
    return auxiliary.entropy == 0 and auxiliary.positive_nll == 0 and auxiliary.value is None


def updates_in_words(recipe: Recipe) -> str:
    """Return how far policies can drift apart: updates on a rollout batch, and staleness."""
    schedule = recipe.schedule
    return f"{plural(schedule.updates_per_rollout, 'update')} per rollout batch, staleness {schedule.staleness}"


def same_responses(recipe: Recipe) -> str | None:
    """Return whether overlong filtering and soft overlong punishment act on the same responses."""
    if recipe.length.rule.kind == "none" or recipe.length.truncated == "as_scored":
        return None
    verb = "masks" if recipe.length.truncated == "mask_loss" else "drops"
    return (
        f"`length.truncated: {recipe.length.truncated}` {verb} exactly the responses that `length.rule: soft_overlong` "
        "punishes most, so the punishment hardly acts: let one replace the other"
    )


def ratio_band(recipe: Recipe) -> tuple[float, float] | None:
    """Return how far below and above 1 the clip lets r go; ``None`` under rules without such bounds."""
    low, high = getattr(recipe.clip, "low", None), getattr(recipe.clip, "high", None)
    return None if low is None or high is None or recipe.clip.kind in DIVERGENCES else (low, high)


def never_clips(recipe: Recipe) -> str | None:
    """Return whether a clip is too wide for the ratio of a whole response to leave it in practice."""
    band = ratio_band(recipe)
    if recipe.ratio.kind not in ("seq_geo", "seq_geo_token") or band is None:
        return None
    low, high = band
    if min(band) < RARE_BAND or recipe.loss.kind == "pair_dpo":
        return None
    return (
        f"`ratio: {recipe.ratio.kind}` is a mean over the response and stays within {low} and {high} of 1, with "
        f"{updates_in_words(recipe)}: the clip never acts (GSPO's bounds are 3.0e-4 and 4.0e-4)"
    )


def length_weighted(recipe: Recipe) -> str | None:
    """Return whether a ratio of whole responses is counted once for each of their tokens.

    Each response has one value r_i A_i. ``seq_mean`` counts it once (GSPO, arXiv 2507.18071, Eq. 5), as does
    ``seq_meansum``; the others count it L_i times.
    """
    ratio, aggregation = recipe.ratio.kind, recipe.aggregation.kind
    if recipe.loss.kind == "pair_dpo" or ratio not in _ONE_A_RESPONSE or aggregation in _EVEN:
        return None
    if recipe.clip.kind == "vespo":  # a token has its own gradient, and a sum over them is that of the response
        return None
    return (
        f"`ratio: {ratio}` gives a response one value, and `aggregation: {aggregation}` counts it once for each token, "
        "so that long responses weigh more: use seq_mean"
    )
