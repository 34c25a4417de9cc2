"""Webhooks: a webhook and a command get what becomes critical, the address stays secret, failures harm nothing."""

import json
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from paribus.health.finding import Finding, plain
from paribus.monitor.alerts import Alerts, Webhooks
from paribus.run_folder.folder import RunFolder, write_json
from paribus.store.store import Store
from support.plans import small_plan

SAVE = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
NEWS = {"text": "it is critical"}


@pytest.fixture
def server():
    """A web server that keeps what it gets, and answers with the status that it is told."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(made.status)
            self.end_headers()

        def log_message(self, *_):
            """Print nothing."""

    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.status, made.got = 204, got
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def wait():
    """Wait for the hooks that have begun, as the process does at its end."""
    for thread in threading.enumerate():
        if thread.name == "webhook":
            thread.join()


def test_both_get_the_finding_and_nobody_else_the_address(tmp_path, server, monkeypatch):
    """A run that becomes critical: one POST, one call with the same JSON; no file and no line holds the address."""
    address = f"http://127.0.0.1:{server.server_port}/very-secret"
    monkeypatch.setenv("ALERT_URL", address)
    saved, said = tmp_path / "saved", []
    plan = replace(small_plan(), webhook="ALERT_URL", command=(sys.executable, "-c", SAVE, str(saved)))
    with Store.open(tmp_path / "home") as store:
        study = store.add_study(plan)
        claim = store.claim(study.id, engine="test", worker="here")
        folder = RunFolder.of(tmp_path / "home", claim.fingerprint, claim.token)
        folder.path.mkdir(parents=True)
        finding = Finding(detector="truncation", state="critical", step_onset=3, evidence="60% are cut off")
        found = json.loads(json.dumps(plain(finding)))
        write_json(folder.health, {"status": "critical", "profile": "default 1", "findings": [found]})
        news = Alerts(store, study, said.append, Webhooks(store.study("small").plan, said.append))
        news.view(0.0), news.view(1.0)
    wait()
    assert server.got == [json.loads(saved.read_text())]
    assert (server.got[0]["text"], server.got[0]["arm"], server.got[0]["finding"]) == (said[0], "arm 0", found)
    assert len(said) == 1
    files = [f for f in (tmp_path / "home").rglob("*") if f.is_file()]
    assert files
    assert not any(b"very-secret" in f.read_bytes() for f in files)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/very-secret", "very-secret", "http://very secret\n"])
def test_a_webhook_that_is_not_there_is_told_without_its_address(address, monkeypatch):
    """Refused, no address at all, an address that cannot be: one line each."""
    monkeypatch.setenv("ALERT_URL", address)
    said = []
    Webhooks(replace(small_plan(), webhook="ALERT_URL"), said.append).send(NEWS)
    wait()
    assert len(said) == 1
    assert said[0].startswith("small: the webhook in ALERT_URL ")
    assert "secret" not in said[0]


def test_an_answer_that_refuses_and_a_missing_variable_are_told(server, monkeypatch):
    """The status of the answer; and at the start, that the environment lacks the address."""
    server.status = 500
    monkeypatch.setenv("ALERT_URL", f"http://127.0.0.1:{server.server_port}/")
    said = []
    Webhooks(replace(small_plan(), webhook="ALERT_URL"), said.append).send(NEWS)
    wait()
    Webhooks(replace(small_plan(), webhook="NOT_SET"), said.append).send(NEWS)
    monkeypatch.setenv("ALERT_URL", " ")
    Webhooks(replace(small_plan(), webhook="ALERT_URL"), said.append).send(NEWS)
    assert said == [
        "small: the webhook in ALERT_URL answered with status 500",
        "small: the environment variable NOT_SET is not set, so findings go to no webhook",
        "small: the environment variable ALERT_URL is empty, so findings go to no webhook",
    ]


@pytest.mark.parametrize(
    ("command", "seconds", "trouble"),
    [
        (("/not/there",), 30.0, "could not be started (FileNotFoundError)"),
        ((sys.executable, "-c", "raise SystemExit(3)"), 30.0, "ended with exit status 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), 0.5, "took more than 0.5 s and was killed"),
    ],
)
def test_a_command_that_fails_is_told_and_ended(command, seconds, trouble):
    """It is not waited for when it is called, and never longer than its time."""
    said = []
    begun = time.monotonic()
    Webhooks(replace(small_plan(), command=command), said.append, timeout_s=seconds).send(NEWS)
    wait()
    assert said == [f"small: the command {command[0]} {trouble}"]
    assert time.monotonic() - begun < 30
