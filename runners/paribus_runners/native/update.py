"""The updates on the rollouts of one step: minibatches of whole groups, split for memory, one denominator each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random

import torch
from torch import Tensor

from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import aggregation, clip, length, token_weight
from paribus_runners.native.objective.advantage import advantages
from paribus_runners.native.objective.loss import Tokens, loss
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Rollouts
from paribus_runners.native.score import BUDGET, score, split


@dataclass(frozen=True)
class Part:
    """What one forward pass of an update showed; sums are over its tokens.

    Attributes:
        tokens: tokens in the loss.
        low: tokens with A < 0 and r below the lower bound.
        high: tokens with A > 0 and r above the upper bound.
        high_prob_sum: sum of the old probabilities of the latter.
        high_prob_max: largest of them; 0 if there are none.
        ratio_sum: sum of new over old token probability.
        ratio_min: smallest.
        ratio_max: largest.
        kl_sum: sum of r - 1 - log r of the token ratio.
        diff_sum: sum of |new - old| log-probability, nats.
        diff_max: largest.
        loss: share in the loss of the update.
    """

    tokens: float
    low: float
    high: float
    high_prob_sum: float
    high_prob_max: float
    ratio_sum: float
    ratio_min: float
    ratio_max: float
    kl_sum: float
    diff_sum: float
    diff_max: float
    loss: float


@dataclass(frozen=True)
class Update:
    """One optimizer update: its forward passes, and the gradient norm before clipping."""

    parts: tuple[Part, ...]
    grad_norm: float


@dataclass(frozen=True)
class Batch:
    """The responses of one optimizer batch.

    Attributes:
        rows: places of the responses in the rollouts, groups together.
        counted: responses that the denominator of the aggregation counts.
    """

    rows: Tensor
    counted: int


def updates(
    recipe: Recipe, policy: Policy, optimizer: torch.optim.Optimizer, rollouts: Rollouts, seed: int, step: int
) -> tuple[Update, ...]:
    """Update the policy on the rollouts of one step; returns what each update showed.

    The log-probabilities from sampling are the old ones: sampler and learner share weights, temperature and code.
    """
    A = advantages(recipe, rollouts.scored, rollouts.kept)
    parameters = list(policy.model.parameters())
    done = []
    for epoch in range(recipe.schedule.epochs):
        for batch in minibatches(recipe, rollouts, Random(f"update/{seed}/{step}/{epoch}")):
            optimizer.zero_grad(set_to_none=True)
            parts = tuple(_backward(recipe, policy, rollouts, A, batch))
            norm = clip_gradients(parameters, recipe.optimizer.max_grad_norm)
            optimizer.step()
            done.append(Update(parts, norm))
    return tuple(done)


def minibatches(recipe: Recipe, rollouts: Rollouts, random: Random) -> Iterator[Batch]:
    """Yield the optimizer batches of one epoch: whole groups, shuffled, in ``minibatches`` parts of nearly equal size.

    If fewer groups were kept than there are minibatches, there are fewer updates. A minibatch without a response in the
    loss is left out.
    """
    group, kept = rollouts.scored.group, rollouts.kept
    inside = kept & length.in_loss(recipe.length, rollouts.scored.truncated)
    groups: list[int] = torch.unique(group[kept]).tolist()
    random.shuffle(groups)
    count = min(recipe.schedule.minibatches, len(groups))
    for i in range(count):
        chosen = groups[i * len(groups) // count : (i + 1) * len(groups) // count]
        mine = torch.isin(group, torch.tensor(chosen))
        rows = (mine & inside).nonzero().squeeze(1)
        if len(rows):
            yield Batch(rows, int((mine & kept).sum()) if recipe.length.count_masked_rows else len(rows))


def _backward(recipe: Recipe, policy: Policy, rollouts: Rollouts, A: Tensor, batch: Batch) -> Iterator[Part]:
    """Add the gradient of one optimizer batch, one forward pass after the other."""
    rows, responses, device = batch.rows, rollouts.responses.select(batch.rows), policy.device
    tokens = _tokens(recipe, rollouts, A, batch)
    ids, groups = responses.tokens(), rollouts.scored.group[rows].tolist()
    costs = [len(x) + len(rollouts.prompts[g]) // recipe.schedule.group_size for x, g in zip(ids, groups, strict=True)]
    for part in split(range(len(rows)), costs, BUDGET[device.type]):
        prompts, texts = _by_group(part, ids, groups, rollouts.prompts)
        mine = _slice(tokens, part[0], part[-1] + 1, device)
        wants_entropy = recipe.auxiliary.entropy != 0
        new, entropy = score(policy, prompts, texts, recipe.schedule.temperature, with_entropy=wants_entropy)
        value, r = loss(recipe, new, mine, entropy)
        value.backward()  # type: ignore[no-untyped-call]
        yield _observe(recipe, new.detach(), mine, r, value.detach())


def _tokens(recipe: Recipe, rollouts: Rollouts, A: Tensor, batch: Batch) -> Tokens:
    """Return all tokens of an optimizer batch, with the weights that its global denominators give them."""
    rows, responses = batch.rows, rollouts.responses.select(batch.rows)
    mask = responses.mask
    row = torch.arange(len(rows)).repeat_interleave(responses.length)
    old, entropy = responses.logp[mask], responses.entropy[mask]
    _, group = torch.unique(rollouts.scored.group[rows], return_inverse=True)
    limit = recipe.schedule.max_new_tokens
    weight = aggregation.token_weight(recipe.aggregation, responses.length, group, batch.counted, limit)
    right = rollouts.scored.correct[rows][row]
    return Tokens(
        row=row,
        rows=len(rows),
        old=old,
        advantage=A[rows][row].float() * token_weight.weight(recipe.token_weight, entropy, old),
        weight=weight[row].float(),
        entropy_weight=1 / len(row),
        nll_weight=right.float() / right.sum().clamp_min(1),
        reference=None if rollouts.reference is None else rollouts.reference[rows][mask],
    )


def _slice(tokens: Tokens, first: int, end: int, device: torch.device) -> Tokens:
    """Return the tokens of the responses ``first`` to ``end``, on the device."""
    here = (tokens.row >= first) & (tokens.row < end)
    return Tokens(
        row=(tokens.row[here] - first).to(device),
        rows=end - first,
        old=tokens.old[here].to(device),
        advantage=tokens.advantage[here].to(device),
        weight=tokens.weight[here].to(device),
        entropy_weight=tokens.entropy_weight,
        nll_weight=tokens.nll_weight[here].to(device),
        reference=None if tokens.reference is None else tokens.reference[here].to(device),
    )


def _by_group(
    part: Sequence[int], ids: Sequence[list[int]], groups: Sequence[int], prompts: Sequence[list[int]]
) -> tuple[list[list[int]], list[list[list[int]]]]:
    runs = [(g, [ids[i] for i in members]) for g, members in groupby(part, key=lambda i: groups[i])]
    return [prompts[g] for g, _ in runs], [texts for _, texts in runs]


def _observe(recipe: Recipe, new: Tensor, tokens: Tokens, r: Tensor, value: Tensor) -> Part:
    low, high = clip.bounds(recipe.clip, tokens.old)
    is_low = (tokens.advantage < 0) & (r < low)
    high_prob = tokens.old.exp() * ((tokens.advantage > 0) & (r > high))
    difference = new - tokens.old
    ratio = difference.exp()
    values = (
        is_low.sum(),
        (high_prob > 0).sum(),
        high_prob.sum(),
        high_prob.max(),
        ratio.sum(),
        ratio.min(),
        ratio.max(),
        (ratio - 1 - difference).sum(),
        difference.abs().sum(),
        difference.abs().max(),
        value,
    )
    return Part(len(new), *torch.stack([v.double() for v in values]).tolist())


def clip_gradients(parameters: Sequence[Tensor], limit: float | None) -> float:
    """Scale the gradients down to the global norm ``limit`` and return their norm before."""
    return float(torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit))
