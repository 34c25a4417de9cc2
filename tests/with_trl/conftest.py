"""TRL's environment, which `make test-trl` installs; without it these tests are skipped."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from paribus.recipe.recipe import ChainTask
from paribus_runners.native.main import settled
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY, Stage, WarmUp
from paribus_runners.trl import runner

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where TRL's environment is missing; warnings of TRL's are not ours."""
    state, wrong = runner.environment().state()
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("default"))
            if wrong and not item.path.is_relative_to(HERE / "inside"):
                item.add_marker(pytest.mark.skip(reason=f"TRL's environment is {state}: `make test-trl`"))


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers right in about one case of ten, after seconds of warm-up: `tiny` takes a minute."""
    place = tmp_path_factory.mktemp("models") / "warm"
    policy = make.build(TINY, "chain")
    stage = Stage(traces="noisy", steps=80)
    settings = dataclasses.replace(
        WarmUp.of(ChainTask(careful=0.3)), stages=(stage,), prompts=32, learning_rate=3e-3, rise_steps=10
    )
    with settled():
        make.train(policy, settings)
    policy.model.save_pretrained(place)
    policy.tokenizer.save_pretrained(place)
    return place
