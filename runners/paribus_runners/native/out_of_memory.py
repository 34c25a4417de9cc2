"""What a run says when it finds no memory, and a rehearsal that lets it say so before it has trained for hours.

Responses grow while a model learns, so a run may fit for a thousand steps and then not. The sampler on a GPU takes the
room of the longest responses from its first pass. The passes before and in an update take what the responses need, so
before its first update a run makes the largest one that its limits allow, and forgets it.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil

import torch

from paribus.contract import RunPhase
from paribus.errors import RunnerError
from paribus.recipe.recipe import Recipe
from paribus.recipe.turns import FunctionTurns
from paribus.run_folder.phases import Phases
from paribus_runners.native.learner import Learner
from paribus_runners.native.log_probabilities import BUDGET, score
from paribus_runners.native.rollout.rollouts import Rollouts

WORDS: Mapping[RunPhase, str] = {
    "start": "while it loaded",
    "rollout": "while it sampled responses",
    "reward": "while it waited for rewards",
    "old_pass": "in the pass before its updates",
    "update": "in an update",
    "sync": "while it handed its weights to the sampler",
    "evaluation": "in an evaluation",
    "checkpoint": "while it saved a checkpoint",
}


@contextmanager
def named(phases: Phases, recipe: Recipe) -> Iterator[None]:
    """Name the phase and what helps if there is no memory inside.

    Args:
        phases: what this process is doing.
        recipe: what it trains, to name what is not yet set.

    Raises:
        RunnerError: there was no memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        wanted = _wanted(error)
        if wanted is None:
            raise
        raise RunnerError(text(*phases.now, wanted, recipe)) from error


def text(phase: RunPhase, step: int, wanted: str, recipe: Recipe) -> str:
    """Return what is said of a run without memory: where, how much was asked for, and what helps."""
    where = f"{WORDS[phase]} at step {step}" if step else WORDS[phase]
    helps = ", ".join(_remedies(phase, recipe))
    return f"out of memory {where}{wanted}. What helps: {helps}. `paribus plan` predicts the peak of each phase."


def _wanted(error: BaseException) -> str | None:
    """Return how much an allocation asked for, in words, empty if it does not say; ``None``: it was none."""
    message = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        found = re.search(r"Tried to allocate ([\d.]+ [KMG]iB)", message)
        return f": it asked for {found[1]} more" if found else ""
    if isinstance(error, MemoryError) or "CUBLAS_STATUS_ALLOC_FAILED" in message:
        return ""
    found = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", message)
    return f": it asked for {int(found[1]) / 2**20:,.0f} MiB more" if found else None


def _remedies(phase: RunPhase, recipe: Recipe) -> Iterator[str]:
    """Yield what makes the peak of a phase smaller and is not set yet."""
    model, compute, schedule = recipe.model, recipe.compute, recipe.schedule
    if phase in ("update", "old_pass"):
        if phase == "update" and not compute.gradient_checkpointing:
            yield "`compute.gradient_checkpointing: true`"
        if phase == "update" and "optimizer" not in compute.offload:
            yield "`compute.offload: [optimizer]`"
        if compute.head == "torch":
            yield "`compute.head: triton` on a GPU"
    if phase in ("rollout", "evaluation") and recipe.rollout.engine == "torch":
        yield "`rollout.engine: vllm`"
    if model.dtype == "float32":
        yield "`model.dtype: bfloat16`"
    if model.lora is None and phase in ("start", "update", "sync", "checkpoint"):
        yield "`model.lora`"
    if phase == "evaluation":
        yield "fewer `evaluate.problems` or `samples`, or a lower `max_new_tokens` of the set"
    else:
        yield f"a lower `schedule.max_new_tokens` (now {schedule.max_new_tokens:,})"
    if phase == "rollout":
        yield "a smaller `schedule.prompts_per_step` or `group_size`"


def is_limited(device: torch.device) -> bool:
    """Return whether memory ends where a run can notice it: on a GPU, and on a CPU under `ulimit -v`."""
    return device.type == "cuda" or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def rehearse(recipe: Recipe, learner: Learner, rollouts: Rollouts) -> None:
    """Make the largest pass that an update can have, forward and backward, and free what it has made.

    All responses reach the limit, and the moments of the optimizer are there. No weight and no random number changes.

    Args:
        recipe: gives the limits.
        learner: the networks.
        rollouts: the first ones, whose longest prompt counts.
    """
    prompts, texts = _longest(recipe, learner, max(rollouts.prompts, key=len))
    temperature, with_entropy = recipe.schedule.temperature, recipe.auxiliary.entropy != 0
    optimizers = [each for each in (learner.optimizer, learner.critic_optimizer) if each is not None]
    with learner.sharded():
        held = [each.room() for each in optimizers]
        found = score(learner.policy, prompts, texts, temperature, with_entropy=with_entropy, accumulate=True)
        (found.logp.sum() * 0).backward()  # type: ignore[no-untyped-call]
        del found
        if learner.critic is not None:
            (learner.critic.values(prompts, texts).sum() * 0).backward()  # type: ignore[no-untyped-call]
        del held
        for each in optimizers:
            each.zero()


def _longest(recipe: Recipe, learner: Learner, prompt: list[int]) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Return prompts and responses of a process's largest pass in an update."""
    policy, schedule = learner.policy, recipe.schedule
    given = recipe.turns.room if isinstance(recipe.turns, FunctionTurns) else 0
    length, size = schedule.max_new_tokens + given, schedule.group_size
    responses = ceil(schedule.prompts_per_step * size / schedule.minibatches / learner.world.size)
    fit = BUDGET[policy.device.type] // max(1, length - 1 + len(prompt) // size)
    count, response = max(1, min(responses, fit)), [policy.ends[0]] * length
    texts = [[response] * min(size, count - first) for first in range(0, count, size)]
    return [prompt] * len(texts), texts
