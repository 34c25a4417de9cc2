"""The TRL runner passes the conformance suite of runners."""

from typing import ClassVar

import pytest

from paribus.contract import Checkpoints, Evaluate, Options
from paribus.testing.runner_suite import RunnerTestCase


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
    checkpoint: ClassVar = Checkpoints(every=1)  # beside other suites, a step can take more than the five seconds
    options: ClassVar = Options(own={"microbatches": 2}, passthrough={"gradient_checkpointing": False})

    @pytest.fixture(scope="class")
    @classmethod
    def recipe(cls, warm):
        """The base with a model that is warmed up in seconds: `tiny` takes a minute."""
        return cls.patched({"model": str(warm)})
