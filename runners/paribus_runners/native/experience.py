"""The experience of a step: rollouts with advantages and weights, computed before the updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import corrected_by_the_update
from paribus.recipe.recipe import Recipe
from paribus_runners.native.experts import Experts
from paribus_runners.native.objective import correction, history, kl, step
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
        entropy: [T] entropy of the policy that sampled, nats; ``None``: as the sampler gave it, if it did.
        experts: which experts the policy chose, for the updates to take; ``None``: as the responses come.
    """

    logp: Tensor | None = None
    routing: Routing | None = None
    value: Tensor | None = None
    entropy: Tensor | None = None
    experts: Experts | None = None

    @staticmethod
    def join(parts: Sequence[Before]) -> Before:
        """Return the values of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        logp, value, entropy = (
            torch.cat(x) if (x := [v for p in parts if (v := getattr(p, name)) is not None]) else None
            for name in ("logp", "value", "entropy")
        )
        routings = [p.routing for p in parts if p.routing is not None]
        experts = [p.experts for p in parts if p.experts is not None]
        return Before(
            logp,
            Routing.join(routings) if routings else None,
            value,
            entropy,
            Experts.concat(experts) if experts else None,
        )


@dataclass(frozen=True)
class Experience:
    """The rollouts of a step, ready for its updates.

    Attributes:
        rollouts: the rollouts.
        old: [T] log-probability under the policy before the updates, nats.
        advantage: [T] A of each token.
        correction: [T] importance weight between sampler and learner; ``None`` if only the update finds it out, and
            ``old`` as well: until then, these are the sampler's.
        entropy: [T] entropy over the full vocabulary when the token was sampled, nats; ``None`` if only the first
            update finds it out.
        value: [T] the critic's values; ``None`` without a critic.
        returns: [T] the critic's targets; ``None`` without a critic.
        routing: how the tokens were routed, response after response; ``None`` without router shift.
        history: statistics of all prompts after this step; empty without ``baseline: history``.
    """

    rollouts: Rollouts
    old: Tensor
    advantage: Tensor
    correction: Tensor | None
    entropy: Tensor | None
    value: Tensor | None
    returns: Tensor | None
    routing: Routing | None
    history: Mapping[str, Visits]

    def routed(self, rows: Tensor) -> Routing | None:
        """Return the routing of the tokens of the responses ``rows``, in their order."""
        return None if self.routing is None else self.routing.select(self.rollouts.responses.places(rows))


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
    if before.experts is not None:
        rollouts = replace(rollouts, responses=replace(rollouts.responses, experts=before.experts))
    responses, scored, row = rollouts.responses, rollouts.scored, rollouts.responses.row
    returns = None
    if recipe.baseline.kind == "group_steps":
        ends = step.rewards(recipe, scored, rollouts.steps, responses.length)
        A = step.advantages(recipe, scored, rollouts.kept, ends, responses.length)
    elif per_token(recipe):
        A, returns = _by_token(recipe, rollouts, before.value)
    else:
        visits: list[Visits] = []
        if isinstance(recipe.scale, f.HistorySmooth):
            R, group = shaped_reward(recipe, scored)[rollouts.kept], scored.group[rollouts.kept]
            visits = history.visit(visited, recipe.scale, rollouts.problems, R, group)
            visited = {**visited, **{p: v for p, v in zip(rollouts.problems, visits, strict=True) if v.count}}
        A = advantages(recipe, scored, rollouts.kept, visits)[row]
    A = _pulled(recipe, rollouts, A)
    old = responses.logp if before.logp is None else before.logp
    later = before.logp is None and corrected_by_the_update(recipe)
    return Experience(
        rollouts=rollouts,
        old=old,
        advantage=A,
        correction=None if later else correction.weight(recipe.correction, old, responses.logp, row, len(responses)),
        entropy=responses.entropy if before.entropy is None else before.entropy,
        value=before.value,
        returns=returns,
        routing=before.routing,
        history=visited,
    )


def _pulled(recipe: Recipe, rollouts: Rollouts, A: Tensor) -> Tensor:
    """Return A [T] with the KL that is charged from advantages, of the responses that take part."""
    responses = rollouts.responses
    if recipe.kl.kind != "advantage":
        return A
    assert rollouts.reference is not None
    paid = kl.from_advantage(recipe.kl, responses.logp.double(), rollouts.reference.double())
    return A - paid * rollouts.kept[responses.row]


def corrected(recipe: Recipe, experience: Experience, inside: Tensor, old: Tensor) -> Experience:
    """Return the experience with what the only update has found out about the responses ``inside`` [N] the loss.

    Args:
        recipe: its correction.
        experience: the experience; what it says of other responses stays.
        inside: which responses are in the loss.
        old: [T] the log-probabilities of their tokens under the policy before the update.
    """
    responses = experience.rollouts.responses
    logp = experience.old.index_copy(0, responses.places(inside), old.to(experience.old.dtype))
    weight = correction.weight(recipe.correction, logp, responses.logp, responses.row, len(responses))
    return replace(experience, old=logp, correction=weight)


def _by_token(recipe: Recipe, rollouts: Rollouts, value: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return A [T] and the critic's targets [T]; responses stand one below the other only in here."""
    responses, charge = rollouts.responses, torch.zeros(len(rollouts.responses.ids), dtype=torch.float64)
    if rollouts.reference is not None:
        charge = charges(recipe.kl, responses, rollouts.reference)
    mask, V = responses.mask, None if value is None else responses.padded(value)
    A, returns = token_advantages(recipe, rollouts.scored, rollouts.kept, mask, responses.padded(charge), V)
    return A[mask], None if returns is None else returns[mask]
