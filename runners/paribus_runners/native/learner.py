"""The learner: the policy with all that is trained or kept beside it."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass

import torch

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.critic import Critic
from paribus_runners.native.experience import Before
from paribus_runners.native.objective.router import Routing
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.score import score_all


@dataclass(frozen=True)
class Learner:
    """What is trained; the weights change, the record does not.

    Attributes:
        policy: the policy.
        optimizer: its optimizer.
        reference: what KL or a loss of pairs compares with; ``None`` if the recipe has neither.
        critic: the critic; ``None`` without one.
        critic_optimizer: its optimizer.
        reference_moves: the reference follows the policy, so that it must be saved.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    reference: Policy | None
    critic: Critic | None
    critic_optimizer: torch.optim.Optimizer | None
    reference_moves: bool

    @classmethod
    def of(cls, recipe: Recipe, policy: Policy) -> Learner:
        """Return the learner that starts from ``policy``; all that is made beside it starts from the same weights."""
        reference = None
        if recipe.kl.kind != "off" or recipe.loss.kind == "pair_dpo":
            reference = dataclasses.replace(policy, model=copy.deepcopy(policy.model).requires_grad_(False))
        critic, critic_optimizer = None, None
        if recipe.auxiliary.value is not None:
            critic = Critic.of(policy)
            critic_optimizer = _adam(recipe, critic.model, recipe.auxiliary.value.learning_rate)
        optimizer = _adam(recipe, policy.model, recipe.optimizer.learning_rate)
        moves = isinstance(getattr(recipe.kl, "reference", None), f.SyncedReference)
        return cls(policy, optimizer, reference, critic, critic_optimizer, moves)

    def before(self, recipe: Recipe, rollouts: Rollouts) -> Before:
        """Compute what the objective needs of the rollouts before the first update; nothing that it does not need.

        Without a correction the log-probabilities from sampling are the old ones, even of stale rollouts: the ratio
        then makes up for the staleness. With one, they are computed again, and the correction makes up for it.
        """
        shift = recipe.token_weight.kind == "router_shift"
        logp, routing, value = None, None, None
        if recipe.correction.kind != "off" or shift:
            scores = score_all(
                self.policy, rollouts.prompts, rollouts.responses, recipe.schedule.temperature, with_router=shift
            )
            logp = scores.logp if recipe.correction.kind != "off" else None
            if scores.router is not None:
                assert self.policy.experts_per_token is not None
                routing = Routing.of(scores.router, self.policy.experts_per_token)
        if self.critic is not None:
            value = self.critic.values_of_all(rollouts.prompts, rollouts.responses)
        return Before(logp, routing, value)

    @torch.no_grad()
    def sync(self, recipe: Recipe, step: int) -> None:
        """Let the reference follow the policy after ``step``, if it does and the step is one of those."""
        level = getattr(recipe.kl, "reference", None)
        if self.reference is None or not isinstance(level, f.SyncedReference) or step % level.every:
            return
        pairs = zip(self.reference.model.parameters(), self.policy.model.parameters(), strict=True)
        for old, new in pairs:
            old.lerp_(new, level.mix)


def _adam(recipe: Recipe, model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    settings = recipe.optimizer
    return torch.optim.AdamW(
        model.parameters(),
        lr=rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
