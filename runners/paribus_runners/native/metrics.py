"""Canonical metrics of one step, from rollout records and the updates (:mod:`paribus.run_folder.metrics`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import CAPS, weighs_sampler
from paribus.recipe.recipe import Recipe
from paribus.stats.evals import pass_at_k
from paribus_runners.native.batch import in_loss
from paribus_runners.native.experience import Experience
from paribus_runners.native.objective import correction, kl, segment
from paribus_runners.native.objective.advantage import raw_reward, shaped_reward
from paribus_runners.native.objective.filter import present
from paribus_runners.native.objective.history import Visits
from paribus_runners.native.objective.whole_batch import Found
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.update import Part, Updates
from paribus_runners.rewards.pool import FAULTS


@dataclass(frozen=True)
class Spent:
    """Cumulative costs of a run."""

    gen_tokens: int = 0
    trained_tokens: int = 0
    prompts_sampled: int = 0
    optimizer_steps: int = 0

    @property
    def sampling(self) -> tuple[int, int]:
        """What a horizon may count beside steps: generated tokens and sampled prompts."""
        return self.gen_tokens, self.prompts_sampled

    def sampled(self, rollouts: Rollouts) -> Spent:
        """Return the costs after these rollouts, which are not trained on."""
        tokens = int(rollouts.responses.length[rollouts.fresh].sum())
        prompts = int((~rollouts.carried).sum())
        return replace(self, gen_tokens=self.gen_tokens + tokens, prompts_sampled=self.prompts_sampled + prompts)

    def after(self, recipe: Recipe, experience: Experience, updates: Updates) -> Spent:
        """Return the costs after one more step."""
        sampled = self.sampled(experience.rollouts)
        return replace(
            sampled,
            trained_tokens=self.trained_tokens + trained_tokens(recipe, experience),
            optimizer_steps=self.optimizer_steps + len(updates.policy),
        )


def trained_tokens(recipe: Recipe, experience: Experience) -> int:
    """Return the tokens of the responses that enter the loss, each once."""
    return int(experience.rollouts.responses.length[in_loss(recipe, experience)].sum())


def of_experience(
    recipe: Recipe, experience: Experience, visited: Mapping[str, Visits], updates: int
) -> dict[str, float]:
    """Return the metrics of a step before its updates.

    Args:
        recipe: the objective.
        experience: the step.
        visited: statistics of the prompts before it.
        updates: optimizer updates before it.
    """
    rollouts = experience.rollouts
    inside = in_loss(recipe, experience)
    values = _of_rollouts(recipe, rollouts, trained=int(rollouts.responses.length[inside].sum()))
    if experience.entropy is not None:
        fresh = rollouts.responses.places(rollouts.fresh)
        values["policy/entropy"] = float(experience.entropy[fresh].double().mean())
    values |= _of_groups(recipe, rollouts)
    groups = torch.unique(rollouts.scored.group[inside])
    if len(groups):
        age = (updates - rollouts.born[groups]).double()
        values |= {"staleness/steps_mean": float(age.mean()), "staleness/steps_max": float(age.max())}
    if weighs_sampler(recipe) and inside.any():
        values |= _of_correction(recipe, experience, inside)
    if isinstance(recipe.kl, f.KlInAdvantage) and inside.any():
        values |= _of_distillation(recipe.kl, experience, inside)
    if recipe.baseline.kind == "history":
        values["history/revisited_frac"] = sum(p in visited for p in rollouts.problems) / len(rollouts.problems)
    return values


def _of_rollouts(recipe: Recipe, rollouts: Rollouts, trained: int) -> dict[str, float]:
    """Return the metrics of all responses generated for the step, before any filter."""
    fresh, scored = rollouts.fresh, rollouts.scored
    responses = rollouts.responses.select(fresh)
    correct, L = scored.correct[fresh], responses.length.double()
    values = {
        "response/length_mean": float(L.mean()),
        "response/length_p50": float(L.quantile(0.5)),
        "response/length_p95": float(L.quantile(0.95)),
        "response/length_max": float(L.max()),
        "response/truncated_frac": _share(responses.truncated),
        "reward/correct_frac": _share(correct),
        "sampling/generation_batches": float(rollouts.rounds),
        "sampling/waste_frac": 1 - trained / float(L.sum()),
    }
    if responses.support is not None:
        values["sampling/support_mean"] = float(responses.support.size.double().mean())
    values |= _of_rewards(recipe, scored.rewards[fresh], scored.faults[fresh])
    sets = [("correct", correct), ("incorrect", ~correct)]
    if not isinstance(recipe.length.keep, f.KeepAll):
        sets.append(("kept", present(recipe, scored)[fresh]))
    for name, rows in sets:
        if rows.any():
            values[f"response/length_mean_{name}"] = float(L[rows].mean())
    values |= _of_turns(responses)
    if rollouts.reference is not None:
        u = (responses.logp - rollouts.reference[rollouts.responses.places(fresh)]).double()
        values["kl/ref_k3"] = float(kl.estimate("k3", u).mean())
    return values


def _of_turns(responses: Responses) -> dict[str, float]:
    """Return what an environment wrote into responses, which no other metric counts; empty without one."""
    given = responses.given
    if given is None:
        return {}
    return {
        "turns/answers_mean": float(given.answers.double().mean()),
        "turns/given_frac": float(given.size.sum()) / float(responses.read.sum()),
        "turns/failed_frac": _share(given.failed),
    }


def _of_rewards(recipe: Recipe, rewards: Tensor, faults: Tensor) -> dict[str, float]:
    """Return the metrics of what runs in worker processes; empty if nothing does.

    Args:
        recipe: names the functions.
        rewards: [N, F] what they returned.
        faults: [N, 1 + F] how the verifier and they failed.
    """
    functions = list(recipe.reward.functions)
    values = {f"reward/{name}/mean": float(rewards[:, k].mean()) for k, name in enumerate(functions)}
    if functions or getattr(recipe.task, "verifier", "") == "math_verify":
        values["reward/failed_frac"] = _share((faults != 0).any(1))
    for column, name in enumerate(("verifier", *functions)):
        for number, fault in enumerate(FAULTS, 1):
            if (found := faults[:, column] == number).any():
                values[f"reward/{name}/failed_{fault}"] = _share(found)
    return values


def _of_correction(recipe: Recipe, experience: Experience, inside: Tensor) -> dict[str, float]:
    at, responses = experience.rollouts.responses.places(inside), experience.rollouts.responses.select(inside)
    assert experience.correction is not None
    weight, old = experience.correction[at].double(), experience.old[at]
    moved = correction.changed(recipe.correction, old, responses.logp, responses.row, len(responses))
    total = float(weight.sum())
    difference = (old - responses.logp).double()
    ratio = difference.exp()
    return {
        "correction/weight_mean": total / len(weight),
        "correction/effective_frac": total**2 / (len(weight) * float((weight**2).sum())) if total else 0.0,
        "correction/changed_frac": _share(moved),
        "mismatch/logp_abs_diff_mean": float(difference.abs().mean()),
        "mismatch/logp_abs_diff_max": float(difference.abs().max()),
        "mismatch/k3": float((ratio - 1 - difference).mean()),
        "mismatch/effective_frac": float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum())),
    }


def _of_distillation(level: f.KlInAdvantage, experience: Experience, inside: Tensor) -> dict[str, float]:
    """Return how far the policy is from the reference, and how much of its advantages comes from there."""
    rollouts, at = experience.rollouts, experience.rollouts.responses.places(inside)
    assert rollouts.reference is not None
    paid = kl.from_advantage(level, rollouts.responses.logp[at].double(), rollouts.reference[at].double())
    total = float(paid.abs().mean()), float((experience.advantage[at] + paid).abs().mean())
    values = {"kl/ref_k1": float(paid.mean()) / level.beta}
    return values | {"kl/advantage_share": total[0] / sum(total)} if sum(total) else values


def of_critic(recipe: Recipe, experience: Experience, losses: Sequence[float]) -> dict[str, float]:
    """Return the metrics of the critic; empty without one, or if nothing was trained on."""
    inside = in_loss(recipe, experience)
    if experience.value is None or experience.returns is None or not inside.any():
        return {}
    at = experience.rollouts.responses.places(inside)
    value, target = experience.value[at].double(), experience.returns[at].double()
    values = {"critic/value_mean": float(value.mean()), "critic/return_mean": float(target.mean())}
    if losses:
        values["critic/value_loss"] = sum(losses) / len(losses)
    spread = float(target.var(correction=0))
    if spread > 0:
        values["critic/explained_variance"] = 1 - float((target - value).var(correction=0)) / spread
    return values


def _of_groups(recipe: Recipe, rollouts: Rollouts) -> dict[str, float]:
    """Return the metrics of all groups generated for the step."""
    scored, fresh = rollouts.scored, rollouts.fresh
    raw, shaped = raw_reward(recipe, scored)[fresh], shaped_reward(recipe, scored)[fresh]
    _, group = torch.unique(scored.group[fresh], return_inverse=True)
    groups = int((~rollouts.carried).sum())
    right = segment.mean(scored.correct[fresh].double(), group, groups)
    values = {
        "reward/mean": float(raw.mean()),
        "reward/shaped_mean": float(shaped.mean()),
        "reward/std_within_group": float(segment.variance(shaped, group, groups, ddof=1).sqrt().mean()),
        "group/zero_std_frac": _share(segment.spread(raw, group, groups) == 0),
        "group/all_correct_frac": _share(right == 1),
        "group/all_wrong_frac": _share(right == 0),
    }
    if rollouts.steps is not None:
        ends = (~rollouts.steps.isnan()).any(1)[rollouts.responses.places(fresh)]
        values["group/steps_mean"] = float(ends.sum()) / int(fresh.sum())
    if isinstance(recipe.baseline, f.PassAtK):
        counts = segment.total(scored.correct[fresh].long(), group, groups).tolist()
        values["group/pass_at_k"] = pass_at_k(counts, recipe.schedule.group_size, recipe.baseline.k)
    return values


def of_updates(recipe: Recipe, experience: Experience, updates: Updates) -> dict[str, float]:
    """Return the metrics of the updates of a step; empty if there were none."""
    parts = [p for u in updates.policy for p in u.parts if p.tokens]
    if not parts:
        return {}
    tokens = sum(p.tokens for p in parts)
    high = sum(p.high for p in parts)
    done, limit = updates.policy, recipe.optimizer.max_grad_norm or math.inf
    values = {
        "clip/low_frac": sum(p.low for p in parts) / tokens,
        "clip/high_frac": high / tokens,
        "ratio/mean": sum(p.ratio_sum for p in parts) / tokens,
        "ratio/max": _extreme([p.ratio_max for p in parts], max),
        "ratio/min": _extreme([p.ratio_min for p in parts], min),
        "kl/old_k3": sum(p.kl_sum for p in parts) / tokens,
        "optim/grad_norm": sum(u.grad_norm for u in done) / len(done),
        "optim/grad_clip_frac": sum(u.grad_norm > limit for u in done) / len(done),
        "optim/loss": sum(p.loss for u in done for p in u.parts) / len(done),
    }
    if high:
        values["clip/high_prob_mean"] = sum(p.high_prob_sum for p in parts) / high
        values["clip/high_prob_max"] = max(p.high_prob_max for p in parts)
    if recipe.clip.kind in ("ppo_dual", "two_sided"):
        values["clip/dual_frac"] = sum(p.dual for p in parts) / tokens
    if recipe.clip.kind in CAPS:
        values["clip/capped_frac"] = sum(p.capped for p in parts) / tokens
    if recipe.clip.kind == "vespo":
        values["clip/weight_mean"] = sum(p.phi_sum for p in parts) / tokens
    values |= _of_whole_batches(recipe, [u.found for u in done if u.found is not None], tokens)
    if correction.off_policy_mask(recipe.correction) is not None:
        values["correction/off_policy_frac"] = sum(p.masked for p in parts) / tokens
    if not weighs_sampler(recipe):  # otherwise they come from the old log-probabilities
        values |= _of_mismatch([p for p in done[0].parts if p.tokens])
    values |= _of_replay(recipe, parts, [p for p in done[0].parts if p.tokens])
    if experience.entropy is None:
        values["policy/entropy"] = sum(p.entropy_sum for p in done[0].parts) / sum(p.tokens for p in done[0].parts)
    if recipe.token_weight.kind == "router_shift":
        values["router/shift_mean"] = sum(p.shift_sum for p in parts) / tokens
        values["router/shift_min"] = min(p.shift_min for p in parts)
    return values | of_critic(recipe, experience, updates.value_loss)


def _of_whole_batches(recipe: Recipe, found: Sequence[Found], tokens: float) -> dict[str, float]:
    """Return what the clip found out about the batches of a step, with ``tokens`` in all of them together."""
    if not found:
        return {}
    if recipe.clip.kind != "bapo":
        return {"clip/chosen_frac": sum(x.chosen for x in found) / tokens}
    return {
        "clip/bound_low": sum(x.low for x in found) / len(found),
        "clip/bound_high": sum(x.high for x in found) / len(found),
        "clip/positive_share": sum(x.positive for x in found) / len(found),
    }


def _of_mismatch(first: Sequence[Part]) -> dict[str, float]:
    """Return how far the learner is from the sampler in the passes of the first update."""
    count, total = sum(p.tokens for p in first), sum(p.ratio_sum for p in first)
    squares = sum(p.ratio_square_sum for p in first)
    return {
        "mismatch/logp_abs_diff_mean": sum(p.diff_sum for p in first) / count,
        "mismatch/logp_abs_diff_max": _extreme([p.diff_max for p in first], max),
        "mismatch/k3": sum(p.kl_sum for p in first) / count,
        "mismatch/effective_frac": total**2 / (count * squares) if squares else 0.0,
    }


def _of_replay(recipe: Recipe, parts: Sequence[Part], first: Sequence[Part]) -> dict[str, float]:
    """Return how often replayed experts took the place of others, and how far the sampler's routing is from ours."""
    level = recipe.rollout.routing_replay
    if level == "off":
        return {}
    values = {"router/replaced_frac": sum(p.replaced_sum for p in parts) / sum(p.tokens for p in parts)}
    if level == "sampler" and first:
        values["mismatch/routing_frac"] = sum(p.replaced_sum for p in first) / sum(p.tokens for p in first)
    return values


def of_spent(spent: Spent) -> dict[str, float]:
    """Return the cumulative costs."""
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
