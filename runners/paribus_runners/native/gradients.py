"""The gradients of several objectives at the weights of one step, on the same rollouts, by the functions that train."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor

from paribus.contract import PARTS, GradientJob, Gradients, ObjectiveGradient
from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import has_reference, other_reference
from paribus.recipe.factors import RewardFunction
from paribus.recipe.recipe import Recipe
from paribus_runners.native import checkpoint
from paribus_runners.native.batch import in_loss, minibatches, passes, tokens_of
from paribus_runners.native.checkpoint import Progress
from paribus_runners.native.coefficients import coefficients
from paribus_runners.native.critic import Critic
from paribus_runners.native.experience import Experience, weigh
from paribus_runners.native.learner import Learner
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.main import initial_policy, initial_reference, settled, write_sources
from paribus_runners.native.objective import length
from paribus_runners.native.objective.filter import good_groups
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.engine import sampler_of
from paribus_runners.native.rollout.rollouts import Rollouts, charges
from paribus_runners.native.update import backward, updates
from paribus_runners.native.world import World
from paribus_runners.tasks import Grader, environment_of, task_of

RARE = 0.2
"""Probability below which a token counts as rare: those that clip-higher is for (DAPO, arXiv 2503.14476, 3.1)."""

Gradient = list[Tensor]
"""The gradient of each parameter, on the CPU."""


def gradients(asked: GradientJob) -> Gradients:
    """Return the gradients that are asked for; nothing is written.

    Raises:
        RunFolderError: the checkpoint is damaged, or of another run.
        RunnerError: the model cannot be loaded.
        ParibusError: data or a reward function cannot be read.
    """
    with settled(), ExitStack() as stack:
        progress = Progress() if asked.checkpoint is None else checkpoint.read(asked.checkpoint, asked.run)
        asked = asked.at(progress.step + 1)
        place = _Place.of(asked, progress, stack)
        base = place.experience(asked.base)
        arms = {name: base if arm == asked.base else place.experience(arm) for name, arm in asked.arms.items()}
        backwards = base.rollouts.groups(range(len(base.rollouts.prompts))[::-1])
        again = place.weighed(asked.base, backwards)
        made = place.update(asked.seed) if asked.after_updates else 0
        new = place.log_probabilities(base.rollouts)
        first = _gradient(place.learner, asked.base, base)
        found = {}
        for name, mine in arms.items():
            recipe = asked.arms[name]
            other = first if mine is base else _gradient(place.learner, recipe, mine)
            found[name] = _compared(other, first, recipe, mine, new)
        repeated = _compared(_gradient(place.learner, asked.base, again), first, asked.base, base, new)
        responses = base.rollouts.responses
        return Gradients(
            step=place.progress.step,
            rollouts=place.origin,
            groups=len(base.rollouts.prompts),
            responses=len(responses),
            tokens=len(responses.ids),
            share=_shares(base, torch.ones_like(new)),
            updates=made,
            noise=repeated.distance,
            base=_compared(first, first, asked.base, base, new),
            arms=found,
        )


@dataclass(frozen=True)
class _Place:
    """Weights and rollouts of one step of a run.

    Attributes:
        run: the recipe of the run.
        learner: the learner of the run, with what its checkpoint holds.
        references: [T] the log-probabilities of the responses under the references of arms with KL or pairs: under
            ``None`` that of the run, else of the initial policy; under the others models that a recipe names.
        progress: how far the run is.
        rollouts: the responses of the next step, graded by the functions of all arms.
        origin: where they come from.
        columns: these functions, in the order of the rewards.
    """

    run: Recipe
    learner: Learner
    references: Mapping[f.ModelReference | None, Tensor]
    progress: Progress
    rollouts: Rollouts
    origin: Literal["sampled again", "recorded"]
    columns: Sequence[RewardFunction]

    @classmethod
    def of(cls, asked: GradientJob, progress: Progress, stack: ExitStack) -> _Place:
        """Load the weights, and return them with the rollouts that a step from there trains on."""
        run, every = asked.recipe, (asked.recipe, asked.base, *asked.arms.values())
        policy, cache = _initial(asked, stack)
        networks: dict[f.ModelReference | None, Policy] = {}
        for arm in every:
            if (other := other_reference(arm)) is not None and other not in networks:
                networks[other] = _reference(arm, cache, policy)
        learner = Learner.of(run, policy, reference=networks.get(other_reference(run)))
        if any(has_reference(arm) and other_reference(arm) is None for arm in every):
            own = other_reference(run) is None and learner.reference is not None
            networks[None] = learner.reference if own and learner.reference is not None else policy.frozen()
        if asked.checkpoint is not None:
            checkpoint.load(asked.checkpoint, learner)
        columns = _functions(every)
        origin: Literal["sampled again", "recorded"] = "sampled again"
        if progress.queued.steps and columns == _functions([run]):
            rollouts, origin = progress.queued.steps[0], "recorded"
        else:
            rollouts = _sampled(asked, learner.policy, progress.step + 1, columns, stack)
        prompts, responses = rollouts.prompts, rollouts.responses
        if responses.entropy is None:  # vLLM gives none
            entropy = score_all(learner.policy, prompts, responses, run.schedule.temperature, with_entropy=True).entropy
            rollouts = replace(rollouts, responses=replace(responses, entropy=entropy))
        logp = {x: score_all(net, prompts, responses, run.schedule.temperature).logp for x, net in networks.items()}
        return cls(run, learner, logp, progress, rollouts, origin, columns)

    def log_probabilities(self, rollouts: Rollouts) -> Tensor:
        """Return [T] the log-probabilities of the responses under the weights as they are now, nats, float64."""
        policy, temperature = self.learner.policy, self.run.schedule.temperature
        return score_all(policy, rollouts.prompts, rollouts.responses, temperature, replay=True).logp.double()

    def experience(self, recipe: Recipe) -> Experience:
        """Return the rollouts as the recipe filters and weighs them at these weights."""
        rollouts, scored, limit = self.rollouts, self.rollouts.scored, recipe.schedule.max_new_tokens
        reference = self.references[other_reference(recipe)] if has_reference(recipe) else None
        charge = torch.zeros(len(scored.score), dtype=torch.float64)
        if reference is not None:
            charge = rollouts.responses.padded(charges(recipe.kl, rollouts.responses, reference), limit).sum(1)
        at = [self.columns.index(_measured(x)) for x in recipe.reward.functions.values()]
        scored = replace(scored, kl=charge, rewards=scored.rewards[:, at])
        if rollouts.steps is not None:
            rollouts = replace(rollouts, steps=rollouts.steps[:, at])
        good = good_groups(recipe, scored)
        first = good & (good.cumsum(0) <= recipe.schedule.prompts_per_step)
        kept = length.present(recipe.length, scored.truncated) & first[scored.group]
        return self.weighed(recipe, replace(rollouts, scored=scored, reference=reference, kept=kept))

    def weighed(self, recipe: Recipe, rollouts: Rollouts) -> Experience:
        """Return filtered rollouts as the recipe weighs them. A critic that the run lacks has seen no update."""
        critic = None
        if recipe.auxiliary.value is not None:
            critic = self.learner.critic or Critic.of(self.learner.policy)
        before = replace(self.learner, critic=critic).before(recipe, rollouts)
        if recipe.correction.kind != "off" and before.logp is None:  # else the backward pass would find it out
            before = replace(before, logp=self.log_probabilities(rollouts).float())
        return weigh(recipe, rollouts, before, self.progress.history)

    def update(self, seed: int) -> int:
        """Make the updates of the run on the rollouts; return how many these were."""
        step = self.progress.step + 1
        self.learner.set_rate(self.run, step)
        return len(updates(self.run, self.learner, self.experience(self.run), seed, step).policy)


def _reference(recipe: Recipe, cache: Path, policy: Policy) -> Policy:
    """Return the model that a recipe names as its reference."""
    found = initial_reference(recipe, cache, policy)
    assert found is not None
    return found


def _initial(asked: GradientJob, stack: ExitStack) -> tuple[Policy, Path]:
    """Return the policy that the run began with, and the cache; a tiny model is made apart if that is read-only.

    Raises:
        RunnerError: it cannot be loaded.
    """
    cache = Path(asked.cache)
    try:
        return initial_policy(asked.recipe, cache, asked.seed), cache
    except OSError:
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paribus-")))
        return initial_policy(asked.recipe, cache, asked.seed), cache


def _sampled(
    asked: GradientJob, policy: Policy, step: int, columns: Sequence[RewardFunction], stack: ExitStack
) -> Rollouts:
    """Return what the run samples in the first round of a step, graded by all functions, without a filter."""
    beside = None
    if (columns or asked.recipe.functions) and asked.options.sources:
        beside = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paribus-")))
        write_sources(asked.options.sources, beside)
    task = task_of(asked.recipe.task, policy.render, columns=bool(columns or asked.recipe.functions))
    named = {f"{number:06}": function for number, function in enumerate(columns)}
    environment = environment_of(asked.recipe.turns, beside)
    if environment is not None:
        stack.enter_context(environment)
    grader = stack.enter_context(Grader(task, named, beside, environment))
    sampler = sampler_of(asked.recipe, policy, task, asked.seed, lambda: None, World())
    sampler.load(policy.model.named_parameters())
    plain = asked.recipe.model_copy(update={"filter": f.NoFilter()})
    return collect(plain, Source(policy, None, task, asked.seed, sampler, grader), step).rollouts


def _measured(function: RewardFunction) -> RewardFunction:
    """Return a function without its weight, which does not change what it returns."""
    return function.model_copy(update={"weight": 1.0})


def _functions(recipes: Sequence[Recipe]) -> list[RewardFunction]:
    """Return the reward functions of recipes, each once."""
    return list(dict.fromkeys(_measured(x) for recipe in recipes for x in recipe.reward.functions.values()))


def _gradient(learner: Learner, recipe: Recipe, experience: Experience) -> Gradient:
    """Return the gradient of the loss of all responses in one optimizer batch, as an update takes it."""
    learner.optimizer.zero()
    for batch in minibatches(recipe, experience, Random(0)):
        for tokens in passes(recipe, tokens_of(recipe, experience, batch)):
            for _ in backward(recipe, learner, experience.rollouts, batch, tokens):
                pass
    found = learner.optimizer.gradients
    learner.optimizer.zero()
    return [x.detach().to("cpu", copy=True) for x in found]


def _compared(mine: Gradient, base: Gradient, recipe: Recipe, experience: Experience, new: Tensor) -> ObjectiveGradient:
    """Return a gradient beside that of the base.

    Args:
        mine: the gradient.
        base: that of the base.
        recipe: its objective.
        experience: what it is the gradient of.
        new: [T] log-probability of each token under the weights at which it was taken, nats, float64.
    """
    weight = _shares(experience, coefficients(recipe, experience, new)["total"].abs())
    responses = int(in_loss(recipe, experience).sum())
    own, other = math.sqrt(_dot(mine, mine)), math.sqrt(_dot(base, base))
    if all(map(torch.equal, mine, base)):
        exact = 1.0 if own else None
        return ObjectiveGradient(norm=own, cosine=exact, ratio=exact, distance=0.0, residual=0.0,
                                 responses=responses, weight=weight)  # fmt: skip
    along = _dot(mine, base) / (other**2 or 1.0)
    apart = math.sqrt(sum(_square(a.double() - b.double()) for a, b in zip(mine, base, strict=True)))
    across = math.sqrt(sum(_square(a.double() - along * b.double()) for a, b in zip(mine, base, strict=True)))
    return ObjectiveGradient(
        norm=own,
        cosine=along * other / own if own and other else None,
        ratio=own / other if other else None,
        distance=apart / (other or own),
        residual=across / own if own and other else 0.0,
        responses=responses,
        weight=weight,
    )


def _dot(a: Gradient, b: Gradient) -> float:
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))


def _square(x: Tensor) -> float:
    return float((x * x).sum())


def _shares(experience: Experience, weight: Tensor) -> dict[str, float]:
    """Return the share of some tokens in ``weight`` [T], by the names of :data:`PARTS`; empty if all are 0."""
    total = float(weight.sum())
    if not total:
        return {}
    responses, scored = experience.rollouts.responses, experience.rollouts.scored
    row, lengths = responses.row, responses.length
    place = (torch.arange(len(row)) - responses.first[row]) / lengths[row]
    chosen = (
        lengths[row] > lengths.double().median(),
        ~scored.correct[row],
        experience.old.exp() < RARE,
        place < 1 / 3,
        place >= 2 / 3,
    )
    return {name: float(weight[there].sum()) / total for name, there in zip(PARTS, chosen, strict=True)}
