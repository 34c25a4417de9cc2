"""Programs for the command runner: each is a few lines of Python or shell, run as one attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paribus.contract import Evaluate, Job, Options, load_runner
from paribus.failures import Failure, failure_in
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.folder import MetricLine, RunFolder, write_json

PATIENCE_S = 300.0
_TRAIN = (
    "import sys; from pathlib import Path; from paribus.contract import load_runner; "
    "load_runner('command').run(Path(sys.argv[1]))"
)

HEAD = """\
import json, os, sys, time
out, last = os.environ["PARIBUS_OUT"], int(os.environ["PARIBUS_STEPS"])

def line(step, values=None, **more):
    with open(out + "/metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "values": values or {}, **more}) + "\\n")

def evaluate(step, /, **changes):
    made = {"step": step, "set": "heldout", "samples": 1, "problems": ["a", "b"], "correct": [1, 0],
            "truncated": [0, 0], "tokens": [3, 4], "tokens_correct": [3, 0], "answers": [{"x": 1}, {"y": 1}]}
    made.update(changes)
    with open(f"{out}/evals/heldout-{step:06d}.json", "w") as file:
        json.dump(made, file)

def finish(**result):
    with open(out + "/result.json", "w") as file:
        json.dump(result or {"status": "succeeded"}, file)

"""
"""What the Python programs of these tests begin with."""

GOOD = """\
evaluate(0); line(0)
line(1); line(2)
evaluate(3); line(3)
finish()
"""
"""A program that does all that is asked: three steps, evaluated before the first and after the last."""


@dataclass(frozen=True)
class End:
    """How an attempt ended."""

    folder: RunFolder
    status: int
    failure: Failure

    @property
    def reason(self) -> str:
        """Why, as users see it."""
        return self.failure.reason

    @property
    def lines(self) -> list[MetricLine]:
        """What was recorded."""
        return list(self.folder.read_metrics())


Attempt = Callable[..., End]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """A function that runs a program as an attempt of one run, and returns how it ended."""

    def start(
        program: str = "",
        *,
        token: int = 1,
        own: Mapping[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
        stop_after: int | None = None,
        environment: Mapping[str, str] | None = None,
        kill_after: int | None = None,
        evaluate: Evaluate | None = None,
        run: str = "",
    ) -> End:
        recipe = resolve_base("grpo", {"schedule.steps": 3, "optimizer.learning_rate": 0.1}).recipe
        assert recipe is not None
        options = Options(
            own={"argv": ["python", "p.py"], "patience": 100.0, **(own or {})},
            sources={"p.py": HEAD + program, **(sources or {})},
        )
        folder = RunFolder(tmp_path / run / f"a{token}")
        folder.path.mkdir(parents=True)
        hashes = load_runner("command").hashes(recipe, options) if run else None
        job = Job(
            run="b" * 64, study="tested", arm="base", runner="command", options=options, seed=7, token=token,
            recipe=recipe, evaluate=evaluate or Evaluate(every=3, problems=2), hashes=hashes,
            cache=str(tmp_path / "cache"),
        )  # fmt: skip
        write_json(folder.job, job.model_dump(mode="json"))
        with folder.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _TRAIN, str(folder.path)], stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        try:
            if (wanted := stop_after or kill_after) is not None:
                until = time.monotonic() + PATIENCE_S
                while sum(1 for _ in folder.read_metrics()) < wanted and process.poll() is None:
                    assert time.monotonic() < until
                    time.sleep(0.01)
                process.send_signal(signal.SIGTERM if stop_after else signal.SIGKILL)
            status = process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        return End(folder, status, failure_in(folder.log, status))

    return start
