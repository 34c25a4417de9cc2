"""Collecting the rollouts of one step: sampling rounds, verification, group filter."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.native.objective.filter import good_groups, present
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.conversation import conversation
from paribus_runners.native.rollout.retired import Retired, identity
from paribus_runners.native.rollout.rollouts import Rollouts, charges
from paribus_runners.native.rollout.sampler import Finished, Requests, Sampler
from paribus_runners.native.rollout.step_ends import step_rewards
from paribus_runners.native.world import World
from paribus_runners.tasks import Batch, Grader, Problem, Task, size_of


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
        world: the processes that share the work.
    """

    policy: Policy
    reference: Policy | None
    task: Task
    seed: int
    sampler: Sampler
    grader: Grader | None = None
    world: World = field(default_factory=World)


class Collected(NamedTuple):
    """The rollouts of a step, surplus groups for the next step, and which prompts are left out from now on."""

    rollouts: Rollouts
    surplus: Rollouts | None
    retired: Retired


def collect(
    recipe: Recipe,
    source: Source,
    step: int,
    updates: int = 0,
    waiting: Rollouts | None = None,
    retired: Retired | None = None,
) -> Collected:
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
        retired: prompts that are left out. What this step finds out counts from the next one on.

    Raises:
        AllRetired: ``schedule.retire_at`` has left no problem.
    """
    known = retired or Retired()
    wanted = recipe.schedule.prompts_per_step
    limit = recipe.filter.max_generation_batches if isinstance(recipe.filter, f.Refill | f.RefillAsync) else 1
    spare = recipe.filter.max_surplus if isinstance(recipe.filter, f.RefillAsync) else 0
    parts = [] if waiting is None else [replace(waiting, carried=torch.ones_like(waiting.carried))]
    have = sum(int(good_groups(recipe, p.scored).sum()) for p in parts)
    for round_ in range(limit):
        problems, known = _problems(recipe, source, step, round_, known)
        parts.append(_round(recipe, source, step, round_, updates, wanted + spare - have, problems))
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
    if recipe.schedule.retire_at is not None:
        known = known.after(joined, recipe.schedule.retire_at)
    return Collected(replace(joined, kept=joined.kept & first[joined.scored.group]), surplus, known)


def _problems(
    recipe: Recipe, source: Source, step: int, round_: int, known: Retired
) -> tuple[Sequence[Problem], Retired]:
    """Return the problems of a round, and how far the walk through them is; pretraining leaves none out."""
    wanted = recipe.schedule.prompts_per_step
    if recipe.schedule.retire_at is None or size_of(source.task) is None or step < 0:
        return source.task.training(source.seed, step, round_, wanted), known
    return known.problems(source.task, source.seed, step, round_, wanted)


def _round(
    recipe: Recipe, source: Source, step: int, round_: int, updates: int, enough: int, problems: Sequence[Problem]
) -> Rollouts:
    """Sample and verify one round, group by group as they end, at most until ``enough`` groups pass the filter."""
    schedule, world = recipe.schedule, source.world
    share = _Share(recipe, source, problems, updates)
    requests = Requests(
        share.prompts,
        schedule.group_size,
        schedule.max_new_tokens,
        schedule.temperature,
        (source.seed, "rollout", step, round_),
        schedule.top_p,
        places=share.places,
        top_k=schedule.top_k,
        with_support=True,
        turns=share.conversation,
        with_experts=recipe.rollout.routing_replay == "sampler",
    )
    start = time.perf_counter()
    stream = source.sampler.sample(requests) if share.places else iter(())
    if _may_stop(recipe, source.sampler):
        while True:
            if (finished := next(stream, None)) is not None:
                share.submit(finished)
                if not finished.may_leave:
                    continue
            ended = {place: good for found in world.gather(share.passed()) for place, good in found.items()}
            if len(ended) == len(problems) or _before_the_first_gap(ended) >= enough:
                break  # what a generator had left is not sampled
    else:
        for finished in stream:
            share.submit(finished)
    share.grade()
    sampling = time.perf_counter() - start - share.seconds
    every = world.gather((share.done, share.rollouts(), sampling, share.seconds))
    rollouts = _in_order(
        [place for done, *_ in every for place in done], Rollouts.join([r for _, r, *_ in every if r is not None])
    )
    return replace(
        rollouts, rounds=1, seconds_sampling=max(x[2] for x in every), seconds_reward=max(x[3] for x in every)
    )


class _Share:
    """The groups of a round that this process samples, as they end and are graded.

    Attributes:
        places: which of the problems they are for.
        prompts: the tokens of their prompts.
        done: the places of those that have ended, in the order in which they did.
        conversation: what answers turns of the model; ``None``: nothing does.
        seconds: time spent in verification so far.
    """

    def __init__(self, recipe: Recipe, source: Source, problems: Sequence[Problem], updates: int) -> None:
        self.places = source.world.turns(len(problems))
        self.prompts = source.policy.encode([problems[i].prompt for i in self.places])
        self.done: list[int] = []
        self.seconds = 0.0
        self._recipe, self._source, self._problems, self._updates = recipe, source, problems, updates
        self._grader = source.grader or Grader(source.task)
        environment = self._grader.environment
        assert (environment is None) == (recipe.turns.kind == "single")
        self.conversation = conversation(environment, source.policy, [problems[i] for i in self.places])
        self._waiting: list[tuple[Finished, Batch]] = []
        self._parts: list[Rollouts] = []

    def submit(self, finished: Finished) -> None:
        """Begin to grade groups; workers go on while others are sampled."""
        if not finished.prompts:
            return
        start = time.perf_counter()
        places = [self.places[i] for i in finished.prompts]
        problems = [self._problems[place] for place in places]
        self._waiting.append((finished, _submitted(self._grader, problems, self._source.policy, finished.responses)))
        self.done += places
        self.seconds += time.perf_counter() - start

    def grade(self) -> None:
        """Wait for the grades of all groups that were submitted."""
        start, policy, world = time.perf_counter(), self._source.policy, self._source.world
        for finished, batch in self._waiting:
            with world.phases.within("reward"):
                scored, steps = _scored(self._recipe, batch, policy, finished.responses, world)
            groups = [(self.prompts[i], self._problems[self.places[i]]) for i in finished.prompts]
            part = _unfiltered(self._recipe, groups, finished.responses, scored, self._updates)
            self._parts.append(replace(part, steps=steps))
        self._waiting.clear()
        self.seconds += time.perf_counter() - start

    def passed(self) -> dict[int, bool]:
        """Return whether each group that has ended passes the filter, by its place; waits for their grades."""
        self.grade()
        good = [x for part in self._parts for x in good_groups(self._recipe, part.scored).tolist()]
        return dict(zip(self.done, good, strict=True))

    def rollouts(self) -> Rollouts | None:
        """Return what was sampled in the order of the problems, with all that forward passes add; ``None`` if empty."""
        if not self._parts:
            return None
        recipe, source = self._recipe, self._source
        rollouts = _in_order(self.done, Rollouts.join(self._parts))
        self.done.sort()
        if rollouts.responses.entropy is None and _later_policy(recipe):
            rollouts = _with_entropy(recipe, source.policy, rollouts)
        return rollouts if source.reference is None else _charged(recipe, source.reference, rollouts)


def _in_order(places: Sequence[int], rollouts: Rollouts) -> Rollouts:
    """Return the groups in the order of their ``places``."""
    order = sorted(range(len(places)), key=places.__getitem__)
    return rollouts if order == list(range(len(places))) else rollouts.groups(order)


def _unfiltered(
    recipe: Recipe,
    groups: Sequence[tuple[list[int], Problem]],
    responses: Responses,
    scored: Scored,
    updates: int,
) -> Rollouts:
    return Rollouts(
        prompts=[ids for ids, _ in groups],
        problems=[identity(p) for _, p in groups],
        born=torch.full((len(groups),), updates),
        carried=torch.zeros(len(groups), dtype=torch.bool),
        responses=responses,
        scored=scored,
        reference=None,
        kept=present(recipe, scored),
        rounds=0,
        seconds_sampling=0.0,
        seconds_reward=0.0,
    )


def _may_stop(recipe: Recipe, sampler: Sampler) -> bool:
    """Return whether a round may end before all of its groups have, by what is known of those that have."""
    level = recipe.filter
    if sampler.all_at_once or not isinstance(level, f.Refill | f.RefillAsync):
        return False
    # there the reward lacks what the reference says, which is computed for a whole round
    return not (level.metric == "reward_std" and recipe.kl.kind == "reward")


def _before_the_first_gap(ended: Mapping[int, bool]) -> int:
    """Return how many groups pass the filter before the first one that has not ended.

    Groups count in the order of their prompts: those that end first are the shortest, and a step of them alone would
    be biased.

    Args:
        ended: place to whether it passes, of the groups that have ended.
    """
    gap = next(place for place in count() if place not in ended)
    return sum(ended[place] for place in range(gap))


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


def _scored(
    recipe: Recipe, batch: Batch, policy: Policy, responses: Responses, world: World
) -> tuple[Scored, Tensor | None]:
    """Wait for the grades of a batch, whose responses these are.

    Returns also the rewards of steps, as :class:`.rollouts.Rollouts` has them.
    """
    graded = batch.collect(world.phases.progress, world.while_waiting)
    finished = (~responses.truncated).tolist()
    verdicts = [verdict for group in graded for verdict in group.verdicts]
    steps = None
    if any(x.unit == "step" for x in recipe.reward.functions.values()):
        steps = step_rewards(policy, responses, [row for group in graded for row in group.steps])
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
    ), steps
