"""The learner: the policy with its optimizer, and reference and critic if the recipe has them."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass

import torch

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.critic import Critic
from paribus_runners.native.experience import Before
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.objective.router import Routing
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.rollouts import Rollouts


@dataclass(frozen=True)
class Learner:
    """The networks and optimizers of a run; their weights change in place.

    Attributes:
        policy: the policy.
        optimizer: its optimizer.
        reference: the reference policy of KL or of a loss of pairs; ``None`` if the recipe has neither.
        critic: the critic; ``None`` without one.
        critic_optimizer: its optimizer.
        reference_moves: whether the reference follows the policy, so that checkpoints must hold it.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    reference: Policy | None
    critic: Critic | None
    critic_optimizer: torch.optim.Optimizer | None
    reference_moves: bool

    @classmethod
    def of(cls, recipe: Recipe, policy: Policy) -> Learner:
        """Return the learner that starts from ``policy``; reference and critic start from the same weights."""
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

    @property
    def networks(self) -> tuple[torch.nn.Module, ...]:
        """The networks that make forward passes."""
        reference = () if self.reference is None else (self.reference.model,)
        critic = () if self.critic is None else (self.critic.model.body,)
        return (self.policy.model, *reference, *critic)

    def before(self, recipe: Recipe, rollouts: Rollouts) -> Before:
        """Compute what the objective needs from the rollouts before the first update, and nothing else.

        Without a correction, the log-probabilities from sampling count as the old ones, even for stale rollouts: the
        ratio then corrects for the staleness. With a correction, they are computed again, and the correction does.
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
        """Mix the policy into the reference after ``step`` if the recipe syncs the reference at this step."""
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
