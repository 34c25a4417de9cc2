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
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.update import together, without_tokens

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


NO_MEMORY = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "ALLOC_FAILED",
    "Failed to CUDA calloc",
    "Failed to CUDA malloc",
)
"""What libraries say that ask for memory beside PyTorch's allocator."""


@contextmanager
def named(phases: Phases, recipe: Recipe, device: str) -> Iterator[None]:
    """Name the phase and what helps if there is no memory inside.

    Args:
        phases: what this process is doing.
        recipe: what it trains, to name what is not yet set.
        device: where it does so, ``cpu`` or ``cuda``.

    Raises:
        RunnerError: there was no memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        wanted = _wanted(error)
        if wanted is None:
            raise
        raise RunnerError(text(*phases.now, wanted, recipe, device)) from error


def text(phase: RunPhase, step: int, wanted: str, recipe: Recipe, device: str) -> str:
    """Return what is said of a run without memory: where, how much was asked for, and what helps."""
    where = f"{WORDS[phase]} at step {step}" if step else WORDS[phase]
    helps = ", ".join(_remedies(phase, recipe, device))
    return f"out of memory {where}{wanted}. What helps: {helps}. `paribus plan` predicts the peak of each phase."


def _wanted(error: BaseException) -> str | None:
    """Return how much an allocation asked for, in words, empty if it does not say; ``None``: it was none."""
    message = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        found = re.search(r"Tried to allocate ([\d.]+ [KMG]iB)", message)
        return f": it asked for {found[1]} more" if found else ""
    if isinstance(error, MemoryError) or any(words in message for words in NO_MEMORY):
        return ""
    found = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", message)
    return f": it asked for {int(found[1]) / 2**20:,.0f} MiB more" if found else None


def _remedies(phase: RunPhase, recipe: Recipe, device: str) -> list[str]:
    """Return what makes the peak of a phase smaller and is not set yet."""
    model, compute, gpu = recipe.model, recipe.compute, device == "cuda"
    limit = f"a lower `schedule.max_new_tokens` (now {recipe.schedule.max_new_tokens:,})"
    wide = model.lora is None and model.trained_dtype == "float32"
    sampling = gpu and recipe.rollout.engine == "torch"
    every: list[tuple[str, bool, tuple[RunPhase, ...]]] = [
        ("`compute.gradient_checkpointing: true`", not compute.gradient_checkpointing, ("update",)),
        ("`optimizer` in `compute.offload`", gpu and "optimizer" not in compute.offload, ("update",)),
        ("`compute.sharding` on several GPUs", gpu and compute.sharding == "none", ("update",)),
        ("`compute.head: triton`", gpu and compute.head == "torch", ("old_pass", "update")),
        ("`rollout.engine: vllm`", sampling, ("rollout", "evaluation")),
        ("`model.dtype: bfloat16`", model.dtype == "float32", ("rollout", "old_pass", "update", "evaluation")),
        ("`model.trained_dtype: bfloat16`", wide, ("start", "update", "sync", "checkpoint")),
        ("`model.lora`", model.lora is None, ("start", "update")),
        (limit, True, ("rollout", "old_pass", "update")),
        ("a smaller `schedule.prompts_per_step` or `group_size`", True, ("rollout",)),
        ("fewer `evaluate.problems` or `samples`, or a lower `max_new_tokens` of the set", True, ("evaluation",)),
        ("a smaller model", True, (phase,)),
    ]
    return [words for words, free, phases in every if free and phase in phases]


def is_limited(device: torch.device) -> bool:
    """Return whether memory ends where a run can notice it: on a GPU, and on a CPU under `ulimit -v`."""
    return device.type == "cuda" or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def rehearse(recipe: Recipe, learner: Learner, rollouts: Rollouts) -> None:
    """Make the largest pass that an update of the policy can have, forward and backward, and free what it has made.

    Responses are as long as they may be. What else is there in such a pass is there as well: gradients of passes before
    and of the critic, and the moments of the optimizers. No weight and no random number changes.

    Args:
        recipe: gives the limits.
        learner: the networks.
        rollouts: the first ones, whose longest prompt counts.
    """
    policy, prompt = learner.policy, max(rollouts.prompts, key=len)
    prompts, texts, several = _longest(recipe, prompt, policy.at_once.tokens_a_pass, learner.world.size)
    optimizers = [each for each in (learner.optimizer, learner.critic_optimizer) if each is not None]
    with learner.sharded():
        held = [each.room() for each in optimizers]
        if learner.critic is not None:
            (learner.critic.values(prompts, texts).sum() * 0).backward()  # type: ignore[no-untyped-call]
        if several:
            without_tokens(policy).backward()  # type: ignore[no-untyped-call]
        entropy = recipe.auxiliary.entropy != 0
        found = score(policy, prompts, texts, recipe.schedule.temperature, with_entropy=entropy, accumulate=True)
        total = found.logp.sum() if found.entropy is None else found.logp.sum() + found.entropy.sum()
        (total * 0).backward()  # type: ignore[no-untyped-call]
        del held
        for each in optimizers:
            each.zero()


def _longest(
    recipe: Recipe, prompt: list[int], budget: int, processes: int
) -> tuple[list[list[int]], list[list[list[int]]], bool]:
    """Return prompts and responses of a process's largest pass in an update, and whether there are other passes."""
    schedule, size, unit = recipe.schedule, recipe.schedule.group_size, together(recipe)
    length = schedule.max_new_tokens + (recipe.turns.room if isinstance(recipe.turns, FunctionTurns) else 0)
    size = size if unit == 1 else unit  # of a pair's group the others are left out
    units = ceil(ceil(schedule.prompts_per_step / schedule.minibatches) * size / unit / processes)
    rest, groups = budget, list[list[int]]()
    for _ in range(units):
        new = not groups or len(groups[-1]) + unit > size
        own, shared = unit * (length - 1), len(prompt) if new else 0
        full = bool(groups) and own + shared > rest
        if full and rest <= shared:
            break
        groups += [[]] if new else []
        groups[-1] += [rest - shared + 1] if full else [length] * unit  # a shorter one fills the pass
        if full:
            break
        rest -= own + shared
    several = sum(map(sum, groups)) < units * unit * length
    return [prompt] * len(groups), [[[prompt[0]] * n for n in group] for group in groups], several
