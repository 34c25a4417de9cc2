"""The short forms of `make test-faults`: real processes, real faults, and the auditor as the judge."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["points", "zombies", "starts", "poison", "cancellations", "twins"])
def test_a_fault_breaks_no_promise(fault):
    """On both databases nothing is lost and nothing doubled, and the auditor's promises hold."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "faults.main", "--short", fault]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
