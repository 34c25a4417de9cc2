"""The mistakes of `make test-mutants` fit the code that they falsify."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("table", ["guards", "objective"])
def test_every_mistake_has_its_place(table: str):
    """Each text that a mistake replaces occurs as often as it should: who changes the code changes its mistakes."""
    command = [sys.executable, str(ROOT / f"tests/mutation/{table}.py"), "--check"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
