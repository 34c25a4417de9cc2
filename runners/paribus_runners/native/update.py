"""The updates on the experience of one step: optimizer batches, split for memory, one denominator each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random

import torch
from torch import Tensor

from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import WHOLE_BATCH
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import Batch, in_loss, minibatches, part, passes, tokens_of
from paribus_runners.native.experience import Experience, corrected
from paribus_runners.native.experts import Experts
from paribus_runners.native.learner import Learner
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.objective import clip, correction, router
from paribus_runners.native.objective import value as value_loss
from paribus_runners.native.objective.loss import Tokens, left_out, loss
from paribus_runners.native.objective.whole_batch import Found, Prepared, prepared
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.world import World


@dataclass(frozen=True)
class Part:
    """Statistics of one forward pass of an update; sums are over its tokens.

    Attributes:
        tokens: tokens in the loss.
        low: tokens with A < 0 and r below the lower bound.
        high: tokens with A > 0 and r above the upper bound.
        dual: tokens with A < 0 and r above the bound of a dual or two-sided clip.
        capped: tokens whose weight is capped in place of clipped.
        phi_sum: sum of the weights of VESPO; 0 without it.
        masked: tokens that a mask by the sign of the advantage takes out.
        high_prob_sum: sum of the old probabilities of the latter.
        high_prob_max: the largest of them; 0 without such tokens.
        ratio_sum: sum of new over old token probability.
        ratio_square_sum: sum of its square.
        ratio_min: smallest.
        ratio_max: largest.
        kl_sum: sum of r - 1 - log r of the token ratio.
        diff_sum: sum of |new - old| log-probability, nats.
        diff_max: largest.
        replaced_sum: sum of the share of layers in which replayed experts took the place of others; 0 without replay.
        shift_sum: sum of the weights of router shift; meaningless without it.
        shift_min: smallest.
        entropy_sum: sum of the entropy, nats; 0 where it was not asked for.
        loss: share in the loss of the update.
        old: [T] log-probability of its tokens before the update; ``None`` where it was known before.
    """

    tokens: float
    low: float
    high: float
    dual: float
    capped: float
    phi_sum: float
    masked: float
    high_prob_sum: float
    high_prob_max: float
    ratio_sum: float
    ratio_square_sum: float
    ratio_min: float
    ratio_max: float
    kl_sum: float
    diff_sum: float
    diff_max: float
    replaced_sum: float
    shift_sum: float
    shift_min: float
    entropy_sum: float
    loss: float
    old: Tensor | None = None


@dataclass(frozen=True)
class Update:
    """One optimizer update: its forward passes, the gradient norm before clipping, what a clip found in the batch."""

    parts: tuple[Part, ...]
    grad_norm: float
    found: Found | None = None


@dataclass(frozen=True)
class Updates:
    """All updates of a step.

    Attributes:
        policy: those of the policy.
        value_loss: loss of each update of the critic.
        experience: the experience, with what only they have found out.
    """

    policy: tuple[Update, ...]
    value_loss: tuple[float, ...]
    experience: Experience


def updates(recipe: Recipe, learner: Learner, experience: Experience, seed: int, step: int) -> Updates:
    """Update policy and critic on the experience of one step; return the statistics of each update."""
    with learner.sharded():
        done, losses = _all_updates(recipe, learner, experience, seed, step)
    every = _of_all(learner, done)
    old = [x.old for update in every for x in update.parts if x.old is not None]
    if old:
        experience = corrected(recipe, experience, in_loss(recipe, experience), torch.cat(old))
    return Updates(every, tuple(losses), experience)


def _all_updates(
    recipe: Recipe, learner: Learner, experience: Experience, seed: int, step: int
) -> tuple[list[Update], list[float]]:
    """Make all updates of a step; return what this process has seen of each, and the losses of the critic."""
    done: list[Update] = []
    losses: list[float] = []
    measure = experience.entropy is None
    for epoch in range(recipe.schedule.epochs):
        for batch in minibatches(recipe, experience, Random(f"update/{seed}/{step}/{epoch}")):
            for tokens in passes(recipe, tokens_of(recipe, experience, batch)):
                random = Random(f"clip/{seed}/{step}/{len(done)}")
                here = ready(recipe, learner, experience.rollouts, batch, tokens, random)
                learner.optimizer.zero()
                parts = tuple(backward(here.recipe, learner, experience.rollouts, batch, here.tokens, measure))
                measure = False
                norm = learner.optimizer.step(recipe.optimizer.max_grad_norm)
                done.append(Update(parts, norm, here.found))
            if learner.critic is not None:
                losses.append(update_critic(recipe, learner, experience, batch))
    learner.optimizer.zero()  # their memory is for the next rollouts
    if learner.critic_optimizer is not None:
        learner.critic_optimizer.zero()
    return done, losses


def ready(
    recipe: Recipe, learner: Learner, rollouts: Rollouts, batch: Batch, tokens: Tokens, random: Random
) -> Prepared:
    """Return an update as it can be split; a clip that looks at the whole batch costs a forward pass over it."""
    if recipe.clip.kind not in WHOLE_BATCH or recipe.loss.kind != "policy_gradient":
        return Prepared(recipe, tokens, None)
    return prepared(recipe, tokens, _ahead(recipe, learner, rollouts, batch, tokens), random)


@torch.no_grad()
def _ahead(recipe: Recipe, learner: Learner, rollouts: Rollouts, batch: Batch, tokens: Tokens) -> Tensor:
    """Return [T] the log-probability of all tokens of a batch under the policy as it is, nats; in all processes."""
    policy, mine = learner.policy, list[Tensor]()
    for first, end, prompts, texts in _forward_passes(
        recipe, learner.world, rollouts, batch, policy.at_once.tokens_a_pass
    ):
        support = part(tokens, first, end, policy.device).support
        experts = _experts(rollouts, batch, first, end)
        mine.append(
            score(policy, prompts, texts, recipe.schedule.temperature, support=support, experts=experts).logp.cpu()
        )
    for _ in range(_missing(recipe, learner, rollouts, batch)):
        without_tokens(policy)
    every = learner.world.gather(torch.cat(mine) if mine else None)
    return torch.cat([logp for logp in every if logp is not None])


def _of_all(learner: Learner, done: list[Update]) -> tuple[Update, ...]:
    """Return the updates with the forward passes of all processes.

    Raises:
        RunnerError: the processes do not hold the same weights any more.
    """
    if learner.world.size == 1:
        return tuple(done)
    norms = torch.stack([_norm(p.detach()) for p in learner.policy.model.parameters()])
    every = learner.world.gather((done, float(norms.norm()).hex()))  # as text nan equals nan
    if len({norm for _, norm in every}) > 1:
        found = ", ".join(str(float.fromhex(norm)) for _, norm in every)
        raise RunnerError(f"the processes of this run have drifted apart: norms of their weights are {found}")
    return tuple(
        replace(same[0], parts=tuple(x for update in same for x in update.parts))
        for same in zip(*(updates for updates, _ in every), strict=True)
    )


def _norm(weight: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
    return norm


def backward(
    recipe: Recipe, learner: Learner, rollouts: Rollouts, batch: Batch, tokens: Tokens, measure: bool = False
) -> Iterator[Part]:
    """Add the gradient of one update of the policy, one forward pass after the other; ``measure`` the entropy."""
    policy, shift = learner.policy, recipe.token_weight if recipe.token_weight.kind == "router_shift" else None
    for first, end, prompts, texts in _forward_passes(
        recipe, learner.world, rollouts, batch, policy.at_once.tokens_a_pass
    ):
        mine = part(tokens, first, end, policy.device)
        now = score(
            policy,
            prompts,
            texts,
            recipe.schedule.temperature,
            with_entropy=measure or recipe.auxiliary.entropy != 0,
            with_router=shift is not None,
            support=mine.support,
            experts=_experts(rollouts, batch, first, end),
            accumulate=True,
        )
        old = now.logp.detach() if mine.correction is None else None
        if old is not None:
            weight = correction.weight(recipe.correction, old, mine.old, mine.row, mine.rows)
            mine = replace(mine, old=old, correction=weight.float())
        gamma = None
        if shift is not None:
            assert mine.routing is not None
            assert now.router is not None
            gamma = router.shift(shift, mine.routing, now.router)
        found = loss(recipe, now.logp, mine, now.entropy, gamma)
        found.value.backward()  # type: ignore[no-untyped-call]
        entropy = now.entropy.detach() if measure and now.entropy is not None else None
        seen = observe(recipe, now.logp.detach(), mine, found.ratio, gamma, found.value.detach(), entropy, now.replaced)
        yield seen if old is None else replace(seen, old=old.cpu())
    for _ in range(_missing(recipe, learner, rollouts, batch)):
        without_tokens(policy).backward()  # type: ignore[no-untyped-call]


def update_critic(recipe: Recipe, learner: Learner, experience: Experience, batch: Batch) -> float:
    """Update the critic once on an optimizer batch; return its loss, the mean over tokens."""
    critic, optimizer, level = learner.critic, learner.critic_optimizer, recipe.auxiliary.value
    assert critic is not None
    assert optimizer is not None
    assert level is not None
    assert experience.value is not None
    assert experience.returns is not None
    rollouts, rows = experience.rollouts, batch.rows
    at, length = rollouts.responses.places(rows), rollouts.responses.length[rows]
    row = torch.arange(len(rows)).repeat_interleave(length)
    old, returns = experience.value[at], experience.returns[at]
    count = len(at)
    optimizer.zero()
    total = 0.0
    for first, end, prompts, texts in _forward_passes(recipe, learner.world, rollouts, batch, critic.most):
        here = (row >= first) & (row < end)
        targets = [x[here].float().to(critic.device) for x in (old, returns)]
        share = value_loss.loss(level, critic.values(prompts, texts), *targets).sum() / count
        share.backward()  # type: ignore[no-untyped-call]
        total += float(share.detach())
    optimizer.step(recipe.optimizer.max_grad_norm)
    return sum(learner.world.gather(total))


def _forward_passes(
    recipe: Recipe, world: World, rollouts: Rollouts, batch: Batch, most: int
) -> Iterator[tuple[int, int, list[list[int]], list[list[list[int]]]]]:
    """Yield parts of this process's share of a batch, each of up to ``most`` tokens.

    Each is first and end response, prompts, responses by prompt.
    """
    responses, groups = rollouts.responses.select(batch.rows), rollouts.scored.group[batch.rows].tolist()
    ids, unit = responses.tokens(), together(recipe)
    mine = world.share(_costs(recipe, rollouts, batch))
    for units in _cut(recipe, rollouts, batch, mine, most):
        first, end = units[0] * unit, (units[-1] + 1) * unit
        yield first, end, *_by_group(range(first, end), ids, groups, rollouts.prompts)


def _cut(recipe: Recipe, rollouts: Rollouts, batch: Batch, mine: range, most: int) -> list[list[int]]:
    """Return which of a process's units each pass has, up to ``most`` tokens.

    A prompt counts once in a pass. A unit above the limit has a pass of its own.
    """
    lengths, groups = rollouts.responses.read[batch.rows].tolist(), rollouts.scored.group[batch.rows].tolist()
    size, parts, spent, last = together(recipe), list[list[int]](), 0, None
    for unit in mine:
        group, own = groups[unit * size], sum(lengths[unit * size : (unit + 1) * size]) - size
        whole = own + len(rollouts.prompts[group])
        spent += own if group == last else whole
        if not parts or spent > most:
            parts.append([])
            spent = whole
        parts[-1].append(unit)
        last = group
    return parts


def together(recipe: Recipe) -> int:
    """Return how many responses stay together."""
    return 2 if recipe.loss.kind == "pair_dpo" else 1


def _costs(recipe: Recipe, rollouts: Rollouts, batch: Batch) -> list[int]:
    """Return the tokens of each unit of a batch, with its part of its prompt."""
    lengths, groups = rollouts.responses.read[batch.rows].tolist(), rollouts.scored.group[batch.rows].tolist()
    prompts, size, unit = rollouts.prompts, recipe.schedule.group_size, together(recipe)
    costs = [n - 1 + len(prompts[g]) // size for n, g in zip(lengths, groups, strict=True)]
    return [sum(costs[i : i + unit]) for i in range(0, len(costs), unit)]


def _missing(recipe: Recipe, learner: Learner, rollouts: Rollouts, batch: Batch) -> int:
    """Return how many passes this process must make without tokens: with sharded weights all make as many."""
    if learner.policy.shared is None:
        return 0
    most, world = learner.policy.at_once.tokens_a_pass, learner.world
    shares = world.shares(_costs(recipe, rollouts, batch))
    counts = [len(_cut(recipe, rollouts, batch, share, most)) for share in shares]
    return max(counts) - counts[world.rank]


def without_tokens(policy: Policy) -> Tensor:
    """Make a pass that changes nothing; return 0, of which all gradients are 0."""
    return score(policy, [[0]], [[[0]]], 1.0).logp.sum() * 0


def _experts(rollouts: Rollouts, batch: Batch, first: int, end: int) -> Experts | None:
    """Return which experts the tokens of the responses ``first`` to ``end`` of a batch go to."""
    experts = rollouts.responses.experts
    return None if experts is None else experts.select(batch.rows[first:end])


def _by_group(
    rows: Sequence[int], ids: Sequence[list[int]], groups: Sequence[int], prompts: Sequence[list[int]]
) -> tuple[list[list[int]], list[list[list[int]]]]:
    runs = [(g, [ids[i] for i in members]) for g, members in groupby(rows, key=lambda i: groups[i])]
    return [prompts[g] for g, _ in runs], [texts for _, texts in runs]


def observe(
    recipe: Recipe,
    new: Tensor,
    tokens: Tokens,
    r: Tensor,
    shift: Tensor | None,
    share: Tensor,
    entropy: Tensor | None = None,
    replaced: Tensor | None = None,
) -> Part:
    """Return the statistics of the tokens that have a weight in a pass."""
    old, A, out = tokens.old, tokens.advantage, left_out(recipe, new, tokens)
    out = torch.zeros_like(A, dtype=torch.bool) if out is None else out
    if recipe.schedule.update.kind == "lopti":
        there = tokens.weight > 0
        old, A, r, new, out = old[there], A[there], r[there], new[there], out[there]
        shift, replaced = (None if x is None else x[there] for x in (shift, replaced))
        if not len(old):
            return Part(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, math.inf, 0, 0, 0, 0, 0, 0, math.inf, 0, float(share))
    cut = clip.cut(recipe.clip if recipe.loss.kind == "policy_gradient" else f.NoClip(), r, A, new, old)
    high_prob = old.exp() * cut.high
    difference = new - old
    ratio, distance = difference.exp(), difference.abs()
    gamma = old.new_ones(1) if shift is None else shift
    phi = clip.gamma(recipe.clip, r, A) if isinstance(recipe.clip, f.GammaWeight) else old.new_zeros(1)
    values = (
        cut.low.sum(),
        cut.high.sum(),
        cut.dual.sum(),
        cut.capped.sum(),
        phi.sum(),
        out.sum(),
        high_prob.sum(),
        high_prob.max(),
        ratio.sum(),
        ratio.double().square().sum(),
        ratio.min(),
        ratio.max(),
        (ratio - 1 - difference).sum(),
        distance.sum(),
        distance.max(),
        new.new_zeros(()) if replaced is None else replaced.double().sum(),
        gamma.sum(),
        gamma.min(),
        new.new_zeros(()) if entropy is None else entropy.double().sum(),
        share,
    )
    return Part(len(new), *torch.stack([v.double() for v in values]).tolist())
