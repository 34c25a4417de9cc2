"""A home folder of each earlier revision of the database is served by this version, on both kinds of database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from paribus.cli import paribus
from paribus.errors import StoreError
from paribus.run_folder.folder import Evaluation, MetricLine, RunFolder
from paribus.store.database import Database
from paribus.store.migrate import HEAD, run_alembic
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import build
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app
from support.old_databases import REVISIONS, fill
from support.plans import small_plan


def train(home: Path, run: str) -> None:
    """Write what the run with a result has left."""
    folder = RunFolder.of(home, run, 1)
    folder.path.mkdir(parents=True)
    for step in range(5):
        folder.append_metrics(MetricLine(step=step, time_ms=1000 * step, values={"reward/mean": 0.1 * step}))
    for step in (0, 2, 4):
        counts = (step % 3, 1) * 10
        folder.write_evaluation(
            Evaluation(
                step=step,
                set="heldout",
                samples=2,
                problems=tuple(f"p{i}" for i in range(20)),
                correct=counts,
                truncated=(0,) * 20,
                tokens=(9,) * 20,
                tokens_correct=counts,
                answers=({"x": 2},) * 20,
            )
        )
    folder.result.write_text("{}")


def said(home: Path, *arguments: str) -> str:
    """Run a command; return what it said."""
    result = CliRunner().invoke(paribus, [*arguments, "--home", str(home)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_home_folder_of_every_revision_is_served(database: Database, tmp_path: Path, revision: str) -> None:
    """Before the upgrade it is named, after it status, report, health, export and dashboard show what was there."""
    run_alembic(database, "upgrade", revision)
    fill(database)
    train(tmp_path, small_plan(arms=1, seeds=2).runs[0].fingerprint)
    if revision != HEAD:
        with pytest.raises(StoreError, match=rf"has revision {revision}.*`paribus db upgrade` upgrades it"):
            said(tmp_path, "status")
    assert f"revision {revision}, expected {HEAD}" in said(tmp_path, "db", "current")
    assert ("nothing to do" if revision == HEAD else f"from revision {revision} to {HEAD}") in said(
        tmp_path, "db", "upgrade"
    )
    states = {run["state"] for run in json.loads(said(tmp_path, "status", "small", "--json"))["runs"]}
    assert states == {"SUCCEEDED", "QUEUED"}
    said(tmp_path, "report", "small", "--out", str(tmp_path / "report"))
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert "1/2" in (tmp_path / "report" / "report.md").read_text()
    assert report["study"] == "small"
    assert "arm 0" in said(tmp_path, "health", "small")
    said(tmp_path, "export", "small", "--to", str(tmp_path / "small.tar"))
    app = make_app(Home(tmp_path, make_report=build), access=Access())
    with TestClient(app, base_url="http://localhost") as client:
        for address in ("/", "/study/small", "/study/small/queue", "/study/small/health", "/study/small/report/body"):
            assert client.get(address).status_code == 200, address
