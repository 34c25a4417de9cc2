"""The coefficients of responses that are given as plain values, as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paribus.recipe.recipe import Recipe
from paribus.study.coefficients import ResponseCoefficients, State
from paribus.study.responses import Response
from paribus_runners.native.batch import in_loss
from paribus_runners.native.coefficients import coefficients
from paribus_runners.native.experience import Before, Experience, weigh
from paribus_runners.native.objective import length, segment
from paribus_runners.native.objective.advantage import Scored, shaped_reward
from paribus_runners.native.objective.filter import good_groups
from paribus_runners.native.rollout.responses import Responses
from paribus_runners.native.rollout.rollouts import Rollouts, charges

ROUNDING = 1e-9
"""What is left of an advantage of 0 after a batch mean was subtracted from it."""


def view(recipe: Recipe, responses: Sequence[Response]) -> list[ResponseCoefficients]:
    """Return the coefficients of each response under a recipe; all kept groups are one optimizer batch.

    Args:
        recipe: the objective; its model, task and optimizer are not looked at.
        responses: the responses of a step, in any order.
    """
    rollouts = rollouts_of(recipe, responses)
    mask = rollouts.responses.mask
    old = _padded([x.logp_old for x in responses])
    value = _padded([x.value for x in responses])[mask] if recipe.baseline.kind == "critic_gae" else None
    experience = weigh(recipe, rollouts, Before(logp=old[mask], value=value))
    found = coefficients(recipe, experience, _padded([x.logp_new for x in responses]))
    reward = shaped_reward(recipe, rollouts.scored).tolist()
    plain = ("advantage", "token_weight", "correction", "surrogate", "kl", "nll", "total")
    values = {name: _rows(getattr(found, name), responses) for name in plain}
    ratio, factor = (_rows(x, responses) for x in (found.ratio, found.factor))
    return [
        ResponseCoefficients(
            state=state,
            reward=reward[i],
            weight=float(found.weight[i]),
            ratio=_known(ratio[i]),
            factor=_known(factor[i]),
            **{name: x[i] for name, x in values.items()},
        )
        for i, state in enumerate(_states(recipe, experience))
    ]


def rollouts_of(recipe: Recipe, responses: Sequence[Response]) -> Rollouts:
    """Return the responses as the rollouts of a step, filtered; without a correction the old policy sampled them."""
    names = list(dict.fromkeys(x.group for x in responses))
    group = torch.tensor([names.index(x.group) for x in responses])
    size = torch.tensor([x.length for x in responses])
    truncated = torch.tensor([x.truncated for x in responses])
    sampled = _padded([x.logp_old if recipe.correction.kind == "off" else x.logp_sampler for x in responses])
    sample = Responses(
        ids=torch.zeros(sampled.shape, dtype=torch.long),
        logp=sampled,
        entropy=_padded([x.entropy for x in responses]),
        length=size,
        truncated=truncated,
    )
    compares = recipe.kl.kind != "off" or recipe.loss.kind == "pair_dpo"
    reference = _padded([x.logp_reference for x in responses]) if compares else None
    scored = Scored(
        group=group,
        groups=len(names),
        score=torch.tensor([x.score for x in responses], dtype=torch.float64),
        correct=torch.tensor([x.correct for x in responses]),
        formatted=torch.tensor([x.formatted for x in responses]),
        length=size,
        truncated=truncated,
        kl=torch.zeros(len(responses), dtype=torch.float64),
    )
    if reference is not None:
        scored = replace(scored, kl=charges(recipe.kl, sample, reference).sum(1))
    return Rollouts(
        prompts=[[] for _ in names],
        problems=names,
        born=torch.zeros(len(names)),
        carried=torch.zeros(len(names), dtype=torch.bool),
        responses=sample,
        scored=scored,
        reference=reference,
        kept=length.present(recipe.length, truncated) & good_groups(recipe, scored)[group],
        rounds=1,
        seconds_sampling=0.0,
        seconds_reward=0.0,
    )


def _states(recipe: Recipe, experience: Experience) -> list[State]:
    """Return what became of each response."""
    rollouts, scored = experience.rollouts, experience.rollouts.scored
    present, inside = length.present(recipe.length, scored.truncated), in_loss(recipe, experience)
    reward, kept = shaped_reward(recipe, scored), rollouts.kept
    spread = segment.spread(reward[kept], scored.group[kept], scored.groups)[scored.group]
    found: list[State] = []
    for i in range(len(kept)):
        if not present[i]:
            found.append("dropped")
        elif not kept[i]:
            found.append("filtered")
        elif not inside[i]:
            found.append("no_pair" if recipe.loss.kind == "pair_dpo" else "masked")
        else:
            moved = spread[i] > 0 or bool((experience.advantage[i].abs() > ROUNDING).any())
            found.append("in_loss" if moved else "zero_spread")
    return found


def _padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """Return [N, M] of rows of any length, float64, padded with zeros on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


def _rows(x: Tensor, responses: Sequence[Response]) -> list[tuple[float, ...]]:
    """Return the values [N, M] without padding."""
    return [tuple(row[: r.length]) for row, r in zip(x.tolist(), responses, strict=True)]


def _known(values: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(x) else x for x in values)
