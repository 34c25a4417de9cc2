"""Copies that are made while a scheduler works, as the page for operators says, give back what was recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.run_folder.folder import RunFolder
from paribus.store.reader import Reader
from support.site import Site, until

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site without MLflow."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['mlflow'] = None\n")
    made = Site(tmp_path)
    yield made
    made.close()


def said(home: Path, *arguments: str, status: int = 0) -> str:
    """Run a command here; return what it said."""
    result = CliRunner().invoke(paribus, [*arguments, "--home", str(home)])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def some_results(site: Site) -> bool:
    """Return whether a run has ended, another one trains, and a third has not begun."""
    states = sorted(str(run.state) for run in site.runs())
    return {"SUCCEEDED", "RUNNING", "QUEUED"} <= set(states) and bool(site.training())


def recorded(home: Path) -> dict[str, tuple[bytes, ...]]:
    """Return what each run with a result has written."""
    with Reader.open(home) as reader:
        runs = [r for r in reader.runs_of(reader.study("faked").id) if str(r.state) == "SUCCEEDED"]
        folders = {run.fingerprint: RunFolder.of(home, run.fingerprint, run.token) for run in runs}
    return {
        run: tuple(path.read_bytes() for path in (folder.metrics, folder.result, *sorted(folder.evals.iterdir())))
        for run, folder in folders.items()
    }


def test_the_database_and_then_the_run_folders(site: Site) -> None:
    """The copy has each result with its folder; attempts that began between the two are named and moved away."""
    service = site.start("scheduler", "--slots", "2", rules=[site.held(seed=1)])
    said(site.home, "submit", site.study(seeds=3))
    until(lambda: some_results(site))
    copy = site.path / "copy"
    said(site.home, "db", "backup", "--to", str(copy / "paribus.db"))
    before = recorded(site.home)
    begun = sum(run.token for run in site.runs())
    site.release()
    until(lambda: sum(run.token for run in site.runs()) > begun)  # an attempt that the copy does not know
    subprocess.run(["cp", "-a", str(site.home / "runs"), str(copy)], check=True)
    os.killpg(service.pid, signal.SIGKILL)
    service.wait()
    site.home.rename(site.path / "lost")
    copy.rename(site.home)

    with Reader.open(site.home) as reader:
        known = {run.fingerprint: run.token for run in reader.runs_of(reader.study("faked").id)}
    assert before.items() <= recorded(site.home).items()
    checks = json.loads(said(site.home, "doctor", "--json", status=1))["checks"]
    named = {c["message"].split()[1].rstrip(":,") for c in checks if c["message"].startswith("folder runs/")}
    unknown = {
        path
        for run, token in known.items()
        for path in (site.home / "runs" / run[:12]).glob("a*")
        if int(path.name[1:]) > token
    }
    assert named == {str(path.relative_to(site.home)) for path in unknown} != set()
    for path in unknown:
        shutil.move(path, site.path / f"{path.parent.name}-{path.name}")
    status, output = site.ended(site.start("scheduler", "--until-idle", "--slots", "2"))
    assert status == 0, output
    site.check("faked")
    assert before.items() <= recorded(site.home).items()


def test_an_export_of_a_study_that_runs(site: Site) -> None:
    """Its results are whole, its live runs are queued, and the restored study goes on elsewhere when it is told to."""
    service = site.start("scheduler", "--slots", "2", rules=[site.held(seed=1)])
    said(site.home, "submit", site.study(seeds=3))
    until(lambda: some_results(site))
    file, there = site.path / "faked.tar", site.path / "there"
    before = recorded(site.home)
    assert "live runs, which are in the archive as queued" in said(site.home, "export", "faked", "--to", str(file))
    os.killpg(service.pid, signal.SIGKILL)
    service.wait()
    site.home.rename(site.path / "lost")
    said(there, "restore", str(file))
    there.rename(site.home)
    assert before.items() <= recorded(site.home).items()
    said(site.home, "retry", "faked")
    status, output = site.ended(site.start("scheduler", "--until-idle", "--slots", "2"))
    assert status == 0, output
    site.check("faked")
    assert before.items() <= recorded(site.home).items()
