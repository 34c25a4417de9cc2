"""Optimizer batches: whole groups of a step's experience, and the weights of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.experience import Experience
from paribus_runners.native.objective import aggregation, correction, length, token_weight
from paribus_runners.native.objective.loss import Tokens
from paribus_runners.native.rollout.rollouts import Rollouts


@dataclass(frozen=True)
class Batch:
    """The responses of one optimizer batch.

    Attributes:
        rows: places of the responses in the rollouts, groups together.
        counted: responses that the denominator of the aggregation counts.
    """

    rows: Tensor
    counted: int


def minibatches(recipe: Recipe, experience: Experience, random: Random) -> Iterator[Batch]:
    """Yield the optimizer batches of one epoch: whole groups, shuffled, in ``minibatches`` parts of nearly equal size.

    If fewer groups were kept than there are minibatches, there are fewer updates. A minibatch without a response in the
    loss is skipped. With a loss of pairs a batch has the two responses of each pair alone, and counts pairs.
    """
    rollouts = experience.rollouts
    group, inside = rollouts.scored.group, in_loss(recipe, experience)
    groups: list[int] = torch.unique(group[rollouts.kept]).tolist()
    random.shuffle(groups)
    count = min(recipe.schedule.minibatches, len(groups))
    for i in range(count):
        chosen = groups[i * len(groups) // count : (i + 1) * len(groups) // count]
        mine = torch.isin(group, torch.tensor(chosen))
        rows = (mine & inside).nonzero().squeeze(1)
        if len(rows):
            all_ = recipe.length.count_masked_rows and recipe.loss.kind != "pair_dpo"
            yield Batch(rows, int((mine & rollouts.kept).sum()) if all_ else len(rows))


def in_loss(recipe: Recipe, experience: Experience) -> Tensor:
    """Return [N] which responses enter the loss."""
    rollouts = experience.rollouts
    if recipe.loss.kind == "pair_dpo":
        return experience.advantage[rollouts.responses.first] != 0
    return rollouts.kept & length.in_loss(recipe.length, rollouts.scored.truncated)


def tokens_of(recipe: Recipe, experience: Experience, batch: Batch) -> Tokens:
    """Return all tokens of an optimizer batch, with the weights that its global denominators give them."""
    rollouts, rows = experience.rollouts, batch.rows
    at, support = rollouts.responses.places(rows), rollouts.responses.support
    row = torch.arange(len(rows)).repeat_interleave(rollouts.responses.length[rows])
    old = experience.old[at]
    right = rollouts.scored.correct[rows][row]
    weight = token_weight.weight(
        recipe.token_weight, None if experience.entropy is None else experience.entropy[at], old
    )
    return Tokens(
        row=row,
        rows=len(rows),
        old=old,
        advantage=experience.advantage[at].float() * weight,
        weight=_weights(recipe, rollouts, batch)[row].float(),
        correction=None if experience.correction is None else experience.correction[at].float(),
        entropy_weight=torch.full_like(old, 1 / len(row)),
        nll_weight=right.float() / right.sum().clamp_min(1),
        reference=None if rollouts.reference is None else rollouts.reference[at],
        sampler=rollouts.responses.logp[at] if correction.off_policy_mask(recipe.correction) else None,
        routing=experience.routed(rows),
        support=None if support is None else support.select(at),
    )


def _weights(recipe: Recipe, rollouts: Rollouts, batch: Batch) -> Tensor:
    """Return [n] the weight of each token of each response."""
    length_, group = rollouts.scored.length[batch.rows], rollouts.scored.group[batch.rows]
    if recipe.loss.kind == "pair_dpo":
        return torch.full_like(length_, 2 / batch.counted, dtype=torch.float64)
    _, places = torch.unique(group, return_inverse=True)
    return aggregation.token_weight(recipe.aggregation, length_, places, batch.counted, recipe.schedule.max_new_tokens)


def passes(recipe: Recipe, tokens: Tokens) -> list[Tokens]:
    """Return the updates of an optimizer batch, each as all of its tokens with their weights in the update.

    ``joint``: one. ``lopti``: one with the tokens of low probability alone, then one with the others alone; an empty
    one is skipped (Lopti, arXiv 2505.12929, section 4). The denominators stay those of the whole batch.
    """
    if not isinstance(recipe.schedule.update, f.Lopti):
        return [tokens]
    low = tokens.old.exp() < recipe.schedule.update.eta
    return [_only(tokens, chosen) for chosen in (low, ~low) if bool(chosen.any())]


def _only(tokens: Tokens, chosen: Tensor) -> Tokens:
    return replace(
        tokens,
        weight=tokens.weight * chosen,
        entropy_weight=tokens.entropy_weight * chosen,
        nll_weight=tokens.nll_weight * chosen,
    )


def part(tokens: Tokens, first: int, end: int, device: torch.device) -> Tokens:
    """Return the tokens of the responses ``first`` to ``end``, on the device."""
    here = (tokens.row >= first) & (tokens.row < end)
    values: dict[str, Any] = {x.name: getattr(tokens, x.name) for x in fields(tokens)}
    chosen = {name: x[here].to(device) for name, x in values.items() if isinstance(x, Tensor)}
    routing = None if tokens.routing is None else tokens.routing.select(here).to(device)
    support = None if tokens.support is None else tokens.support.select(here).to(device)
    whole = {"row": chosen["row"] - first, "rows": end - first, "routing": routing, "support": support}
    return Tokens(**{**values, **chosen, **whole})
