"""Canonical metrics of one step, from rollout records and what the updates showed (:mod:`paribus.track.metrics`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import kl, length, segment
from paribus_runners.native.objective.advantage import raw_reward, shaped_reward
from paribus_runners.native.rollout.collect import Rollouts
from paribus_runners.native.update import Update


@dataclass(frozen=True)
class Spent:
    """What a run has cost since its start."""

    gen_tokens: int = 0
    trained_tokens: int = 0
    prompts_sampled: int = 0
    optimizer_steps: int = 0

    def after(self, recipe: Recipe, rollouts: Rollouts, updates: Sequence[Update]) -> Spent:
        """Return the sum with one step more."""
        return Spent(
            self.gen_tokens + int(rollouts.responses.length.sum()),
            self.trained_tokens + trained_tokens(recipe, rollouts),
            self.prompts_sampled + rollouts.scored.groups,
            self.optimizer_steps + len(updates),
        )


def trained_tokens(recipe: Recipe, rollouts: Rollouts) -> int:
    """Return the tokens of the responses that enter the loss, each once."""
    inside = rollouts.kept & length.in_loss(recipe.length, rollouts.scored.truncated)
    return int(rollouts.responses.length[inside].sum())


def of_rollouts(recipe: Recipe, rollouts: Rollouts) -> dict[str, float]:
    """Return the metrics of all generated responses, before any filter."""
    responses, scored = rollouts.responses, rollouts.scored
    mask, L = responses.mask, responses.length.double()
    values = {
        "policy/entropy": float(responses.entropy[mask].double().mean()),
        "response/length_mean": float(L.mean()),
        "response/length_p50": float(L.quantile(0.5)),
        "response/length_p95": float(L.quantile(0.95)),
        "response/length_max": float(L.max()),
        "response/truncated_frac": _share(responses.truncated),
        "reward/correct_frac": _share(scored.correct),
        "sampling/generation_batches": float(rollouts.rounds),
        "sampling/waste_frac": 1 - trained_tokens(recipe, rollouts) / float(L.sum()),
    }
    for name, rows in (("correct", scored.correct), ("incorrect", ~scored.correct)):
        if rows.any():
            values[f"response/length_mean_{name}"] = float(L[rows].mean())
    if rollouts.reference is not None:
        u = (responses.logp - rollouts.reference)[mask].double()
        values["kl/ref_k3"] = float(kl.estimate("k3", u).mean())
    return values | _of_groups(recipe, rollouts)


def _of_groups(recipe: Recipe, rollouts: Rollouts) -> dict[str, float]:
    scored = rollouts.scored
    raw, shaped = raw_reward(recipe, scored), shaped_reward(recipe, scored)
    group, groups = scored.group, scored.groups
    deviation = shaped - segment.mean(shaped, group, groups)[group]
    freedom = (segment.size(group, groups) - 1).clamp_min(1)
    right = segment.mean(scored.correct.double(), group, groups)
    return {
        "reward/mean": float(raw.mean()),
        "reward/shaped_mean": float(shaped.mean()),
        "reward/std_within_group": float((segment.total(deviation**2, group, groups) / freedom).sqrt().mean()),
        "group/zero_std_frac": _share(segment.spread(raw, group, groups) == 0),
        "group/all_correct_frac": _share(right == 1),
        "group/all_wrong_frac": _share(right == 0),
    }


def of_updates(recipe: Recipe, updates: Sequence[Update]) -> dict[str, float]:
    """Return the metrics of the updates of a step; empty if there was none."""
    parts = [p for u in updates for p in u.parts]
    if not parts:
        return {}
    tokens = sum(p.tokens for p in parts)
    high = sum(p.high for p in parts)
    first, limit = updates[0].parts, recipe.optimizer.max_grad_norm or math.inf
    values = {
        "clip/low_frac": sum(p.low for p in parts) / tokens,
        "clip/high_frac": high / tokens,
        "ratio/mean": sum(p.ratio_sum for p in parts) / tokens,
        "ratio/max": _extreme([p.ratio_max for p in parts], max),
        "ratio/min": _extreme([p.ratio_min for p in parts], min),
        "kl/old_k3": sum(p.kl_sum for p in parts) / tokens,
        "optim/grad_norm": sum(u.grad_norm for u in updates) / len(updates),
        "optim/grad_clip_frac": sum(u.grad_norm > limit for u in updates) / len(updates),
        "optim/loss": sum(p.loss for p in parts) / len(updates),
        "mismatch/logp_abs_diff_mean": sum(p.diff_sum for p in first) / sum(p.tokens for p in first),
        "mismatch/logp_abs_diff_max": _extreme([p.diff_max for p in first], max),
    }
    if high:
        values["clip/high_prob_mean"] = sum(p.high_prob_sum for p in parts) / high
        values["clip/high_prob_max"] = max(p.high_prob_max for p in parts)
    return values


def of_spent(spent: Spent) -> dict[str, float]:
    """Return the cumulated costs."""
    return {
        "budget/gen_tokens": float(spent.gen_tokens),
        "budget/trained_tokens": float(spent.trained_tokens),
        "budget/prompts_sampled": float(spent.prompts_sampled),
        "budget/optimizer_steps": float(spent.optimizer_steps),
    }


def _share(x: Tensor) -> float:
    return float(x.double().mean())


def _extreme(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> float:
    """Return the largest or smallest value, or nan if one is nan."""
    return math.nan if any(map(math.isnan, values)) else of(values)
