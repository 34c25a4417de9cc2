"""Changes of the scale of the loss: those that do nothing else, and those that do it beside what is studied."""

from __future__ import annotations

from collections.abc import Iterator

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import (
    GROUP_BASELINES,
    SMALL_EPS,
    changed_factors,
    no_auxiliary,
    nothing_without_spread,
    policy_loss_alone,
    rewards_correctness_alone,
)
from paribus.recipe.recipe import Recipe

_SCALED_BY_REWARDS = frozenset({"none", "group_std", "batch_std_raw", "batch_std_centred"})
_WEIGHTS_OF_ONE = frozenset({"seq_mean", "token_group", "token_batch", "token_micro"})


def rescaled(before: Recipe, after: Recipe) -> str | None:
    """Return whether a change only multiplies the policy loss by a number, or not even that."""
    if after.loss.kind == "pair_dpo":
        return None
    match sorted(changed_factors(before, after)):
        case ["aggregation"]:
            return _of_aggregation(before, after)
        case ["baseline"]:
            return _of_baseline(before, after)
        case ["reward"]:
            return _of_reward(before, after)
        case ["scale"]:
            return _of_scale(before, after)
        case ["filter"]:
            return _of_filter(before, after)
    return None


def confounded(before: Recipe, after: Recipe) -> Iterator[str]:
    """Yield why a change moves the norm of the gradient by the way, where that norm is clipped.

    The sum of the weights of all tokens is 1 under seq_mean and the token means, mean(L)/C under const, mean(L) under
    seq_sum and N under seq_meansum; advantages have standard deviation 1 with a scale, and that of the rewards without.
    """
    if None in (before.optimizer.max_grad_norm, after.optimizer.max_grad_norm) or after.loss.kind == "pair_dpo":
        return
    pair = sorted((before, after), key=lambda r: r.aggregation.kind)
    kinds = [r.aggregation.kind for r in pair]
    if kinds[0] != kinds[1] and _WEIGHTS_OF_ONE.issuperset(kinds):
        yield f"`{kinds[0]}` and `{kinds[1]}` weigh long responses differently"
    elif kinds[0] != kinds[1]:
        sums = [f"to {_sum_of_weights(r)} under `{r.aggregation.kind}`" for r in pair]
        yield f"the weights of the tokens add up {sums[0]} and {sums[1]}"
    scales = {before.scale.kind, after.scale.kind}
    if "none" in scales and (divided := "".join(scales - {"none", "history_smooth"})):
        yield f"advantages have standard deviation 1 under `scale: {divided}` and that of the rewards under `none`"
    ks = [_unscaled_k(before), _unscaled_k(after)]
    if ks[0] != ks[1]:
        yield (
            "the gradient of pass@k is k (1 − p)^(k − 1) times that of pass@1, p the success probability of a prompt: "
            f"up to {max(ks)} times on prompts that are never solved, and 0 times on those that always are"
        )


def _unscaled_k(recipe: Recipe) -> int:
    """Return k of pass@k; 1 without it, or where the advantages of a group are divided by their scale."""
    level = recipe.baseline
    plain = recipe.scale.kind in ("none", "batch_std_raw")
    return level.k if isinstance(level, f.PassAtK) and level.control != "mean" and plain else 1


def _sum_of_weights(recipe: Recipe) -> str:
    level = recipe.aggregation
    if isinstance(level, f.ConstantLength):
        return f"mean(L) / {level.length or recipe.schedule.max_new_tokens}"
    return {"seq_sum": "mean(L)", "seq_meansum": "the number of responses"}.get(level.kind, "1")


def _of_aggregation(before: Recipe, after: Recipe) -> str | None:
    kinds = {before.aggregation.kind, after.aggregation.kind}
    if not no_auxiliary(after):
        return None
    if kinds <= {"const", "seq_sum"}:
        return _absorbed("both divide the summed loss by a constant", after)
    if kinds == {"seq_mean", "seq_meansum"} and (rows := _responses_of_each_update(after)):
        return _absorbed(f"`seq_meansum` is {rows} times `seq_mean`, the number of responses in each update", after)
    return None


def _of_baseline(before: Recipe, after: Recipe) -> str | None:
    """R - loo = G/(G-1) (R - mean), for all groups alike if none of their responses is dropped (arXiv 2402.14740)."""
    if {before.baseline.kind, after.baseline.kind} != GROUP_BASELINES or after.length.truncated == "drop":
        return None
    if after.scale.kind == "batch_whiten" and after.scale.eps <= SMALL_EPS:
        return "the leave-one-out baseline is the group's mean times G/(G-1), which whitening takes out"
    if after.scale.kind in _SCALED_BY_REWARDS and policy_loss_alone(after):
        return _absorbed("the leave-one-out baseline is the group's mean times G/(G-1)", after)
    return None


def _of_reward(before: Recipe, after: Recipe) -> str | None:
    """Rewards that differ by scale and offset alone, and a baseline or a whitening that takes the offset out."""
    if before.reward.counts != after.reward.counts or before.reward.combine != after.reward.combine:
        return None
    if not rewards_correctness_alone(after) or after.length.keep.kind == "efficient":  # which the sign of R matters to
        return None
    scale, baseline = after.scale, after.baseline.kind
    centred = nothing_without_spread(after) or baseline == "batch_mean"
    if not centred and not (baseline == "none" and scale.kind == "batch_whiten"):
        return None
    if isinstance(scale, f.NoScale):
        return _absorbed("only the scale of the advantages changes", after) if policy_loss_alone(after) else None
    if scale.kind == "history_smooth" or scale.eps > SMALL_EPS:
        return None
    group = "the group's" if scale.kind in ("group_std", "pass_at_k_std") else "the batch's"
    return f"dividing by {group} standard deviation takes the scale of the reward out"


def _of_scale(before: Recipe, after: Recipe) -> str | None:
    one, other = before.scale, after.scale
    if not (isinstance(one, f.GroupStd) and isinstance(other, f.GroupStd) and one.eps == other.eps <= SMALL_EPS):
        return None
    if after.length.truncated == "drop" or not policy_loss_alone(after):
        return None
    std, advantages = ("multiplies", "divides") if other.ddof > one.ddof else ("divides", "multiplies")
    what = (
        f"`scale.ddof: {other.ddof}` {std} the standard deviation of every group by sqrt(G/(G-1)), and so {advantages}"
    )
    return _absorbed(f"{what} the advantages by it", after)


def _of_filter(before: Recipe, after: Recipe) -> str | None:
    """Groups without spread have advantage 0 under a group baseline: dropping them leaves the sum of gradients."""
    drop = {before.filter.kind: before, after.filter.kind: after}.get("drop")
    if drop is None or "none" not in (before.filter.kind, after.filter.kind) or not policy_loss_alone(after):
        return None
    if not isinstance(drop.filter, f.Drop) or not nothing_without_spread(drop):
        return None
    if drop.scale.kind not in ("none", "group_std", "pass_at_k_std") or drop.token_weight.kind == "top_entropy":
        return None
    if drop.filter.metric == "correct" and not rewards_correctness_alone(drop):
        return None
    start = f"the groups that `filter: drop` removes have advantage 0 under `baseline: {drop.baseline.kind}`"
    several = drop.schedule.minibatches > 1
    if drop.aggregation.kind == "seq_meansum":
        same = "only the cut of the minibatches changes" if several else "the gradient stays the same"
        return f"{start}, and `aggregation: seq_meansum` has no denominator: {same}"
    limit = drop.optimizer.max_grad_norm
    but = f", but for gradients above optimizer.max_grad_norm ({limit})" if limit else ""
    what = "and the cut of the minibatches change" if several else "changes"
    return (
        f"{start}, so only the denominator of `aggregation: {drop.aggregation.kind}` {what}: gradients are "
        f"multiplied by sampled / kept, of which AdamW takes the constant part out{but}"
    )


def _responses_of_each_update(recipe: Recipe) -> int | None:
    """Return N if every update has as many responses."""
    schedule = recipe.schedule
    fixed = recipe.filter.kind == "none" and recipe.length.truncated == "as_scored"
    if not fixed or schedule.prompts_per_step % schedule.minibatches:
        return None
    return schedule.prompts_per_step // schedule.minibatches * recipe.length.kept(schedule.group_size)


def _absorbed(reason: str, recipe: Recipe) -> str:
    limit = recipe.optimizer.max_grad_norm
    but = f"but for gradients above optimizer.max_grad_norm ({limit})" if limit else "but for its eps"
    return f"{reason}: AdamW takes a constant scale out, {but}"
