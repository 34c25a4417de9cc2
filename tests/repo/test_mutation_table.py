"""The mistakes of `make mutants` fit the code that they falsify."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_mistake_has_its_place():
    """Each text that a mistake replaces occurs exactly once: who changes a formula changes its mistakes."""
    command = [sys.executable, str(ROOT / "tests/mutation/objective.py"), "--check"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
