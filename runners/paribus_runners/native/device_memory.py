"""How much a run computes at once on its device, by the arithmetic that a plan prints (:mod:`.memory`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import cast

import torch

from paribus.contract import Job
from paribus.evaluate import HELDOUT, Evaluate
from paribus.recipe.recipe import Recipe
from paribus.recipe.turns import FunctionTurns
from paribus_runners.native.held import FULL, Held
from paribus_runners.native.limits import USUAL, Device, Limits, in_words, usable
from paribus_runners.native.memory import Architecture, Phases
from paribus_runners.native.policy import Policy
from paribus_runners.native.world import World
from paribus_runners.tasks import Task, size_of

log = logging.getLogger(__name__)

BATCH = 10_000
"""Prompts whose tokens are counted at one time."""


def room_on(device: torch.device, gpus: float) -> int | None:
    """Return the bytes of a device that a run may fill; ``None`` on a CPU, whose memory is not for the run alone.

    Args:
        device: where it trains.
        gpus: GPUs of the run; below 1 it has that part of one.
    """
    if device.type != "cuda":
        return None
    part = gpus if 0 < gpus < 1 else 1.0
    return usable(int(torch.cuda.get_device_properties(device).total_memory * part))


def limits_of(
    job: Job, policy: Policy, reference: Policy | None, tasks: Mapping[str, Task], world: World
) -> Limits | None:
    """Return how much all processes of a run compute at once, the same for each; ``None``: the usual.

    Args:
        job: what is trained.
        policy: the initial policy, on its device.
        reference: another model as the reference, on the same device.
        tasks: the problems of each evaluation set, by its name; those of :data:`HELDOUT` are trained on, too.
        world: the processes, all of which must call.
    """
    recipe, room = job.recipe, room_on(policy.device, job.gpus)
    model = Architecture.of(policy.model.config.to_dict())
    found, own = None, None if reference is None else sum(p.nbytes for p in reference.model.parameters())
    other = next((size for size in world.gather_all(own) if size is not None), None)  # who only trains has none
    if room is not None and model is not None:
        answers = recipe.turns.room if isinstance(recipe.turns, FunctionTurns) else 0
        prompt = _longest(policy, _prompts(job, tasks)) + answers
        held, device = _held(recipe, policy, other, world), cast("Device", policy.device.type)
        phases = Phases(model=model, held=held, recipe=recipe, prompt=prompt, device=device)
        found = phases.fitting(job.evaluate, room)
    every = [each for each in world.gather_all(None if found is None else found.at_once) if each is not None]
    if found is None or room is None or len(every) < world.everyone:
        return None
    limits = Limits(
        responses_at_a_time=min(each.responses_at_a_time for each in every),
        tokens_a_pass=min(each.tokens_a_pass for each in every),
    )
    if world.writes:
        _say(replace(found, limits=limits), job.evaluate, room)
    return limits


def _say(phases: Phases, evaluate: Evaluate, room: int) -> None:
    """Log what is less than usual, and which phase may still find no memory."""
    name, peak = phases.largest(evaluate)
    if phases.limits != USUAL[phases.device]:
        log.info("%s of GPU memory may be used: %s", in_words(room), phases.about())
    if peak > room:
        log.warning("%s may find no memory: it is computed to take %s, and %s may be used",
                    name, in_words(peak), in_words(room))  # fmt: skip


def _held(recipe: Recipe, policy: Policy, other: int | None, world: World) -> Held:
    """Return what one of the processes that train holds."""
    numbers, trained = (sum(p.numel() for p in each) for each in (policy.model.parameters(), policy.trained))
    adapters = recipe.model.lora is not None
    frozen = next((p.element_size() for p in policy.model.parameters() if not p.requires_grad), FULL)
    return Held(
        weights=numbers - trained if adapters else numbers,
        trained=trained,
        frozen=frozen,
        inside=not adapters and trained < numbers,
        processes=world.everyone - recipe.compute.sampling_processes,
        other=other,
    )


def _prompts(job: Job, tasks: Mapping[str, Task]) -> Iterator[str]:
    """Yield the prompts of a run; of problems without end those of a step."""
    task = tasks[HELDOUT]
    size = size_of(task) or job.recipe.schedule.prompts_per_step
    part = min(size, BATCH)
    for step in range(1, ceil(size / part) + 1):  # these go through all problems once
        for problem in task.training(job.seed, step, 0, part):
            yield problem.prompt
    for name, chosen in job.evaluate.all_sets.items():
        for problem in tasks.get(name, task).heldout(chosen.problems):
            yield problem.prompt


def _longest(policy: Policy, prompts: Iterator[str]) -> int:
    """Return the tokens of the longest prompt."""
    found = 0
    while part := list(islice(prompts, BATCH)):
        found = max(found, *map(len, policy.encode(part)))
    return found
