"""Speed and peak memory of an update of the native runner, predicted and measured.

    PYTHONPATH=benchmarks python -m gpu.update [--out FOLDER] [--minutes N] [--tiny]

An update is what a run makes of its rollouts: advantages, the loss with its backward pass, the clip of the gradient,
and the optimizer's step. The rollouts are drawn: log-normal lengths for the speed; for the memory all responses reach
the limit, because that is what `paribus_runners.native.memory` predicts. On a CPU the memory is that of the process, so
it needs glibc to give back what is freed: the script starts itself again with the settings for that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from phase_memory import RETURNS

from gpu import cases
from gpu.measure import (
    GIB,
    Report,
    Values,
    clean,
    is_out_of_memory,
    need_kernels,
    options_of,
    parser_of,
    peak,
    product_peak,
    seconds,
)
from gpu.models import configuration, lengths, policy_of, texts
from paribus.evaluate import Evaluate
from paribus.recipe.compute import Compute
from paribus.recipe.factors import Schedule
from paribus.recipe.recipe import Lora, Model, Optimizer, Recipe
from paribus_runners.native.experience import weigh
from paribus_runners.native.held import Held
from paribus_runners.native.learner import Learner
from paribus_runners.native.memory import Architecture, Phases
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.native.policy import best_device
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.update import updates

FULL, ADAPTERS = 6, 4
"""Floating-point operations for each multiplied parameter and token: two forward, two for the gradient of what went in,
two for that of the weight, which adapters spare."""


def recipe_of(case: cases.Update, prompts: int) -> Recipe:
    """Return a recipe of one update on so many groups."""
    schedule = Schedule(
        prompts_per_step=prompts, group_size=case.copies, minibatches=1, max_new_tokens=case.room, steps=1
    )
    dtype = "bfloat16" if torch.cuda.is_available() or case.half else "float32"
    trained = "bfloat16" if case.half else "float32"
    return Recipe(
        model=Model(dtype=dtype, trained_dtype=trained, lora=Lora() if case.lora else None),
        optimizer=Optimizer(learning_rate=1e-6),
        schedule=schedule,
        compute=Compute(
            gradient_checkpointing=case.again,
            offload=("optimizer",) if case.half else (),
            head="triton" if case.triton else "torch",
        ),
    )


def rollouts_of(case: cases.Update, sizes: Sequence[int], vocabulary: int) -> Rollouts:
    """Return rollouts of random tokens in these lengths, half of the responses correct."""
    groups, n, tokens = len(sizes) // case.copies, len(sizes), sum(sizes)
    length = torch.tensor(sizes)
    flat = torch.tensor([token for text in texts(sizes, vocabulary) for token in text])
    level = torch.full((tokens,), float(torch.tensor(float(vocabulary)).log()))
    responses = Responses(flat, -level, level, length, length == case.room)
    correct = torch.rand(n, generator=torch.Generator().manual_seed(0)) < 0.5
    scored = Scored(
        group=torch.arange(groups).repeat_interleave(case.copies),
        groups=groups,
        score=correct.double(),
        correct=correct,
        formatted=correct,
        length=length,
        truncated=responses.truncated,
        kl=torch.zeros(n, dtype=torch.float64),
    )
    return Rollouts(
        prompts=texts([case.prompt] * groups, vocabulary, seed=1),
        problems=[f"p{i}" for i in range(groups)],
        born=torch.zeros(groups),
        carried=torch.zeros(groups, dtype=torch.bool),
        responses=responses,
        scored=scored,
        reference=None,
        kept=torch.ones(n, dtype=torch.bool),
        rounds=1,
        seconds_sampling=0.0,
        seconds_reward=0.0,
    )


def ragged(case: cases.Update) -> list[int]:
    """Return log-normal lengths of as many groups as have no more tokens than the case, prompts included."""
    drawn = lengths(1000 * case.copies, case.room * 0.3, case.room)
    groups = [drawn[i : i + case.copies] for i in range(0, len(drawn), case.copies)]
    fit = sum(total <= case.tokens for total in accumulate(case.prompt + sum(group) for group in groups))
    return [size for group in groups[: max(1, fit)] for size in group]


@dataclass(frozen=True)
class Trained:
    """A learner, and the count of its parameters: all, those that are trained, and those that are multiplied.

    ``on_device`` says whether what the optimizer holds is there, and not in host memory.
    """

    learner: Learner
    numbers: int
    trained: int
    multiplied: int
    on_device: bool

    @classmethod
    def of(cls, case: cases.Update) -> Trained:
        """Return the learner of a case, with a model of random weights."""
        recipe = recipe_of(case, case.prompts)
        policy = policy_of(
            case.size, recipe.model.dtype, trained=recipe.model.trained_dtype, adapters=recipe.model.lora,
            again=case.again, triton=case.triton,
        )  # fmt: skip
        trained = sum(p.numel() for p in policy.trained)
        numbers = sum(p.numel() for p in policy.model.parameters()) - (trained if case.lora else 0)
        words = policy.model.get_input_embeddings().weight
        tied = words is policy.model.get_output_embeddings().weight
        multiplied = numbers - (0 if tied else words.numel())
        return cls(Learner.of(recipe, policy), numbers, trained, multiplied, not case.half)

    def update(self, case: cases.Update, rollouts: Rollouts) -> None:
        """Update once, as a step does that has sampled these rollouts."""
        recipe = recipe_of(case, len(rollouts.prompts))
        updates(recipe, self.learner, weigh(recipe, rollouts), 0, 1)

    @property
    def held(self) -> int:
        """Bytes of weights, gradients and moments that are on the device now."""
        learner = self.learner
        optimizer = learner.optimizer.state().values() if self.on_device else ()
        tensors = [*learner.policy.model.parameters(), *learner.optimizer.gradients, *optimizer]
        return sum(x.numel() * x.element_size() for x in tensors)


def predicted(case: cases.Update, numbers: int, trained: int) -> int:
    """Return the bytes that a plan prints for the update, if all responses reach the limit."""
    architecture = Architecture.of(configuration(case.size))
    assert architecture is not None
    recipe = recipe_of(case, case.prompts)
    frozen = 2 if case.lora and recipe.model.dtype == "bfloat16" else 4
    held = Held(weights=numbers, trained=trained, frozen=frozen)
    phases = Phases(model=architecture, held=held, recipe=recipe, prompt=case.prompt, device=best_device().type)
    return phases.peaks(Evaluate()).update


def measured(case: cases.Update, limit: float) -> Values:
    """Return speed, MFU and memory of an update; where the memory does not suffice, what was predicted."""
    if case.triton:
        need_kernels()
    vocabulary = configuration(case.size)["vocab_size"]
    there = Trained.of(case)
    expected = predicted(case, there.numbers, there.trained)
    try:
        worst = rollouts_of(case, [case.room] * (case.copies * case.prompts), vocabulary)
        there.update(case, worst)  # moments are there, and every kernel has been used
        found = peak(lambda: there.update(case, worst), there.held)
        usual = rollouts_of(case, ragged(case), vocabulary)
        there.update(case, usual)
        taken = seconds(lambda: there.update(case, usual))
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(f"predicted {expected / GIB:.1f} GiB") from None
        raise
    tokens = len(usual.responses.ids) + case.prompt * len(usual.prompts)
    flops = (ADAPTERS if case.lora else FULL) * there.multiplied * tokens / taken
    values: dict[str, Any] = {
        "parameters": there.numbers,
        "trained": there.trained,
        "tokens": tokens,
        "seconds": taken,
        "tokens_per_s": tokens / taken,
        "mfu": flops / limit,
        "limit_tflops": limit / 1e12,
        "predicted_gib": expected / GIB,
        "measured_gib": found / GIB,
        "error": expected / found - 1,
    }
    if torch.cuda.is_available():
        values["reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 1 if a row has failed."""
    options = options_of(parser_of("update", main.__doc__).parse_args(arguments))
    report = Report("update", options)
    limit = product_peak(torch.bfloat16 if torch.cuda.is_available() else torch.float32)
    clean()
    for case in cases.TINY_UPDATES if options.tiny else cases.UPDATES:
        report.run(case.name, lambda case=case: measured(case, limit))
    return report.finish()


if __name__ == "__main__":
    if not torch.cuda.is_available() and any(os.environ.get(name) != value for name, value in RETURNS.items()):
        os.execve(sys.executable, [sys.executable, "-m", "gpu.update", *sys.argv[1:]], {**os.environ, **RETURNS})
    sys.exit(main())
