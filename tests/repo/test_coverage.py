"""The simulation of what the intervals of a report cover."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "coverage.py"


@pytest.mark.slow
def test_intervals_cover_and_verdicts_hold() -> None:
    """Over 1,000 studies of each kind coverage and false verdicts lie within the bounds and the simulation's error."""
    done = subprocess.run([sys.executable, str(SCRIPT), "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
