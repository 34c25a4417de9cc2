"""What can be said of recipes before a run: changes that cannot act, or only rescale. Only what is certain.

Each function is pure and returns a sentence for people, or ``None`` where nothing is certain.
"""

from __future__ import annotations

from paribus.recipe.recipe import Recipe, difference

RARE_BAND = 0.1
"""Width of the band of a sequence's mean ratio that is not left in practice: GSPO's own is 4e-4 (arXiv 2507.18071)."""

_POINTWISE_RATIOS = frozenset({"none", "token", "seq_geo", "seq_geo_token"})
_GROUP_BASELINES = frozenset({"group_mean", "group_loo"})


def inert(before: Recipe, after: Recipe) -> str | None:
    """Tell whether a change of ratio and clip cannot act, because old and new policy are the same.

    With one update on each rollout batch and no staleness the ratio is 1, and every clip rule whose band holds 1 gives
    the plain policy gradient (arXiv 1707.06347, Eq. 7 at r = 1).
    """
    changed = _changed_factors(before, after)
    if not changed or not changed <= {"ratio", "clip"} or not (_on_policy(before) and _on_policy(after)):
        return None
    if "ratio" in changed and not {before.ratio.kind, after.ratio.kind} <= _POINTWISE_RATIOS:
        return None
    if not (_neutral_at_one(before) and _neutral_at_one(after)):
        return None
    return (
        "there is one update per rollout batch (schedule.minibatches x schedule.epochs = 1), so the ratio is 1 and "
        f"{' and '.join(sorted(changed))} cannot act"
    )


def same_responses(recipe: Recipe) -> str | None:
    """Tell whether overlong filtering and soft overlong punishment act on the same responses."""
    if recipe.length.rule.kind == "none" or recipe.length.truncated == "as_scored":
        return None
    verb = "masks" if recipe.length.truncated == "mask_loss" else "drops"
    return (
        f"`length.truncated: {recipe.length.truncated}` {verb} exactly the responses that `length.rule: soft_overlong` "
        "punishes most, so the punishment hardly acts: let one replace the other"
    )


def rescaled(before: Recipe, after: Recipe) -> str | None:
    """Tell whether a change only multiplies the policy loss by a constant, or not even that."""
    changed = _changed_factors(before, after)
    if changed == {"aggregation"} and _no_auxiliary(after):
        if {before.aggregation.kind, after.aggregation.kind} <= {"const", "seq_sum"}:
            return _absorbed("both divide the summed loss by a constant", after)
    elif changed == {"baseline"} and {before.baseline.kind, after.baseline.kind} == _GROUP_BASELINES:
        if after.scale.kind == "none" and _no_auxiliary(after) and _policy_loss_alone(after):
            return _absorbed("the leave-one-out baseline is the group's mean times G/(G-1)", after)
    elif changed == {"reward"} and _affine_reward(before, after):
        if after.scale.kind == "group_std":
            return "dividing by the group's standard deviation takes the scale of the reward out"
        if after.scale.kind == "none" and _no_auxiliary(after) and _policy_loss_alone(after):
            return _absorbed("only the scale of the advantages changes", after)
    return None


def never_clips(recipe: Recipe) -> str | None:
    """Tell whether a clip is too wide for the ratio of a whole response to leave it in practice."""
    low, high = getattr(recipe.clip, "low", None), getattr(recipe.clip, "high", None)
    if recipe.ratio.kind not in ("seq_geo", "seq_geo_token") or low is None or high is None:
        return None
    if min(low, high) < RARE_BAND:
        return None
    return (
        f"`ratio: {recipe.ratio.kind}` is a mean over the response and stays within {low} and {high} of 1: the clip "
        "never acts (GSPO's bounds are 3.0e-4 and 4.0e-4)"
    )


def _changed_factors(before: Recipe, after: Recipe) -> set[str]:
    return {path.split(".")[0] for path in difference(before, after)}


def _on_policy(recipe: Recipe) -> bool:
    schedule = recipe.schedule
    return schedule.updates_per_rollout == 1 and schedule.staleness == 0 and schedule.update.kind == "joint"


def _neutral_at_one(recipe: Recipe) -> bool:
    clip = recipe.clip
    if clip.kind == "is_cap_sg":
        return clip.floor <= 1 <= clip.cap
    if clip.kind == "none" or clip.kind == "soft_gate" or clip.kind == "log_clip":
        return True
    return clip.low > 0 and clip.high > 0


def _no_auxiliary(recipe: Recipe) -> bool:
    auxiliary = recipe.auxiliary
    return auxiliary.entropy == 0 and auxiliary.positive_nll == 0 and auxiliary.value is None


def _policy_loss_alone(recipe: Recipe) -> bool:
    return recipe.kl.kind in ("off", "reward")


def _affine_reward(before: Recipe, after: Recipe) -> bool:
    """Tell whether two rewards differ by scale and offset alone; all tasks score right +1 and wrong -1."""
    return (
        before.reward.combine == after.reward.combine == "sum_then_norm"
        and before.reward.weights == after.reward.weights
        and after.baseline.kind in _GROUP_BASELINES
        and after.length.rule.kind == "none"
        and after.kl.kind != "reward"
    )


def _absorbed(reason: str, recipe: Recipe) -> str:
    limit = recipe.optimizer.max_grad_norm
    but = f"but for gradients above optimizer.max_grad_norm ({limit})" if limit else "but for its eps"
    return f"{reason}: AdamW takes a constant scale out, {but}"
