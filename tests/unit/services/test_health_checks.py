"""`paribus healthcheck`: each check makes its call, and says in one sentence what is wrong."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.errors import ServiceError, StoreError
from paribus.remote.tokens import Tokens
from paribus.scheduler.home_lock import SCHEDULER, beat, heartbeat_age_s, lock_home
from paribus.services.health_checks import check, check_dashboard, check_mlflow, time_limit
from paribus.store.database import database_url
from paribus.store.transitions import LEASE_S


@contextmanager
def answering(handle):
    """Serve on the loopback address; ``handle(method, path, body)`` returns a status and a text.

    Its attribute ``login`` is the header of the last call.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            handle.login = self.headers.get("authorization")
            size = int(self.headers.get("content-length") or 0)
            status, text = handle(self.command, self.path, json.loads(self.rfile.read(size) or "{}"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            """Print nothing."""

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.daemon_threads = True
    Thread(target=served.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{served.server_address[1]}"
    finally:
        served.shutdown()
        served.server_close()


class FakeMlflow:
    """The calls of MLflow's REST interface that the check makes."""

    def __init__(self, *, keeps=True, taken=False):
        self.tags, self.made, self.keeps, self.taken = {}, False, keeps, taken

    def __call__(self, method, path, body):
        """Answer a call."""
        call = urllib.parse.urlsplit(path).path.rpartition("mlflow/")[2]
        found = {"experiment_id": "7", "tags": [{"key": k, "value": v} for k, v in self.tags.items()]}
        if call == "experiments/get-by-name" and not self.made:
            return 404, json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST"})
        if call == "experiments/create":
            self.made = True
            if self.taken:
                return 400, json.dumps({"error_code": "RESOURCE_ALREADY_EXISTS"})
            return 200, json.dumps({"experiment_id": "7"})
        if call == "experiments/set-experiment-tag" and self.keeps:
            self.tags[body["key"]] = body["value"]
        return 200, json.dumps({"experiment": found})


@pytest.mark.parametrize("taken", [False, True], ids=["first", "another check is first"])
def test_mlflow_is_written_to_and_read_back(taken):
    """The first check makes the experiment, later ones find it."""
    mlflow = FakeMlflow(taken=taken)
    with answering(mlflow) as address:
        check_mlflow(address)
        first = dict(mlflow.tags)
        check_mlflow(address + "/")
    assert len(first) == 1
    assert mlflow.tags.keys() == first.keys()
    assert mlflow.tags != first


def test_credentials_in_the_address_are_sent_and_never_shown(monkeypatch):
    """Before those of the environment, as MLflow's clients do; a password may need escapes."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "unused")
    mlflow = FakeMlflow()
    with answering(mlflow) as address:
        named = address.replace("://", "://me:s%40crets%2F1@")
        check_mlflow(named)
        assert mlflow.login == "Basic " + base64.b64encode(b"me:s@crets/1").decode()
        mlflow.keeps = False
        mlflow.tags.clear()
        with pytest.raises(ServiceError, match=f"MLflow at {address} does not return") as caught:
            check_mlflow(named)
    for wrong in (named, "http://me:s%40crets%2F1@nowhere:port", "http://nowhere:port"):
        with pytest.raises(ServiceError, match="cannot be reached") as caught:
            check_mlflow(wrong)
        assert "crets" not in str(caught.value)


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        (FakeMlflow(keeps=False), "does not return what was written"),
        (lambda *_: (403, "Invalid Host header"), "answers 403: Invalid Host header. Does its option --allowed-hosts"),
        (lambda *_: (401, "who?"), "MLFLOW_TRACKING_PASSWORD"),
        (lambda *_: (500, "QueuePool limit"), "answers 500: QueuePool limit. See its log"),
        (lambda *_: (200, "<html>"), "cannot be reached"),
    ],
    ids=["forgets", "host", "login", "error", "another program"],
)
def test_an_mlflow_that_does_not_work_is_refused(handle, said):
    """Each with a remedy, in one sentence."""
    with answering(handle) as address, pytest.raises(ServiceError, match=said) as caught:
        check_mlflow(address)
    assert "\n" not in str(caught.value)


def test_a_silent_service_is_over_in_time(tmp_path, monkeypatch):
    """It accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ServiceError, match=r"mlflow did not answer within 0\.3 s"):
            check("mlflow", tmp_path, 0.3)


def test_the_time_limit_ends_with_its_context():
    """What comes after is not interrupted."""
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(60, "it"):
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize("name", ["mlflow", "postgres", "scheduler", "dashboard", "ray"])
def test_the_command_says_what_is_missing(name, tmp_path, monkeypatch):
    """Exit status 1 and one sentence, where nothing runs and nothing is set."""
    for variable in ("MLFLOW_TRACKING_URI", "PARIBUS_DATABASE_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PARIBUS_DASHBOARD_URL", "http://127.0.0.1:1/")
    result = CliRunner().invoke(paribus, ["healthcheck", name, "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert str(result.exception).count("\n") == 0
    assert len(str(result.exception)) > 20


def test_postgres_commits_what_the_check_writes(server, tmp_path):
    """A file is no server."""
    if server is None:
        with pytest.raises(ServiceError, match="names no server"):
            check("postgres", tmp_path, 30)
    else:
        check("postgres", tmp_path, 30)


def test_a_postgres_that_takes_no_write_does_not_work(server, tmp_path, monkeypatch):
    """As a standby: it answers every question."""
    if server is None:
        pytest.skip("a server's matter")
    with monkeypatch.context() as patched:
        patched.setenv("PGOPTIONS", "-c default_transaction_read_only=on")
        with pytest.raises(ServiceError, match="read-only"):
            check("postgres", tmp_path, 30)


def test_the_password_of_the_database_comes_from_a_file(tmp_path, monkeypatch):
    """One in the URL goes before; a missing or empty file is refused; nothing prints the password."""
    file = tmp_path / "password"
    file.write_text("s3cret word\n")
    monkeypatch.setenv("PARIBUS_DATABASE_PASSWORD_FILE", str(file))
    monkeypatch.setenv("PARIBUS_DATABASE_URL", "postgresql://me@db/studies")
    assert database_url(tmp_path).password == "s3cret word"
    monkeypatch.setenv("PARIBUS_DATABASE_URL", "postgresql://me:other@db/studies")
    assert database_url(tmp_path).password == "other"
    monkeypatch.setenv("PARIBUS_DATABASE_URL", "postgresql://me@db/studies")
    file.write_text("\n")
    with pytest.raises(StoreError, match=r"is empty: write the password into it"):
        database_url(tmp_path)
    file.unlink()
    with pytest.raises(StoreError, match="cannot read the password"):
        database_url(tmp_path)


def test_a_scheduler_works_while_it_takes_turns(tmp_path):
    """None at all, `paribus run` alone, one that takes turns, and one that has stopped to."""
    with pytest.raises(ServiceError, match="no `paribus scheduler`"):
        check("scheduler", tmp_path, 5)
    with lock_home(tmp_path, "paribus run"), pytest.raises(ServiceError, match="only `paribus run`"):
        check("scheduler", tmp_path, 5)
    with lock_home(tmp_path, SCHEDULER, "local"):
        check("scheduler", tmp_path, 5)
        old = time.time() - LEASE_S - 30
        os.utime(tmp_path / "run.lock.json", (old, old))
        with pytest.raises(ServiceError, match=r"has done nothing for 9\d s"):
            check("scheduler", tmp_path, 5)
        beat(tmp_path)
        check("scheduler", tmp_path, 5)
        assert heartbeat_age_s(tmp_path) < LEASE_S
    beat(tmp_path)
    assert not (tmp_path / "run.lock.json").exists()


def test_a_dashboard_is_loaded_with_its_token(tmp_path, monkeypatch):
    """The real one: with the token it works, with another or none it answers 401."""
    file = tmp_path / "token"
    file.write_text("a-token-that-is-long-enough\n")
    command = [sys.executable, "-m", "paribus", "dashboard", "--port", "0", "--token-file", str(file)]
    with subprocess.Popen([*command, "--home", str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().partition("?")[0]
        monkeypatch.setenv("PARIBUS_DASHBOARD_URL", address)
        monkeypatch.setenv("PARIBUS_DASHBOARD_TOKEN_FILE", str(file))
        try:
            check("dashboard", tmp_path, 60)
            file.write_text("another-token-of-good-length")
            with pytest.raises(ServiceError, match=r"answers 401\. Is the token"):
                check("dashboard", tmp_path, 60)
            with pytest.raises(ServiceError, match="answers 401"):
                check_dashboard(address)
            check_dashboard(address, may_ask=True)
            check_dashboard(address, Tokens(tmp_path).create("monitor", "read"))
        finally:
            process.kill()


def test_another_program_is_no_dashboard():
    """It answers, but with no page of the dashboard's."""
    with answering(lambda *_: (200, "hello")) as address, pytest.raises(ServiceError, match="another program"):
        check_dashboard(address)
