"""Small models that vLLM can run: heads of 32 channels, warmed up for seconds on sums of digits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paribus.contract import Evaluate, Job
from paribus.recipe.recipe import ChainTask, Recipe
from paribus_runners.native.main import settled
from paribus_runners.native.policy import Policy
from paribus_runners.native.requirements import VLLM, versions
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY_WIDE, Stage, WarmUp

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where there is no vLLM; its warnings are not ours."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("default"))
            if not versions(*VLLM):
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: `make test-vllm`"))


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    with settled():
        yield


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model whose head is its embedding; it answers right in about one case of ten."""
    policy = make.build(TINY_WIDE, "chain")
    stage = Stage(traces="noisy", steps=80)
    settings = dataclasses.replace(
        WarmUp.of(ChainTask(careful=0.3)), stages=(stage,), prompts=32, learning_rate=3e-3, rise_steps=10
    )
    with settled():
        make.train(policy, settings)
    return _saved(policy, tmp_path_factory.mktemp("models") / "tied")


@pytest.fixture(scope="session")
def untied(tied: Path) -> Path:
    """The same model with a head of its own."""
    policy = Policy.load(str(tied), None, "float32")
    policy.model.lm_head.weight = nn.Parameter(policy.model.lm_head.weight.detach().clone())
    policy.model.config.tie_word_embeddings = False
    return _saved(policy, tied.with_name("untied"))


def _saved(policy: Policy, folder: Path) -> Path:
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def recipe_of(model: Path, rollout: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """Return a recipe on sums of digits that samples with vLLM."""
    schedule = {"steps": 8, "prompts_per_step": 6, "group_size": 8, "minibatches": 2, "max_new_tokens": 12}
    values = {
        "model": {"name": str(model)},
        "task": {"kind": "chain"},
        "optimizer": {"learning_rate": 5e-4},
        "schedule": {**schedule, **changes.pop("schedule", {})},
        "rollout": {"engine": "vllm", "cache_gib": 0.1, "sequences": 64, **(rollout or {})},
        **changes,
    }
    return Recipe.model_validate(values)


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the job of an attempt and returns its folder."""

    def write(recipe: Recipe, *, name: str = "run", token: int = 1, **more: Any) -> Path:
        folder = tmp_path / name / f"a{token}"
        folder.mkdir(parents=True)
        more = {"evaluate": Evaluate(every=4, problems=10, samples=2), **more}
        job = Job(run="f" * 64, study="s", arm=name, runner="native", seed=0, token=token, recipe=recipe,
                  cache=str(tmp_path / "cache"), **more)  # fmt: skip
        (folder / "job.json").write_text(job.model_dump_json())
        return folder

    return write


@torch.no_grad()
def moved(policy: Policy, by: float, seed: int = 3) -> None:
    """Add to each weight a normal number of this standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    for weight in policy.model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) * by)
