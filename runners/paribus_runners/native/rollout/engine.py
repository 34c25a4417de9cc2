"""Which sampler a recipe asks for."""

from __future__ import annotations

from collections.abc import Callable

from paribus.recipe.recipe import Recipe
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.proof import Bounds, ProvenSampler
from paribus_runners.native.rollout.sampler import Requests, Sampler
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.world import World
from paribus_runners.tasks import Task

PROMPTS, COPIES, ROOM = 4, 4, 8
"""What is sampled to prove that the sampler has the weights: prompts, responses to each, tokens of a response."""


def sampler_of(
    recipe: Recipe, policy: Policy, task: Task, seed: int, check: Callable[[], None], world: World
) -> Sampler:
    """Return the sampler of a recipe.

    Args:
        recipe: its rollout, model and schedule.
        policy: what is sampled from.
        task: whose problems the proof samples.
        seed: seed of the run.
        check: called between the tokens of a sampler that does not call our modules; may raise.
        world: the processes of the run, each of which has a sampler.

    Raises:
        MissingExtra: the sampler is not installed.
        RunnerError: it cannot run the model.
    """
    if recipe.rollout.engine == "torch" or not world.samples:  # it takes no memory where it is not called
        return TorchSampler(policy, check)
    from paribus_runners.native.rollout.vllm import VllmSampler, dtype_of  # of an environment of its own

    schedule = recipe.schedule
    problems = task.training(seed, 0, 0, PROMPTS)  # training begins with step 1
    prompts = policy.encode([problem.prompt for problem in problems])
    room = min(ROOM, schedule.max_new_tokens)
    probe = Requests(prompts, COPIES, room, schedule.temperature, (seed, "proof"))
    bounds = Bounds.of(policy.dtype, dtype_of(policy, recipe.rollout))
    return ProvenSampler(VllmSampler(policy, recipe.rollout, check, world), policy, probe, bounds)
