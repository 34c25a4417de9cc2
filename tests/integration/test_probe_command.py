"""`paribus plan --probe` as a person types it: a few real steps, a cost, and nothing that looks like a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

STUDY = """
study: probed
runner: fake
base: {preset: grpo, set: {schedule.steps: 100}}
tricks: {wider: {clip.high: 0.3}, refill: {filter: {kind: refill}}}
designs: {solo: {kind: add_one}}
seeds: {n: 2}
evaluate: {every: 50, problems: 4}
"""


def probe(folder: Path, *more: str, **orders: object) -> subprocess.CompletedProcess[str]:
    """Type the command in a folder; ``orders`` say what the fake runner does."""
    (folder / "probed.yaml").write_text(STUDY)
    environment = {**os.environ, "PARIBUS_HOME": str(folder / "home"), "PARIBUS_FAKE": json.dumps(orders)}
    command = [sys.executable, "-m", "paribus", "plan", "probed.yaml", "--probe", *more]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_each_kind_is_probed_once_and_nothing_is_recorded(tmp_path: Path) -> None:
    """Three arms of two kinds: the cost of each run is at least that of its steps; home has no store and no runs."""
    done = probe(tmp_path, "--json", step_s=0.02)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    labels = {arm["key"]: arm["label"] for arm in plan["arms"]}
    assert [[labels[key] for key in each["arms"]] for each in plan["probes"]] == [["base", "+ wider"], ["+ refill"]]
    assert not any(run["recorded"] for run in plan["runs"])
    (solo,) = plan["designs"]
    assert solo["cost"]["unit"] == "CPU run-hours"
    assert solo["cost"]["sources"] == ["a probe of 6 steps"]
    assert solo["cost"]["expected"] >= solo["cost"]["low"] >= 6 * 100 * 0.02 / 3600
    assert {path.name for path in (tmp_path / "home").iterdir()} <= {"prepare", "run.lock"}
    assert "probe: a few steps of `+ refill`" in done.stderr


def test_a_probe_that_fails_says_why(tmp_path: Path) -> None:
    """The error is one line, in place of a plan without a cost."""
    done = probe(tmp_path, rules=[{"do": "crash", "at": 2}])
    assert done.returncode == 1
    assert "error P500: the probe of `base` failed: ValueError: made to fail in process" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_machines_are_not_probed_from_here(tmp_path: Path) -> None:
    """What a step takes on this machine says nothing about a cluster."""
    done = probe(tmp_path, "--engine", "slurm")
    assert done.returncode == 2
    assert "--probe trains on this machine, and the study will run on slurm" in done.stderr
    assert not (tmp_path / "home").exists()
