"""The measurement of the detectors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPT = FOLDER / "health.py"


def imports(name: str) -> set[str]:
    """Modules that a script of the benchmarks imports, directly or through another."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    found = {a.name for n in nodes for a in n.names} | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    return found.union(*(imports(m) for m in found if (FOLDER / f"{m}.py").is_file()))


def test_what_thresholds_were_set_on_is_not_what_they_are_tested_on() -> None:
    """The generator for tuning and the one for measuring share no code, and the measurement does not use the former."""
    assert "health_curves" in imports("health")
    assert not imports("health") & {"health_tuning", "health_faults", "health_runs"}
    assert not imports("health_curves") & {"health_tuning", "health"}
    assert not imports("health_tuning") & {"health_curves", "health"}


def test_published_courses_get_the_verdict_that_their_sources_give_them() -> None:
    """Each verdict is the expected one, and the page of the detectors holds them."""
    script = [sys.executable, str(FOLDER / "health_published.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_detectors_find_faults_and_leave_healthy_runs_alone() -> None:
    """On few runs, no gate is missed by more than chance."""
    done = subprocess.run([sys.executable, str(SCRIPT), "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
