"""The fake runner passes the conformance suite of runners."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest

from paribus.contract import Evaluate, EvaluationSet
from paribus.testing.fake_runner import install
from paribus.testing.runner_suite import RunnerTestCase


class TestFakeRunner(RunnerTestCase):
    """The runner of the tests keeps the contract, too."""

    runner = "fake"
    base: ClassVar = {"schedule.steps": 5}
    other_data: ClassVar = {"task": "chain"}
    other_model: ClassVar = {"model": "tiny_moe"}
    evaluate = Evaluate(every=2, problems=8, sets={"few": EvaluationSet(every=3, problems=3, samples=4)})

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _installed(cls, tmp_path_factory: pytest.TempPathFactory) -> object:
        with pytest.MonkeyPatch.context() as patch:
            folder = install(tmp_path_factory.mktemp("installed"))
            patch.syspath_prepend(folder)
            patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
            patch.setenv("PARIBUS_FAKE", '{"step_s": 0.05}')
            yield
