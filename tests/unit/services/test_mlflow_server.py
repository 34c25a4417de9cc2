"""How MLflow's server is started: the options without which it is slow, large or deaf, and no secret in sight."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from paribus.services import mlflow_server
from paribus.services.mlflow_server import main, server_command, server_environment
from support.site import until


def test_clients_may_call_it_by_the_names_that_are_allowed():
    """With any port; its own machine always may."""
    command = server_command("sqlite:///x.db", "files", "0.0.0.0", 5000, ["mlflow"])
    assert command[command.index("--allowed-hosts") + 1] == "mlflow:*,localhost:*,127.0.0.1:*"
    assert command[command.index("--workers") + 1] == "1"


def test_the_password_is_in_the_environment_alone(tmp_path, monkeypatch):
    """Other users of a machine see command lines."""
    file, seen = tmp_path / "password", {}
    file.write_text("a secret\n")
    monkeypatch.setattr(mlflow_server, "serve", lambda command, environment: seen.update(c=command, e=environment) or 0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert main(["--store", "postgresql+psycopg://me@db/mlflow", "--artifacts", "f", "--password-file", str(file)]) == 0
    assert not any("a secret" in word for word in seen["c"])
    assert seen["e"]["PGPASSWORD"] == "a secret"
    assert seen["e"]["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert "MLFLOW_TRACKING_URI" not in seen["e"]


def test_what_the_user_sets_goes_before():
    """For example a larger pool."""
    made = server_environment({"MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "50"})
    assert made["MLFLOW_SQLALCHEMYSTORE_POOL_SIZE"] == "50"
    assert "PGPASSWORD" not in made


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_missing_or_empty_password_is_refused(tmp_path, content, capsys):
    """Before anything is started; in one line."""
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    assert main(["--store", "sqlite:///x", "--artifacts", "f", "--password-file", str(file)]) == 1
    assert capsys.readouterr().err.startswith("error P800: ")


def test_a_signal_ends_the_server_and_what_it_started(tmp_path):
    """Also what has moved to another session."""
    child = "import subprocess, sys, time; subprocess.Popen(['sleep', '611'], start_new_session=True); time.sleep(611)"
    program = (
        "import os, sys\nfrom paribus.services.mlflow_server import serve\n"
        f"sys.exit(serve([sys.executable, '-c', {child!r}], {{**os.environ, 'MARK': {str(tmp_path)!r}}}))"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: len(marked(tmp_path)) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    until(lambda: not marked(tmp_path))


def marked(folder):
    """Return the processes that were started with the mark in their environment."""
    mark, found = f"MARK={folder}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
