"""Models and jobs for the tests of the native runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paribus.recipe.recipe import ChainTask, Model, Recipe
from paribus.study.job import Evaluate, Job
from paribus_runners.native.policy import Policy
from paribus_runners.native.session import settled
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY, Stage, WarmUp


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    with settled():
        yield


@pytest.fixture(scope="session")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learned to answer at once, right in about one case of ten; made in seconds."""
    folder = tmp_path_factory.mktemp("models") / "chain"
    policy = make.build(TINY, "chain")
    settings = dataclasses.replace(
        WarmUp.of(ChainTask(careful=0.3)),
        stages=(Stage(traces="noisy", steps=80),),
        prompts=32,
        learning_rate=3e-3,
        rise_steps=10,
    )
    with settled():
        make.train(policy, settings)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def policy(chain_model: Path) -> Policy:
    """A fresh copy of the chain model."""
    return Policy.load(str(chain_model), None, "float32")


@pytest.fixture
def recipe(chain_model: Path) -> Recipe:
    """A small recipe with four updates a step on the chain model."""
    return Recipe.model_validate(
        {
            "model": Model(name=str(chain_model)),
            "task": ChainTask(),
            "schedule": {
                "steps": 3,
                "prompts_per_step": 6,
                "group_size": 8,
                "minibatches": 2,
                "epochs": 2,
                "max_new_tokens": 12,
            },
        }
    )


@pytest.fixture
def job_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes ``job.json`` into the folder of an attempt and returns the folder."""

    def write(recipe: Recipe, *, name: str = "run", token: int = 1, seed: int = 0, **more: Any) -> Path:
        folder = tmp_path / name / f"a{token}"
        folder.mkdir(parents=True)
        job = Job(
            run="f" * 64,
            study="s",
            arm=name,
            runner="native",
            seed=seed,
            token=token,
            recipe=recipe,
            evaluate=more.pop("evaluate", Evaluate(every=2, problems=10, samples=2)),
            cache=str(tmp_path / "cache"),
            **more,
        )
        (folder / "job.json").write_text(job.model_dump_json())
        return folder

    return write
