"""A run on two nodes, of which the second is a process of this machine that an engine's words could have started."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.attempt.watchdog import STACKS
from paribus.contract import Options, Timeouts
from paribus.engines.base import ON_NODE
from paribus.errors import ParibusError
from paribus.failures import from_outside
from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import read_json
from paribus.run_folder.phases import Sign, read_signs
from paribus_runners.native.launch import launch
from support.native_runs import SLEEPER, changed, lines_of, same, supervised, weights_of
from support.site import until

JobFolder = Callable[..., Path]
PATIENT_S = 600.0
"""Seconds that runs have for their checkpoints."""


@pytest.fixture(autouse=True)
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ON_NODE, "env NODE={node}")


def on_two(job_folder: JobFolder, recipe: Recipe, **more: Any) -> Path:
    """Return the folder of a run with a process on each of two nodes."""
    return job_folder(recipe, options=Options(own={"processes": 2}), nodes=2, **more)


def when_trained(folder: Path, action: Callable[[dict[int, Sign]], object]) -> threading.Thread:
    """Do something in another thread as soon as both processes are beyond the first step."""

    def trained() -> dict[int, Sign] | None:
        signs = read_signs(folder)
        return signs if len(signs) == 2 and min(sign.step for sign in signs.values()) > 1 else None

    thread = threading.Thread(target=lambda: action(until(trained)))
    thread.start()
    return thread


@pytest.mark.slow
def test_two_nodes_train_as_one_with_two_processes(recipe: Recipe, job_folder: JobFolder) -> None:
    """Metrics and weights are equal to the bit: processes are summed in one order, wherever they are."""
    one = job_folder(recipe, name="one", options=Options(own={"processes": 2}))
    two = on_two(job_folder, recipe, name="two")
    assert [supervised(folder, PATIENT_S)["do"] for folder in (one, two)] == ["finish", "finish"]
    assert lines_of(two) == lines_of(one)
    assert same(weights_of(two), weights_of(one))
    assert read_json(two / "environment.json")["processes"] == 2
    assert not list(Path(two).glob("phases/*"))


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_keeps_what_both_nodes_have_trained(recipe: Recipe, job_folder: JobFolder) -> None:
    """SIGTERM to the runner's group: what started the other node does not die of it, and a checkpoint is written."""
    folder = on_two(job_folder, changed(recipe, schedule={"steps": 10_000}))
    pids: list[int] = []

    def stop(signs: dict[int, Sign]) -> None:
        pids.extend(sign.pid for sign in signs.values())
        os.killpg(os.getpgid(signs[0].pid), signal.SIGTERM)

    thread = when_trained(folder, stop)
    assert supervised(folder, PATIENT_S)["do"] == "release"
    thread.join()
    assert read_json(folder / "checkpoints" / "index.json")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_a_process_that_is_killed_on_another_node_ends_the_run_from_outside(
    recipe: Recipe, job_folder: JobFolder
) -> None:
    """So that it is tried again; nothing of it is left on either node."""
    folder = on_two(job_folder, changed(recipe, schedule={"steps": 10_000}))
    pids: list[int] = []

    def kill(signs: dict[int, Sign]) -> None:
        pids.extend(sign.pid for sign in signs.values())
        os.kill(signs[1].pid, signal.SIGKILL)

    thread = when_trained(folder, kill)
    report = supervised(folder, PATIENT_S)
    thread.join()
    assert (report["do"], report["kind"]) == ("fail", "infrastructure")
    assert report["reason"] == "a process on node 2 of 2 was killed by signal 9"
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.slow
def test_stacks_of_another_node_are_written_when_a_run_hangs(recipe: Recipe, job_folder: JobFolder) -> None:
    """Its ids mean nothing here, so the signal goes by way of what started it."""
    sleeping = f.RewardFunction(path="sleeper.score", timeout_s=9000.0)
    recipe = changed(recipe, reward=f.Reward(functions={"sleeper": sleeping}))
    sources = Options(own={"processes": 2}, sources={"sleeper.py": SLEEPER})
    folder = job_folder(recipe, options=sources, nodes=2, timeouts=Timeouts(reward=3.0))
    assert supervised(folder, PATIENT_S)["signature"] == "hung in reward"
    first, second = (folder / STACKS).read_text().split("==== ")[1:]
    assert "most recent call first" in first
    assert "in collect" in second
    assert "on another node" in second.splitlines()[0]
    assert "on another node" not in first


@pytest.mark.slow
def test_an_error_on_another_node_is_the_error_of_the_run(recipe: Recipe, job_folder: JobFolder) -> None:
    """The message is as on one node; here its process ends before it has begun."""
    folder = on_two(job_folder, recipe, name="lost")
    os.environ[ON_NODE] = f"env -C {folder.parent} PYTHONPATH={folder.parent}"  # restored at the end of the test
    stand_in = folder.parent / "sitecustomize.py"
    stand_in.write_text("import os, sys\nif 'paribus_runners.native.rank' in sys.orig_argv: os._exit(3)\n")
    assert "process 1 of 2 failed: exit status 3" in supervised(folder, PATIENT_S)["reason"]


@pytest.mark.slow
def test_the_end_of_what_started_another_node_is_not_taken_for_that_of_its_processes(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`srun` ends with 253 if anything there was out of memory, also a worker whose death the run has survived."""
    monkeypatch.setenv(ON_NODE, """sh -c '"$@"; exit 253' -""")
    assert supervised(on_two(job_folder, recipe), PATIENT_S)["do"] == "finish"


@pytest.mark.slow
def test_a_signal_to_everything_on_a_node_asks_to_stop_all_the_same(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some clusters pass it on to all processes there, not to the first alone: the shared optimizer is kept."""
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import os, signal, subprocess, sys\n"
        "process = subprocess.Popen(sys.argv[1:], start_new_session=True)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.killpg(process.pid, signal.SIGUSR1))\n"
        "sys.exit(process.wait())\n"
    )
    monkeypatch.setenv(ON_NODE, f"{sys.executable} {starter}")
    recipe = changed(recipe, schedule={"steps": 10_000}, compute=Compute(sharding="optimizer"))
    folder = on_two(job_folder, recipe)
    thread = when_trained(folder, lambda signs: os.killpg(os.getpgid(signs[0].pid), signal.SIGTERM))
    assert supervised(folder, PATIENT_S)["do"] == "release"
    thread.join()
    assert read_json(folder / "checkpoints" / "index.json")
    assert not (folder / "parts").exists()


def test_nodes_that_are_not_there_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run never trains on fewer nodes than its study declares."""
    monkeypatch.setenv(ON_NODE, "")
    with pytest.raises(ParibusError, match="this run needs 2 nodes, and this job has one: start it by `slurm`"):
        launch(tmp_path, 2, cpu=True, nodes=2)


def test_a_node_that_is_lost_is_a_failure_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Slurm's controller may be away while the step starts: the run is tried again."""
    monkeypatch.setenv(ON_NODE, "sh -c 'exit 3'")
    with pytest.raises(SystemExit) as ended:
        launch(tmp_path, 2, cpu=True, nodes=2)
    assert from_outside(ended.value.code)
    assert "node 2 of 2 is lost: what starts processes there ended with exit status 3" in capfd.readouterr().err
