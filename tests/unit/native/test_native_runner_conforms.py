"""The native runner passes the conformance suite of runners."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from paribus.contract import Evaluate, EvaluationSet
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import RunFolder
from paribus.testing import runner_suite
from paribus.testing.runner_suite import RunnerTestCase

WAITS = """
import os, select, signal
from paribus.run_folder.folder import RunFolder

signals, noted = os.pipe()
os.set_blocking(noted, False)
signal.set_wakeup_fd(noted)
append = RunFolder.append_metrics

def waits(folder, line):
    append(folder, line)
    if line.step == 3:
        select.select([signals], [], [], 300)

RunFolder.append_metrics = waits
"""
"""Lets a run not take its last step before it has had a signal."""


@pytest.mark.slow
class TestNativeRunner(RunnerTestCase):
    """It resumes, and equal seeds give equal numbers."""

    runner = "native"
    base: ClassVar = {
        "task": "chain",
        "kl": "off",
        "optimizer": {"learning_rate": 5.0e-4},
        "schedule": {"steps": 4, "prompts_per_step": 4, "group_size": 4, "minibatches": 1, "max_new_tokens": 24},
    }
    other_data: ClassVar = {"task": {"kind": "chain", "problems": 64}}
    other_model: ClassVar = {"model": "tiny_moe"}
    evaluate = Evaluate(
        every=2,
        problems=8,
        sets={"wide": EvaluationSet(problems=5, samples=3, temperature=0.6, top_p=0.9, max_new_tokens=30, every=3)},
    )

    @pytest.fixture(scope="class")
    @classmethod
    def recipe(cls, chain_model: Path) -> Recipe:
        """The base with a tiny model that is made in seconds."""
        return cls.patched({"model.name": str(chain_model)})

    @classmethod
    @contextmanager
    def training(cls, folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
        """Train; an attempt that is to be stopped does not end before it is."""
        with pytest.MonkeyPatch.context() as patch:
            if "is_asked" in folder.path.parent.name and folder.path.name == "a1":
                patch.setattr(runner_suite, "_TRAIN", f"{WAITS}\n{runner_suite._TRAIN}")
            with super().training(folder) as process:
                yield process
