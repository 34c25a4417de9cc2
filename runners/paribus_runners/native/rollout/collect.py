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
from paribus_runners.native.rollout.sampler import Requests, Sampler
from paribus_runners.tasks import Batch, Grader, Problem, Task


@dataclass(frozen=True)
class Source:
    """Where rollouts come from.

    Attributes:
        policy: the policy that samples; its weights change between steps.
        reference: the reference policy of KL or of a loss of pairs; ``None`` if the recipe has neither.
        task: problems.
        seed: seed of the run.
        sampler: samples from the policy.
        grader: verifies responses, and calls the reward functions; by default one without functions.
    """

    policy: Policy
    reference: Policy | None
    task: Task
    seed: int
    sampler: Sampler
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
    spare = recipe.filter.max_surplus if isinstance(recipe.filter, f.RefillAsync) else 0
    parts = [] if waiting is None else [replace(waiting, carried=torch.ones_like(waiting.carried))]
    have = sum(int(good_groups(recipe, p.scored).sum()) for p in parts)
    for round_ in range(limit):
        parts.append(_round(recipe, source, step, round_, updates, wanted + spare - have))
        joined = Rollouts.join(parts)
        good = good_groups(recipe, joined.scored)
        have = int(good.sum())
        if have >= wanted:
            break
    first = good & (good.cumsum(0) <= wanted)
    surplus = None
    if isinstance(recipe.filter, f.RefillAsync):
        chosen = (good & ~first).nonzero().squeeze(1).tolist()[:spare]
        surplus = joined.groups(chosen) if chosen else None
    return Collected(replace(joined, kept=joined.kept & first[joined.scored.group]), surplus)


def _round(recipe: Recipe, source: Source, step: int, round_: int, updates: int, enough: int) -> Rollouts:
    """Sample and verify one round, group by group as they end, at most until ``enough`` groups pass the filter."""
    schedule, policy, place = recipe.schedule, source.policy, (source.seed, "rollout", step, round_)
    problems = source.task.training(source.seed, step, round_, schedule.prompts_per_step)
    prompts = policy.encode([p.prompt for p in problems])
    requests = Requests(prompts, schedule.group_size, schedule.max_new_tokens, schedule.temperature, place)
    parts: list[Rollouts] = []
    done: list[int] = []
    grader = source.grader or Grader(source.task)
    waiting: list[tuple[Sequence[int], Responses, Batch]] = []
    start, verifying = time.perf_counter(), 0.0

    def graded() -> None:
        """Wait for the grades of all groups that were submitted."""
        for places, of_groups, batch in waiting:
            scored = _scored(batch, of_groups)
            groups = [(prompts[i], problems[i]) for i in places]
            parts.append(_unfiltered(recipe, groups, of_groups, scored, updates))
        waiting.clear()

    stream = source.sampler.sample(requests)
    for ended, responses in stream:
        sampled = time.perf_counter()
        waiting.append((ended, responses, _submitted(grader, [problems[i] for i in ended], policy, responses)))
        done += ended
        stop = False
        if len(done) < len(problems) and _may_stop(recipe):
            graded()
            stop = _passed(recipe, parts, done) >= enough
        verifying += time.perf_counter() - sampled
        if stop:
            break  # what a generator had left is not sampled
    sampled = time.perf_counter()
    graded()
    verifying += time.perf_counter() - sampled
    sampling = time.perf_counter() - start - verifying
    joined = Rollouts.join(parts)
    order = sorted(range(len(done)), key=done.__getitem__)
    rollouts = joined if order == list(range(len(done))) else joined.groups(order)
    rollouts = replace(rollouts, rounds=1, seconds_sampling=sampling, seconds_reward=verifying)
    if rollouts.responses.entropy is None and _later_policy(recipe):
        rollouts = _with_entropy(recipe, policy, rollouts)
    return rollouts if source.reference is None else _charged(recipe, source.reference, rollouts)


def _unfiltered(
    recipe: Recipe,
    groups: Sequence[tuple[list[int], Problem]],
    responses: Responses,
    scored: Scored,
    updates: int,
) -> Rollouts:
    return Rollouts(
        prompts=[ids for ids, _ in groups],
        problems=[hashlib.sha256(p.prompt.encode()).hexdigest()[:16] for _, p in groups],
        born=torch.full((len(groups),), updates),
        carried=torch.zeros(len(groups), dtype=torch.bool),
        responses=responses,
        scored=scored,
        reference=None,
        kept=length.present(recipe.length, responses.truncated),
        rounds=0,
        seconds_sampling=0.0,
        seconds_reward=0.0,
    )


def _may_stop(recipe: Recipe) -> bool:
    """Return whether a round may end before all of its groups have, by what is known of those that have."""
    level = recipe.filter
    if not isinstance(level, f.Refill | f.RefillAsync):
        return False
    # there the reward lacks what the reference says, which is computed for a whole round
    return not (level.metric == "reward_std" and recipe.kl.kind == "reward")


def _passed(recipe: Recipe, parts: Sequence[Rollouts], done: Sequence[int]) -> int:
    """Return how many groups pass the filter before the first one that has not ended.

    Groups count in the order of their prompts: those that end first are the shortest, and a step of them alone would
    be biased.
    """
    ended = set(done)
    gap = next(i for i in range(len(done) + 1) if i not in ended)
    good = torch.cat([good_groups(recipe, p.scored) for p in parts])
    return int((good & (torch.tensor(done) < gap)).sum())


def _later_policy(recipe: Recipe) -> bool:
    """Return whether some groups are trained on by a policy that is no more the one that sampled them."""
    return recipe.schedule.staleness > 0 or isinstance(recipe.filter, f.RefillAsync)


def _with_entropy(recipe: Recipe, policy: Policy, rollouts: Rollouts) -> Rollouts:
    """Return the rollouts with the entropies that their sampler did not give, under the policy that sampled."""
    responses = rollouts.responses
    scores = score_all(policy, rollouts.prompts, responses, recipe.schedule.temperature, with_entropy=True)
    return replace(rollouts, responses=replace(responses, entropy=scores.entropy))


def _charged(recipe: Recipe, reference: Policy, rollouts: Rollouts) -> Rollouts:
    """Return the rollouts with their log-probabilities under the reference, and what the reward pays for them."""
    responses, schedule = rollouts.responses, recipe.schedule
    logp = score_all(reference, rollouts.prompts, responses, schedule.temperature).logp
    kl = responses.padded(charges(recipe.kl, responses, logp), schedule.max_new_tokens).sum(1)
    return replace(rollouts, reference=logp, scored=replace(rollouts.scored, kl=kl))


def _submitted(grader: Grader, problems: Sequence[Problem], policy: Policy, responses: Responses) -> Batch:
    """Begin to grade the responses to some problems; workers go on while others are sampled."""
    size, finished = len(responses) // len(problems), (~responses.truncated).tolist()
    texts = policy.decode(responses.tokens())
    batch = grader.batch()
    for i, problem in enumerate(problems):
        group = slice(i * size, (i + 1) * size)
        batch.submit(problem, texts[group], finished[group])
    return batch


def _scored(batch: Batch, responses: Responses) -> Scored:
    """Wait for the grades of a batch, whose responses these are."""
    graded, finished = batch.collect(), (~responses.truncated).tolist()
    verdicts = [verdict for group in graded for verdict in group.verdicts]
    return Scored(
        group=torch.arange(len(graded)).repeat_interleave(len(responses) // len(graded)),
        groups=len(graded),
        score=torch.tensor([v.score for v in verdicts], dtype=torch.float64),
        correct=torch.tensor([v.correct for v in verdicts]),
        formatted=torch.tensor([e and v.answer != "" for v, e in zip(verdicts, finished, strict=True)]),
        length=responses.length,
        truncated=responses.truncated,
        kl=torch.zeros(len(verdicts), dtype=torch.float64),
        rewards=torch.tensor([row for g in graded for row in g.rewards], dtype=torch.float64),
        faults=torch.tensor([row for g in graded for row in g.faults], dtype=torch.int8),
    )
