"""The rollouts of one step: sampling rounds, verification, group filter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import filter as group_filter
from paribus_runners.native.objective import kl, length
from paribus_runners.native.objective.advantage import Scored, shaped_reward
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.responses import Responses
from paribus_runners.native.rollout.torch import sample
from paribus_runners.native.score import reference_logp
from paribus_runners.native.seeds import uniforms
from paribus_runners.native.task import Problem, Task


@dataclass(frozen=True)
class Rollouts:
    """All responses of a step, those that the filter threw away included.

    Attributes:
        prompts: tokens of the prompt of each group.
        responses: N responses, groups one after the other.
        scored: what the verifier said, and all else that rewards are made of.
        reference: [N, M] log-probabilities under the reference; ``None`` without KL.
        kept: [N] which responses take part in the baseline: their group passed the filter, they were not dropped.
        rounds: sampling rounds.
        seconds_sampling: seconds spent in sampling.
        seconds_reward: seconds spent in verification.
    """

    prompts: list[list[int]]
    responses: Responses
    scored: Scored
    reference: Tensor | None
    kept: Tensor
    rounds: int
    seconds_sampling: float
    seconds_reward: float


def collect(recipe: Recipe, policy: Policy, reference: Policy | None, task: Task, seed: int, step: int) -> Rollouts:
    """Sample and verify until the filter is content, or its sampling rounds are used up.

    With ``refill`` the first ``prompts_per_step`` groups with spread are kept and the surplus is thrown away; when the
    rounds are used up, the step trains on the groups that there are.
    """
    wanted = recipe.schedule.prompts_per_step
    limit = recipe.filter.max_generation_batches if isinstance(recipe.filter, f.Refill) else 1
    parts: list[Rollouts] = []
    found = 0
    while not parts or (found < wanted and len(parts) < limit):
        part = _round(recipe, policy, reference, task, seed, step, len(parts))
        good = _good_groups(recipe, part.scored)
        good &= good.cumsum(0) <= wanted - found
        found += int(good.sum())
        parts.append(replace(part, kept=part.kept & good[part.scored.group]))
    return _join(parts)


def _round(
    recipe: Recipe, policy: Policy, reference: Policy | None, task: Task, seed: int, step: int, round_: int
) -> Rollouts:
    size, schedule = recipe.schedule.group_size, recipe.schedule
    start = time.perf_counter()
    problems = task.training(seed, step, round_, schedule.prompts_per_step)
    prompts = policy.encode([p.prompt for p in problems])
    numbers = uniforms(len(problems) * size, schedule.max_new_tokens, seed, "rollout", step, round_)
    responses = sample(policy, prompts, size, numbers, schedule.temperature)
    sampled = time.perf_counter()
    score, correct = _verify(task, problems, policy, responses, size)
    verified = time.perf_counter()
    logp = reference_logp(reference, prompts, responses, schedule.temperature) if reference else None
    return Rollouts(
        prompts=prompts,
        responses=responses,
        scored=Scored(
            group=torch.arange(len(problems)).repeat_interleave(size),
            groups=len(problems),
            score=score,
            correct=correct,
            length=responses.length,
            truncated=responses.truncated,
            kl=_kl(recipe, responses, logp),
        ),
        reference=logp,
        kept=length.present(recipe.length, responses.truncated),
        rounds=1,
        seconds_sampling=sampled - start,
        seconds_reward=verified - sampled,
    )


def _verify(
    task: Task, problems: Sequence[Problem], policy: Policy, responses: Responses, size: int
) -> tuple[Tensor, Tensor]:
    finished = (~responses.truncated).tolist()
    texts = policy.decode(responses.tokens())
    verdicts = [task.verify(problems[i // size], t, e) for i, (t, e) in enumerate(zip(texts, finished, strict=True))]
    score = torch.tensor([v.score for v in verdicts], dtype=torch.float64)
    return score, torch.tensor([v.correct for v in verdicts])


def _kl(recipe: Recipe, responses: Responses, reference: Tensor | None) -> Tensor:
    rows = len(responses)
    if reference is None:
        return torch.zeros(rows, dtype=torch.float64)
    mask = responses.mask
    row = torch.arange(rows)[:, None].expand_as(mask)[mask]
    return kl.in_reward(recipe.kl, responses.logp[mask].double(), reference[mask].double(), row, rows)


def _good_groups(recipe: Recipe, scored: Scored) -> Tensor:
    there = length.present(recipe.length, scored.truncated)
    shaped = shaped_reward(recipe, scored)
    return group_filter.keep(recipe.filter, scored.correct[there], shaped[there], scored.group[there], scored.groups)


def _join(parts: Sequence[Rollouts]) -> Rollouts:
    offsets = [sum(p.scored.groups for p in parts[:i]) for i in range(len(parts))]
    fields = ("score", "correct", "length", "truncated", "kl")
    scored = Scored(
        group=torch.cat([p.scored.group + o for p, o in zip(parts, offsets, strict=True)]),
        groups=sum(p.scored.groups for p in parts),
        **{name: torch.cat([getattr(p.scored, name) for p in parts]) for name in fields},
    )
    references = [p.reference for p in parts if p.reference is not None]
    return Rollouts(
        prompts=[x for p in parts for x in p.prompts],
        responses=Responses.concat([p.responses for p in parts]),
        scored=scored,
        reference=torch.cat(references) if references else None,
        kept=torch.cat([p.kept for p in parts]),
        rounds=len(parts),
        seconds_sampling=sum(p.seconds_sampling for p in parts),
        seconds_reward=sum(p.seconds_reward for p in parts),
    )
