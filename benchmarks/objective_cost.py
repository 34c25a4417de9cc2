"""The share of objective and metrics in a training step of the tiny model, on one CPU thread.

What is timed: advantages and weights (`weigh`, `minibatches`, `tokens_of`, `passes`, `part`), the loss from
log-probabilities with its backward pass to them, what is observed of each pass, and the canonical metrics of the step.
All else is the model and the optimizer: sampling, forward, backward, AdamW. The step's own time is the limit that it is
measured against, in the same run.

    python benchmarks/objective_cost.py --below 0.1
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paribus.contract import Evaluate, Job
from paribus.home import home
from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import main as native_main
from paribus_runners.native import metrics, trainer, update
from paribus_runners.native.checkpoint import Progress
from paribus_runners.native.learner import Learner
from paribus_runners.native.objective.loss import loss
from paribus_runners.tasks import Grader, task_of

PRESETS = ("grpo", "dapo", "gmpo", "ppo", "dcpo", "olmo3")
STEPS = 12
SETTING = {
    "model": "tiny",
    "task": "search",
    "optimizer.learning_rate": 2.5e-4,
    "schedule.steps": STEPS,
    "schedule.minibatches": 8,
    "schedule.epochs": 2,
}
OVERLONG = {"length.rule.soft_start": 30, "length.rule.hard_cap": 37}


class Clock:
    """Adds up the seconds spent in some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.outside = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added up; of a generator, the time of its steps."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return call

    def timed_loss(self, *args: Any) -> Any:
        """Return the loss; its backward pass to the log-probabilities is timed on a copy, outside of the step."""
        start = time.perf_counter()
        found = loss(*args)
        between = time.perf_counter()
        recipe, new, *rest = args
        leaf = new.detach().clone().requires_grad_()
        value = loss(recipe, leaf, *rest).value
        backward = time.perf_counter()
        torch.autograd.grad(value, leaf)
        end = time.perf_counter()
        self.seconds += between - start + end - backward
        self.outside += end - between
        return found


def recipe_of(preset: str) -> Recipe:
    """Return a preset in the setting of the quickstart study."""
    patch = SETTING | (OVERLONG if preset == "dapo" else {})
    patched = apply(load_preset(preset).recipe.model_dump(mode="json"), patch)
    assert not patched.faults, patched.faults
    return Recipe.model_validate(patched.values)


def share(preset: str, cache: Path) -> float:
    """Return the median share over the steps of a run, the first two left out."""
    recipe = recipe_of(preset)
    native_main.prepare(recipe, cache)
    clock = Clock()
    places = {
        trainer: ("weigh",),
        update: ("tokens_of", "passes", "part", "observe"),
        metrics: ("of_experience", "of_updates", "of_spent"),
    }
    kept = {(module, name): getattr(module, name) for module, names in places.items() for name in names}
    for (module, name), function in kept.items():
        setattr(module, name, clock.timed(function))
    update.loss = clock.timed_loss
    try:
        with tempfile.TemporaryDirectory() as folder, native_main.settled():
            job = Job(
                run="f" * 64, study="benchmark", arm=preset, runner="native", seed=0, token=1, recipe=recipe,
                evaluate=Evaluate(every=STEPS, problems=2), cache=str(cache),
            )  # fmt: skip
            learner = Learner.of(recipe, native_main.initial_policy(recipe, cache, job.seed))
            run = trainer.Trainer(job, RunFolder(Path(folder)), learner, lambda: False, Grader(task_of(recipe.task)))
            progress, found = Progress(), []
            for _ in range(STEPS):
                clock.seconds = clock.outside = 0.0
                start = time.perf_counter()
                progress, _ = run._step(progress)
                found.append(clock.seconds / (time.perf_counter() - start - clock.outside))
    finally:
        update.loss = loss
        for (module, name), function in kept.items():
            setattr(module, name, function)
    return statistics.median(found[2:])


def main() -> int:
    """Print the share of each preset; exit 1 if one is not below the bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--below", type=float, default=1.0, help="largest share that is accepted")
    parser.add_argument("--cache", type=Path, default=(home() / "cache").absolute(), help="holds the tiny model")
    options = parser.parse_args()
    worst = 0.0
    print("preset  objective and metrics, share of a training step")
    for preset in PRESETS:
        value = share(preset, options.cache)
        worst = max(worst, value)
        print(f"{preset:<7} {value:.1%}")
    return 0 if worst < options.below else 1


if __name__ == "__main__":
    sys.exit(main())
