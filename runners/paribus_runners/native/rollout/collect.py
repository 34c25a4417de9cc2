"""Collecting the rollouts of one step: sampling rounds, verification, group filter."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.objective import length
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.native.objective.filter import good_groups
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.rollouts import Rollouts, charges
from paribus_runners.native.rollout.sampler import sample, uniforms
from paribus_runners.tasks import Grader, Problem, Task


@dataclass(frozen=True)
class Source:
    """Where rollouts come from.

    Attributes:
        policy: the policy that samples; its weights change between steps.
        reference: the reference policy of KL or of a loss of pairs; ``None`` if the recipe has neither.
        task: problems.
        seed: seed of the run.
        grader: verifies responses, and calls the reward functions; by default one without functions.
    """

    policy: Policy
    reference: Policy | None
    task: Task
    seed: int
    grader: Grader | None = None


class Collected(NamedTuple):
    """The rollouts of a step, and surplus groups for the next step."""

    rollouts: Rollouts
    surplus: Rollouts | None


def collect(recipe: Recipe, source: Source, step: int, updates: int = 0, waiting: Rollouts | None = None) -> Collected:
    """Sample and verify until the filter has enough groups or its sampling rounds are used up.

    With ``refill`` and ``refill_async`` the first ``prompts_per_step`` groups with spread are kept; if the rounds are
    used up before, the step trains on fewer. ``refill`` drops the surplus. ``refill_async`` passes at most
    ``max_surplus`` of its groups on to the next step, the oldest first; its sampler never pauses, so each step has a
    round.

    Args:
        recipe: schedule, filter, length rule and KL.
        source: where rollouts come from.
        step: the step that they are for; below 0 in value pretraining.
        updates: optimizer updates of the policy so far.
        waiting: surplus of the previous step.
    """
    wanted = recipe.schedule.prompts_per_step
    limit = recipe.filter.max_generation_batches if isinstance(recipe.filter, f.Refill | f.RefillAsync) else 1
    parts = [] if waiting is None else [replace(waiting, carried=torch.ones_like(waiting.carried))]
    for round_ in range(limit):
        parts.append(_round(recipe, source, step, round_, updates))
        joined = Rollouts.join(parts)
        good = good_groups(recipe, joined.scored)
        if good.sum() >= wanted:
            break
    first = good & (good.cumsum(0) <= wanted)
    surplus = None
    if isinstance(recipe.filter, f.RefillAsync):
        chosen = (good & ~first).nonzero().squeeze(1).tolist()[: recipe.filter.max_surplus]
        surplus = joined.groups(chosen) if chosen else None
    return Collected(replace(joined, kept=joined.kept & first[joined.scored.group]), surplus)


def _round(recipe: Recipe, source: Source, step: int, round_: int, updates: int) -> Rollouts:
    size, schedule, policy = recipe.schedule.group_size, recipe.schedule, source.policy
    start = time.perf_counter()
    problems = source.task.training(source.seed, step, round_, schedule.prompts_per_step)
    prompts = policy.encode([p.prompt for p in problems])
    numbers = uniforms(len(problems) * size, schedule.max_new_tokens, source.seed, "rollout", step, round_)
    responses = sample(policy, prompts, size, numbers, schedule.temperature)
    sampled = time.perf_counter()
    scored = _verified(source.grader or Grader(source.task), problems, policy, responses, size)
    verified = time.perf_counter()
    logp = None
    if source.reference is not None:
        logp = responses.padded(score_all(source.reference, prompts, responses, schedule.temperature).logp)
        scored = replace(scored, kl=charges(recipe.kl, responses, logp).sum(1))
    return Rollouts(
        prompts=prompts,
        problems=[hashlib.sha256(p.prompt.encode()).hexdigest()[:16] for p in problems],
        born=torch.full((len(problems),), updates),
        carried=torch.zeros(len(problems), dtype=torch.bool),
        responses=responses,
        scored=scored,
        reference=logp,
        kept=length.present(recipe.length, responses.truncated),
        rounds=1,
        seconds_sampling=sampled - start,
        seconds_reward=verified - sampled,
    )


def _verified(grader: Grader, problems: Sequence[Problem], policy: Policy, responses: Responses, size: int) -> Scored:
    finished = (~responses.truncated).tolist()
    texts = policy.decode(responses.tokens())
    batch = grader.batch()
    for i, problem in enumerate(problems):
        group = slice(i * size, (i + 1) * size)
        batch.submit(problem, texts[group], finished[group])
    graded = batch.collect()
    verdicts = [verdict for group in graded for verdict in group.verdicts]
    return Scored(
        group=torch.arange(len(problems)).repeat_interleave(size),
        groups=len(problems),
        score=torch.tensor([v.score for v in verdicts], dtype=torch.float64),
        correct=torch.tensor([v.correct for v in verdicts]),
        formatted=torch.tensor([e and v.answer != "" for v, e in zip(verdicts, finished, strict=True)]),
        length=responses.length,
        truncated=responses.truncated,
        kl=torch.zeros(len(verdicts), dtype=torch.float64),
        rewards=torch.tensor([row for g in graded for row in g.rewards], dtype=torch.float64),
        faults=torch.tensor([row for g in graded for row in g.faults], dtype=torch.int8),
    )
