"""The experience of a step: rollouts with advantages and weights, computed before the updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import correction, history
from paribus_runners.native.objective.advantage import advantages, per_token, shaped_reward, token_advantages
from paribus_runners.native.objective.history import Visits
from paribus_runners.native.objective.router import Routing
from paribus_runners.native.rollout.rollouts import Rollouts, charges


@dataclass(frozen=True)
class Before:
    """Values computed from the rollouts before the first update, response after response.

    Attributes:
        logp: [T] log-probability under the policy; ``None``: as when they were sampled.
        routing: how the policy routed the tokens; ``None`` without router shift.
        value: [T] the critic's values; ``None`` without a critic.
    """

    logp: Tensor | None = None
    routing: Routing | None = None
    value: Tensor | None = None


@dataclass(frozen=True)
class Experience:
    """The rollouts of a step, ready for its updates.

    Attributes:
        rollouts: the rollouts.
        old: [N, M] log-probability under the policy before the updates, nats.
        advantage: [N, M] A of each token.
        correction: [N, M] importance weight between sampler and learner.
        value: [N, M] the critic's values; ``None`` without a critic.
        returns: [N, M] the critic's targets; ``None`` without a critic.
        routing: how the tokens were routed, response after response; ``None`` without router shift.
        history: statistics of all prompts after this step; empty without ``baseline: history``.
    """

    rollouts: Rollouts
    old: Tensor
    advantage: Tensor
    correction: Tensor
    value: Tensor | None
    returns: Tensor | None
    routing: Routing | None
    history: Mapping[str, Visits]

    def routed(self, rows: Tensor) -> Routing | None:
        """Return the routing of the tokens of the responses ``rows``, in their order."""
        if self.routing is None:
            return None
        mask = self.rollouts.responses.mask
        place = (mask.flatten().cumsum(0) - 1).view(mask.shape)
        return self.routing.select(place[rows][mask[rows]])


def weigh(
    recipe: Recipe, rollouts: Rollouts, before: Before | None = None, visited: Mapping[str, Visits] | None = None
) -> Experience:
    """Return the experience of a step: steps 1 to 6 and 10 of the order of operations.

    Args:
        recipe: the objective.
        rollouts: what was sampled.
        before: values computed before the updates; absent if the recipe needs none.
        visited: statistics of the prompts before this step, for ``baseline: history``.
    """
    before, visited = before or Before(), visited or {}
    responses, scored, mask = rollouts.responses, rollouts.scored, rollouts.responses.mask
    value = None if before.value is None else responses.padded(before.value)
    returns = None
    if per_token(recipe):
        charge = torch.zeros(mask.shape, dtype=torch.float64)
        if rollouts.reference is not None:
            charge = charges(recipe.kl, responses, rollouts.reference)
        A, returns = token_advantages(recipe, scored, rollouts.kept, mask, charge, value)
    else:
        visits: list[Visits] = []
        if isinstance(recipe.scale, f.HistorySmooth):
            R, group = shaped_reward(recipe, scored)[rollouts.kept], scored.group[rollouts.kept]
            visits = history.visit(visited, recipe.scale, rollouts.problems, R, group)
            visited = {**visited, **{p: v for p, v in zip(rollouts.problems, visits, strict=True) if v.count}}
        A = advantages(recipe, scored, rollouts.kept, visits)[:, None] * mask
    old = responses.logp if before.logp is None else responses.padded(before.logp)
    row = torch.arange(len(mask)).repeat_interleave(scored.length)
    weight = correction.weight(recipe.correction, old[mask], responses.logp[mask], row, len(mask))
    return Experience(
        rollouts=rollouts,
        old=old,
        advantage=A,
        correction=responses.padded(weight),
        value=value,
        returns=returns,
        routing=before.routing,
        history=visited,
    )
