"""Home folders that earlier versions really wrote, half way through a study, are served and finished by this one."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from paribus.cli import paribus
from paribus.store.migrate import HEAD
from paribus.store.reader import Reader
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import build
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app
from support.databases import postgresql
from support.record_home import unpack
from support.site import Site

RECORDED = sorted(Path(__file__).with_name("recorded_homes").glob("*.tar.gz"))
"""Made by `tests/support/record_home.py`."""


@pytest.fixture(params=RECORDED, ids=lambda path: path.name.removesuffix(".tar.gz"))
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site without MLflow whose home folder, or database on a server, was recorded."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    made = Site(tmp_path)
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['mlflow'] = None\n")
    with tarfile.open(request.param) as tar:
        unpack(tar, made.home)
    dump = made.home / "database.sql"
    if not dump.exists():
        yield made
        made.close()
        return
    with postgresql(empty=True) as url:
        address = url.render_as_string(hide_password=False)
        with psycopg.connect(address.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(_statements(dump.read_text()).encode())
        dump.unlink()
        monkeypatch.setenv("PARIBUS_DATABASE_URL", address)
        made.environment["PARIBUS_DATABASE_URL"] = address
        yield made
        made.close()


def _statements(dump: str) -> str:
    """Return what a server runs: without the commands of `psql`, and the settings of newer servers."""
    return "\n".join(line for line in dump.splitlines() if not line.startswith(("\\", "SET ")))


def said(site: Site, *arguments: str) -> str:
    """Run a command that must succeed; return what it printed."""
    result = CliRunner().invoke(paribus, [*arguments, "--home", str(site.home)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def files(home: Path, names: tuple[str, ...] = ("metrics.jsonl", "result.json")) -> dict[str, bytes]:
    """Return what runs with a result have written."""
    ended = [path.parent for path in sorted(home.glob("runs/*/a*/result.json"))]
    return {str(f / name): (f / name).read_bytes() for f in ended for name in names}


@pytest.mark.slow
def test_a_recorded_home_is_upgraded_shown_and_finished(site: Site) -> None:
    """Results stay as they were; the interrupted run and those that waited are trained, and every invariant holds."""
    before = files(site.home)
    interrupted = {f.parent.name for f in site.home.glob("runs/*/a1") if not (f / "result.json").exists()}
    assert f"expected {HEAD}" in said(site, "db", "current")
    said(site, "db", "upgrade")
    states = [run["state"] for run in json.loads(said(site, "status", "faked", "--json"))["runs"]]
    assert len(states) == 6
    assert states.count("SUCCEEDED") >= 3
    assert "QUEUED" in states
    said(site, "health", "faked")
    said(site, "report", "faked", "--out", str(site.path / "half"))
    assert json.loads((site.path / "half" / "report.json").read_text())["study"] == "faked"
    app = make_app(Home(site.home, make_report=build), access=Access())
    with TestClient(app, base_url="http://localhost") as client:
        for page in ("/", "/study/faked", "/study/faked/queue", "/study/faked/health", "/study/faked/report/body"):
            assert client.get(page).status_code == 200, page
    status, output = site.ended(site.start("run", site.study(seeds=3)))
    assert status == 0, output
    with Reader.open(site.home) as reader:
        runs = reader.runs_of(reader.study("faked").id)
    assert {str(run.state) for run in runs} == {"SUCCEEDED"}
    assert {run.fingerprint[:12] for run in runs if run.token > 1} >= interrupted
    assert before.items() <= files(site.home).items()
    site.check("faked")
    said(site, "doctor")
