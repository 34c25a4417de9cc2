"""The fake runner passes the conformance suite of runners."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from paribus.contract import Evaluate, EvaluationSet
from paribus.run_folder.folder import RunFolder
from paribus.testing.fake_runner import install
from paribus.testing.runner_suite import RunnerTestCase


class TestFakeRunner(RunnerTestCase):
    """The runner of the tests keeps the contract, too."""

    runner = "fake"
    base: ClassVar = {"schedule.steps": 60}
    other_data: ClassVar = {"task": "chain"}
    other_model: ClassVar = {"model": "tiny_moe"}
    evaluate = Evaluate(every=20, problems=8, sets={"few": EvaluationSet(every=30, problems=3, samples=4)})

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _installed(cls, tmp_path_factory: pytest.TempPathFactory) -> object:
        with pytest.MonkeyPatch.context() as patch:
            folder = install(tmp_path_factory.mktemp("installed"))
            patch.syspath_prepend(folder)
            patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
            yield

    @classmethod
    @contextmanager
    def training(cls, folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
        """Train; an attempt that is to be stopped needs half a minute, so that it is asked before its end."""
        stopped = "is_asked" in folder.path.parent.name and folder.path.name == "a1"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PARIBUS_FAKE", json.dumps({"step_s": 0.5 if stopped else 0.0}))
            with super().training(folder) as process:
                yield process
