"""What others may see: no message names a credential, and nobody else enters a home folder."""

import json
import os
import subprocess
import sys

import pytest

from paribus.audit.doctor import Check
from paribus.errors import StoreError
from paribus.failures import storable
from paribus.home import make_home
from paribus.masking import describe, mask
from paribus.store.store import Store
from support.plans import small_plan

AWAY = "http://{}@127.0.0.1:9/"  # the port of the discard service: refused at once
FORMS = ("ada:c4naryBird", "ada:c4nary%40Bird%2F7", "ada:c4nary@Bird7@x", "ada:c4nary/Bird7", "ada:c4nary:Bird7#y")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://ada:pw@host:5000/api failed", "GET http://ada:***@host:5000/api failed"),
        ("postgresql://ada:a@b@host/db?sslpassword=x&a=1", "postgresql://ada:***@host/db?sslpassword=***&a=1"),
        ("https://ghp_abc@host/x", "https://***@host/x"),
        ("postgresql://ada@host/db", "postgresql://ada@host/db"),
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/***"),
        ("https://host/api/get?metric_key=a/b&access_token=xyz&n=1", "https://host/api/get?metric_key=a/b&access_token=***&n=1"),
        ("http://127.0.0.1:8050/?token=...", "http://127.0.0.1:8050/?token=..."),
        ("host=db password='a b' user=ada", "host=db password=*** user=ada"),
        ("Authorization: Basic YWRhOmM0bmFyeQ==", "Authorization: Basic ***"),
        ("Basic understanding, fence token 3, token=7", "Basic understanding, fence token 3, token=7"),
        ("https://github.com/a/b/issues/7#note", "https://github.com/a/b/issues/7#note"),
    ],
)  # fmt: skip
def test_credentials_are_hidden_by_their_form(text, shown):
    """In URLs, connection strings and headers; what only looks similar stays."""
    assert mask(text) == shown


@pytest.mark.parametrize("userinfo", FORMS)
def test_a_password_of_the_environment_is_hidden_wherever_it_stands(monkeypatch, userinfo):
    """As it was typed, decoded, in parts that a library took for something else, and as a tracking server got it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY.format(userinfo))
    password = userinfo.partition(":")[2]
    for text in (AWAY.format(userinfo), f"for {password!r}", f"no host {password.rpartition('@')[2]}@127.0.0.1"):
        assert "c4nary" not in mask(text)
        assert "Bird" not in mask(text)


def test_secrets_in_variables_are_hidden_and_words_are_not(monkeypatch):
    """A webhook's path and a token by their variables' names; short values and flags stay."""
    monkeypatch.setenv("TEAM_WEBHOOK", "https://chat.example/v1/c4nary-hook")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "c4nary.token.77")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("PGPASSWORD", "abc")
    shown = mask("post https://chat.example/v1/c4nary-hook, v1/c4nary-hook: c4nary.token.77; false abc")
    assert "c4nary" not in shown
    assert shown.endswith("false abc")


def test_every_message_passes_the_mask(monkeypatch):
    """Errors, reasons of failures that the store keeps, and checks of the doctor."""
    url = "postgresql://ada:c4nary@db/studies"
    check = Check(name="x", level="ok", message=url)
    for shown in (str(StoreError(f"no {url}")), describe(OSError(url)), storable(url), check.message):
        assert "c4nary" not in shown
        assert "ada:***@db" in shown


@pytest.mark.slow
def test_no_file_and_no_output_shows_the_password_of_a_server_that_is_away(tmp_path):
    """The sync's log and status, doctor's check, and the error of the command line."""
    pytest.importorskip("mlflow")
    with Store.open(tmp_path) as store:
        store.claim(store.add_study(small_plan()).id, engine="test", worker="here")
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": AWAY.format("ada:c4nary%40Bird"),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "OPS_WEBHOOK": "https://hooks.example/c4nary",
    }
    sync = (
        "import sys; from paribus.mlflow_sync import sync, client; sync.DRAIN_S = 0.0\n"
        "sync.MlflowSync._folders = lambda self, run: {1: None}\n"
        "sync.MlflowSync._open = lambda self, *_: client.MlflowWriter(client.tracking_uri(self._reader.home),\n"
        "                                                             self._reader.home)\n"
        "sync.MlflowSync._pack = lambda *_: None; sys.exit(sync.main(sys.argv[1:]))"
    )
    said = ""
    for command in (["-c", sync], ["-m", "paribus.audit.timed_check", "mlflow"]):
        done = subprocess.run(
            [sys.executable, *command, str(tmp_path)], env=environment, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=100,
        )  # fmt: skip
        said += done.stdout + done.stderr
    environment["PARIBUS_DATABASE_URL"] = "postgresql://ada:c4nary%40Bird@127.0.0.1:9/studies"
    status = [sys.executable, "-m", "paribus", "status", "--home", str(tmp_path)]
    done = subprocess.run(status, env=environment, capture_output=True, text=True, check=False, timeout=100)
    said += done.stdout + done.stderr
    assert "127.0.0.1" in said
    assert json.loads((tmp_path / "mlflow_sync.json").read_text())["trouble"]
    said += "".join(p.read_bytes().decode(errors="replace") for p in tmp_path.rglob("*") if p.is_file())
    assert [line for line in said.splitlines() if "c4nary" in line or "Bird" in line] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, 0o700), (0o755, 0o700), (0o775, 0o700), (0o750, 0o750), (0o2775, 0o2770), (0o700, 0o700)],
)
def test_nobody_else_enters_a_home_folder(tmp_path, before, after):
    """One that you shared with your group stays shared with it, and with nobody else."""
    home = tmp_path / "deep" / "home"
    if before is not None:
        home.mkdir(parents=True)
        home.chmod(before)
    make_home(home)
    assert home.stat().st_mode & 0o7777 == after
    with Store.open(home):
        assert home.stat().st_mode & 0o7777 == after
