"""Runs of the tiny model in TRL's environment, one process for all tests: `make test-trl`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.contract import Evaluate, Job, Options
from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.folder import RunFolder
from paribus_runners.native.main import settled
from paribus_runners.native.policy import Policy
from paribus_runners.native.stopping import Termination
from paribus_runners.tasks import Grader, task_of
from paribus_runners.trl.session import Session

BASE = {
    "kl": "off",
    "task": "chain",
    "optimizer.max_grad_norm": None,
    "schedule.steps": 1,
    "schedule.prompts_per_step": 8,
    "schedule.group_size": 4,
    "schedule.max_new_tokens": 10,
}


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    with settled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def recipe_of(preset: str, patch: Mapping[str, Any], model: Path) -> Recipe:
    """Return a recipe for the model; ``patch`` comes on top of :data:`BASE`."""
    found = resolve_base(preset, {**BASE, "optimizer.learning_rate": 1e-3, **patch})
    assert found.recipe is not None, found.faults
    named, scale = found.recipe.model.model_copy(update={"name": str(model)}), found.recipe.scale
    if hasattr(scale, "eps"):
        scale = scale.model_copy(update={"eps": 1e-4})  # what TRL adds
    return found.recipe.model_copy(update={"model": named, "scale": scale})


@pytest.fixture
def session(warm: Path, tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Return a function that makes a run that has not begun."""
    graders, count = [], iter(range(100))

    def made(preset: str = "grpo", patch: Mapping[str, Any] | None = None, seed: int = 0) -> Session:
        recipe = recipe_of(preset, patch or {}, warm)
        out = RunFolder(tmp_path / str(next(count)) / "out")
        (out.path / "evals").mkdir(parents=True)
        (out.path / "checkpoints").mkdir()
        job = Job(
            run="0" * 64, study="inside", arm="base", runner="trl", options=Options(), seed=seed, token=1,
            recipe=recipe, evaluate=Evaluate(every=1, problems=4), cache=str(tmp_path),
        )  # fmt: skip
        policy = Policy.load(str(warm), None, "float32")
        graders.append(grader := Grader(task_of(recipe.task, policy.render)).__enter__())
        return Session(job, out, policy, Termination(), grader, {})

    yield made
    for grader in graders:
        grader.__exit__(None, None, None)


@pytest.fixture
def trained(session: Callable[..., Session]) -> Callable[..., list[dict[str, float]]]:
    """Return a function that trains, and gives the values of each step."""

    def train(preset: str = "grpo", patch: Mapping[str, Any] | None = None, seed: int = 0) -> list[dict[str, float]]:
        found = session(preset, patch, seed)
        found.run(None, 0)
        assert torch.is_grad_enabled()
        return [dict(line.values) for line in found._folder.read_metrics()]

    return train
