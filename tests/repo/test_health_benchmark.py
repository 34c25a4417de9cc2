"""The measurement of the detectors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "health.py"


@pytest.mark.slow
def test_detectors_find_faults_and_leave_healthy_runs_alone() -> None:
    """On few runs, no gate is missed by more than chance."""
    done = subprocess.run([sys.executable, str(SCRIPT), "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
