"""The TRL runner passes the conformance suite of runners."""

import dataclasses
from typing import ClassVar

import pytest

from paribus.contract import Evaluate, Options
from paribus.recipe.recipe import ChainTask
from paribus.testing.runner_suite import RunnerTestCase
from paribus_runners.native.main import settled
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY, Stage, WarmUp


class TestTrl(RunnerTestCase):
    """It trains, evaluates the same problems, is stopped, and continues with the same numbers."""

    runner = "trl"
    base: ClassVar = {
        "task": "chain",
        "kl": "off",
        "scale.eps": 1e-4,
        "optimizer.learning_rate": 1e-3,
        "schedule": {"steps": 6, "prompts_per_step": 8, "group_size": 4, "max_new_tokens": 12, "epochs": 2},
    }
    other_data: ClassVar = {"task": "search"}
    other_model: ClassVar = {"model": "tiny_wide"}
    evaluate: ClassVar = Evaluate(every=2, problems=8)
    options: ClassVar = Options(own={"microbatches": 2}, passthrough={"gradient_checkpointing": False})

    @pytest.fixture(scope="class")
    @classmethod
    def recipe(cls, tmp_path_factory):
        """The base with a model that is warmed up in seconds: `tiny` takes a minute."""
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
        return cls.patched({"model": str(place)})
