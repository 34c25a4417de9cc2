"""The way from a page to MLflow."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from paribus.mlflow_sync.offsets import Offsets
from paribus_dashboards.data.mlflow_links import server_of


@pytest.fixture
def tracking():
    """A tracking server that knows one experiment and one run."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            at = urlsplit(self.path)
            asked = {k: v[0] for k, v in parse_qs(at.query).items()}
            known = {
                ("/api/2.0/mlflow/experiments/get-by-name", "made-up"): {"experiment": {"experiment_id": "7"}},
                ("/api/2.0/mlflow/runs/get", "abc"): {"run": {"info": {"experiment_id": "7"}}},
            }
            found = known.get((at.path, asked.get("experiment_name") or asked.get("run_id")))
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_):
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_pages_lead_to_mlflow(client, home, tracking, monkeypatch):
    """With a server that has an address, the page links to the experiment, and with a run to that run."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "MLflow</a>" not in client.get("/study/made-up/queue").text
    assert client.get("/study/made-up/mlflow").status_code == 503
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    assert 'href="/study/made-up/mlflow"' in client.get("/study/made-up/queue?a=1").text
    found = client.get("/study/made-up/mlflow", follow_redirects=False)
    assert found.headers["location"] == f"{tracking}/#/experiments/7"
    run = home.study("made-up").runs[0].fingerprint
    address = f"/study/made-up/mlflow?run={run[:12]}"
    assert "not in MLflow yet" in client.get(address).text
    ledger = Offsets(home.folder)
    ledger.arrive("made-up", "mark")
    ledger.opened(run, "mark", "abc")
    ledger.close()
    found = client.get(address + "&again=1", follow_redirects=False)
    assert found.headers["location"] == f"{tracking}/#/experiments/7/runs/abc"
    assert client.get("/study/made-up/mlflow?run=../../x").status_code == 404


def test_a_server_with_a_password_in_its_address_is_not_linked(monkeypatch, tmp_path):
    """What a page shows never holds a secret."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example")
    assert server_of(tmp_path) == ""
