"""The learner: the policy with its optimizer, and reference and critic if the recipe has them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import corrected_by_the_update, has_reference, weighs_sampler
from paribus.recipe.recipe import Recipe
from paribus_runners.native.critic import Critic
from paribus_runners.native.experience import Before
from paribus_runners.native.host_memory import HostMemory
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.objective import length
from paribus_runners.native.objective.router import Routing
from paribus_runners.native.optimizer import Adam
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.sharded_weights import ShardedWeights
from paribus_runners.native.world import World


@dataclass(frozen=True)
class Learner:
    """The networks and optimizers of a run; their weights change in place.

    Attributes:
        policy: the policy.
        optimizer: its optimizer.
        reference: the reference policy of KL or of a loss of pairs; ``None`` if this process needs none.
        critic: the critic; ``None`` without one.
        critic_optimizer: its optimizer.
        reference_moves: whether the reference follows the policy, so that checkpoints must hold it.
        world: the processes that hold the same networks and share the work.
    """

    policy: Policy
    optimizer: Adam
    reference: Policy | None
    critic: Critic | None
    critic_optimizer: Adam | None
    reference_moves: bool
    world: World = field(default_factory=World)

    @classmethod
    def of(cls, recipe: Recipe, policy: Policy, world: World | None = None, reference: Policy | None = None) -> Learner:
        """Return the learner that starts from ``policy``; so do critic and, without another ``reference``, that too.

        A process that only samples has nothing that is trained: it gets the weights that others have stepped. One that
        only trains has a reference if that moves, for its checkpoints.
        """
        world, critic, critic_optimizer = world or World(), None, None
        moves = isinstance(getattr(recipe.kl, "reference", None), f.SyncedReference)
        if reference is None and has_reference(recipe) and (world.samples or moves):
            reference = policy.frozen()
        if recipe.auxiliary.value is not None and world.trains:
            critic = Critic.of(policy)
            rate = recipe.auxiliary.value.learning_rate
            critic_optimizer = Adam(critic.model, recipe.optimizer, rate, recipe.compute, world)
        if recipe.compute.sharding == "weights" and world.trains and world.size > 1:
            dtype = getattr(torch, recipe.model.trained_dtype)
            policy = replace(policy, shared=ShardedWeights(policy.model, world, dtype))
        rate = recipe.optimizer.learning_rate
        trained = policy.model if world.trains else torch.nn.Module()
        optimizer = Adam(trained, recipe.optimizer, rate, recipe.compute, world, policy.shared)
        if policy.shared is not None:
            policy.shared.gather()
        if reference is not None and "reference" in recipe.compute.offload:
            reference = replace(reference, host=HostMemory(reference.model, policy.model))
        return cls(policy, optimizer, reference, critic, critic_optimizer, moves, world)

    def sharded(self) -> AbstractContextManager[None]:
        """Have each process keep its share of the weights alone for the duration, if they are shared."""
        shared = self.policy.shared
        return nullcontext() if shared is None else shared.sharded()

    @property
    def networks(self) -> tuple[torch.nn.Module, ...]:
        """The networks that make forward passes."""
        reference = () if self.reference is None else (self.reference.model.base_model,)
        critic = () if self.critic is None else (self.critic.model.body,)
        return (self.policy.model.base_model, *reference, *critic)

    def before(self, recipe: Recipe, rollouts: Rollouts) -> Before:
        """Compute what the objective needs from the rollouts before the first update, and nothing else.

        Without a correction, the log-probabilities from sampling count as the old ones, even for stale rollouts: the
        ratio then corrects for the staleness. With a correction, they are computed again, and the correction does; if
        the step has one update, its own forward pass computes them.

        Entropies that the sampler does not give are computed here unless the first update sees all tokens anyway.
        """
        need = _Need.of(recipe, rollouts)
        if not need.scores and self.critic is None:
            return Before()
        lengths = rollouts.responses.read.view(len(rollouts.prompts), -1).sum(1).tolist()
        mine = self.world.share([len(p) + n for p, n in zip(rollouts.prompts, lengths, strict=True)])
        share = rollouts if len(mine) == len(rollouts.prompts) else rollouts.groups(mine)
        found = self.world.gather(self._before(recipe, share, need) if mine else None)
        return Before.join([part for part in found if part is not None])

    def _before(self, recipe: Recipe, rollouts: Rollouts, need: _Need) -> Before:
        prompts, responses = rollouts.prompts, rollouts.responses
        value = None if self.critic is None else self.critic.values_of_all(prompts, responses)
        if not need.scores:
            return Before(value=value)
        temperature = recipe.schedule.temperature
        scores = score_all(
            self.policy,
            prompts,
            responses,
            temperature,
            with_entropy=need.entropy,
            with_router=need.router,
            with_experts=need.experts,
            replay=True,
        )
        routing = None
        if scores.router is not None:
            assert self.policy.experts_per_token is not None
            routing = Routing.of(scores.router, self.policy.experts_per_token)
        return Before(scores.logp if need.logp else None, routing, value, scores.entropy, scores.experts)

    def set_rate(self, recipe: Recipe, step: int) -> float:
        """Set the learning rate of the policy for a step, and return it."""
        settings = recipe.optimizer
        rise = min(1.0, step / settings.warmup_steps) if settings.warmup_steps else 1.0
        self.optimizer.rate = settings.learning_rate * rise
        return self.optimizer.rate

    @torch.no_grad()
    def sync(self, recipe: Recipe, step: int) -> None:
        """Mix the policy into the reference after ``step`` if the recipe syncs the reference at this step."""
        level = getattr(recipe.kl, "reference", None)
        if self.reference is None or not isinstance(level, f.SyncedReference) or step % level.every:
            return
        pairs = zip(self.reference.model.parameters(), self.policy.model.parameters(), strict=True)
        for old, new in pairs:
            if old is not new:
                old.lerp_(new, level.mix)


class _Need(NamedTuple):
    """What the policy must compute from the rollouts before the first update."""

    logp: bool
    router: bool
    entropy: bool
    experts: bool

    @classmethod
    def of(cls, recipe: Recipe, rollouts: Rollouts) -> _Need:
        """Return what the recipe needs; entropies come with other needs, and alone only if no update sees them all."""
        corrected, router = weighs_sampler(recipe), recipe.token_weight.kind == "router_shift"
        experts = recipe.rollout.routing_replay == "learner"
        logp = corrected and not corrected_by_the_update(recipe)
        absent = rollouts.responses.entropy is None
        entropy = absent and (logp or router or experts or not _seen_by_first_update(recipe, rollouts))
        return cls(logp or (corrected and (entropy or experts)), router, entropy, experts)

    @property
    def scores(self) -> bool:
        return any(self)


def _seen_by_first_update(recipe: Recipe, rollouts: Rollouts) -> bool:
    """Return whether all sampled tokens are in the first update, and none needs its entropy before."""
    schedule = recipe.schedule
    whole = schedule.minibatches == 1 and schedule.update.kind == "joint" and recipe.loss.kind == "policy_gradient"
    inside = rollouts.kept & length.in_loss(recipe.length, rollouts.scored.truncated)
    return whole and bool(inside.all()) and recipe.token_weight.kind != "top_entropy"
