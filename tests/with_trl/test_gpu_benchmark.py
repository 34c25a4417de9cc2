"""The benchmark that compares the native runner with TRL on a GPU, with a small model on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_benchmark_against_trl_measures_both(tmp_path):
    """Both train the same folder, generate ragged responses, and their speeds make the ratio."""
    command = [sys.executable, "-m", "gpu.trl", "--tiny", "--out", str(tmp_path)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(BENCHMARKS)}, check=True)
    (row,) = json.loads((tmp_path / "trl.json").read_text())["rows"]
    assert row["status"] == "measured", row
    assert row["ratio"] == pytest.approx(row["tokens_per_s"] / row["trl"])
    native, trl = row["tokens_each"]
    most = 4 * 4 * 24  # prompts, responses to each, tokens
    assert 0 < native < most  # of the second step
    assert 0 < trl < 2 * most  # of the second and third
