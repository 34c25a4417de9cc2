"""A study that is submitted from another folder through a token: server and scheduler are processes of their own."""

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from paribus.remote.tokens import Tokens
from support.site import Site, until

REWARD = "from helper import half\n\n\ndef short(completions, **columns):\n    return [half(c) for c in completions]\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A server, as `paribus dashboard` on a free port, and a scheduler; the studies are elsewhere."""
    for name in ("PARIBUS_DATABASE_URL", "PARIBUS_SERVER", "PARIBUS_TOKEN", "PARIBUS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['mlflow'] = None\n")
    made = Site(tmp_path)
    yield made
    made.close()


class Laptop:
    """Another folder with the commands of a user."""

    def __init__(self, site, tmp_path, token):
        self.folder = tmp_path / "laptop"
        self.folder.mkdir(exist_ok=True)
        self.process = site.start("dashboard", "--home", str(site.home), "--port", "0")
        self.address = re.match(r"http://[^/]+", self.process.stdout.readline()).group()
        environment = {k: v for k, v in site.environment.items() if k not in ("PARIBUS_HOME", "PYTHONPATH")}
        self.environment = {**environment, "PARIBUS_SERVER": self.address, "PARIBUS_TOKEN": token}

    def say(self, *arguments, **environment):
        """Run a command; return its exit status and what it printed."""
        command = [sys.executable, "-m", "paribus", *arguments]
        variables = {k: v for k, v in {**self.environment, **environment}.items() if v is not None}
        done = subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_study_travels_and_its_report_comes_back(site, tmp_path):
    """Submitted with its rewards, trained, watched, reported; what is wrong comes back with its place."""
    tokens = Tokens(site.home)
    secret, reader = tokens.create("ana", "run"), tokens.create("bob", "read")
    laptop = Laptop(site, tmp_path, secret)
    assert laptop.say("status")[0] == 0
    source = Path(site.study())
    text = source.read_text().replace(
        'kl: {kind: "off"}', 'kl: {kind: "off"}, reward: {kind: function, functions: {short: mine.short}}'
    )
    source.unlink()
    (laptop.folder / "mine.py").write_text(REWARD)
    (laptop.folder / "helper.py").write_text("def half(text):\n    return len(text) / 2\n")
    (laptop.folder / "faked.yaml").write_text(text)

    wrong = text.replace("token_level: {aggregation", "token_level: {agregation")
    (laptop.folder / "wrong.yaml").write_text(wrong)
    status, said = laptop.say("submit", "wrong.yaml")
    assert status == 2
    assert re.search(r"\bwrong\.yaml:\d+:\d+: .*agregation.*aggregation", said)
    (laptop.folder / "wrong.yaml").write_text(text.replace("runner: fake", "runner: {kind: fake, nothing: 1}"))
    status, said = laptop.say("submit", "wrong.yaml")  # only the server has the runner, so only it can know
    assert status == 2
    assert re.search(r"\bwrong\.yaml:\d+:\d+: runner.nothing", said), said
    task = "task: {kind: jsonl, train: d.jsonl, heldout: d.jsonl}, reward: {kind: function"
    here = f"model: here, optimizer.learning_rate: 1.0e-6, {task}"
    native = text.replace("runner: fake", "runner: native").replace("reward: {kind: function", here)
    (laptop.folder / "wrong.yaml").write_text(native)
    (laptop.folder / "d.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    assert "Data and models are not sent" in laptop.say("submit", "wrong.yaml")[1]
    assert json.loads(laptop.say("status", "--json")[1]) == {"served_by": None, "studies": []}

    status, said = laptop.say("submit", "faked.yaml", "--priority", "3")
    assert said.startswith("faked: 4 runs: 4 new; priority 3, weight 1\n"), said
    assert status == 0
    assert laptop.say("submit", "faked.yaml")[1].startswith("faked: 4 queued; priority 3, weight 1\n")
    status, said = laptop.say("submit", "faked.yaml", PARIBUS_TOKEN=reader)
    assert (status, "the token `bob` has the scope `read`, and this needs `run`" in said) == (1, True)
    assert "No scheduler works on" in laptop.say("status", PARIBUS_TOKEN=reader)[1]
    site.start("scheduler", "--slots", "2")
    until(lambda: json.loads(laptop.say("status", "--json")[1])["studies"][0]["state"] == "ended")
    ours = ["--home", str(site.home), "--json"]
    for about in ([], ["faked"]):  # both ways say the same, also which process trains
        there, here = (json.loads(laptop.say("status", *about, *way)[1]) for way in (["--json"], ours))
        assert there == here
    assert json.loads(laptop.say("status", "--json")[1])["served_by"]["command"] == "paribus scheduler"
    assert re.search(
        r"`paribus scheduler` \(process \d+\) works on http://\S+ on the engine local", laptop.say("status")[1]
    )
    found = json.loads(laptop.say("status", "faked", "--state", "succeeded", "--json")[1])
    assert [run["state"] for run in found["runs"]] == ["SUCCEEDED"] * 4
    folder = next(site.home.glob("runs/*/a1"))
    job = json.loads((folder / "job.json").read_text())
    assert job["options"]["sources"] == {name: (laptop.folder / name).read_text() for name in ("helper.py", "mine.py")}

    status, said = laptop.say("report", "faked", PARIBUS_TOKEN=reader)
    assert status == 0, said
    assert "token_level" in said
    assert json.loads((laptop.folder / "reports" / "faked" / "report.json").read_text())["study"] == "faked"
    assert list((laptop.folder / "reports" / "faked" / "tables").glob("*.tex"))
    assert "faked: 4 had ended before" in laptop.say("cancel", "faked.yaml")[1]
    assert "note of ana, " in laptop.say("note", "faked.yaml", "half the length")[1]
    assert "  tags: good" in laptop.say("tag", found["runs"][0]["fingerprint"][:8], "+good")[1]
    status, said = laptop.say("tag", "faked", "+bad", PARIBUS_TOKEN=reader)
    assert (status, "the token `bob` has the scope `read`, and this needs `run`" in said) == (1, True)
    tagged = json.loads(laptop.say("status", "faked", "--tag", "good", "--json")[1])
    assert [run["tags"] for run in tagged["runs"]] == [["good"]]
    assert "on the machine of the server" in laptop.say("delete", "faked", "--yes")[1]
    assert "faked: archived" in laptop.say("archive", "faked")[1]
    assert "1 archived: paribus status --archived" in laptop.say("status")[1]
    assert "nothing has failed or been cancelled" in laptop.say("retry", "faked")[1]
    assert not (laptop.folder / ".paribus").exists()
    assert "there is no study" in laptop.say("report", "fakd")[1]

    tokens.revoke("ana")
    status, said = laptop.say("status")
    assert (status, said.startswith("error P810: this server needs a token, and this is none of its.")) == (1, True)
    laptop.process.terminate()
    _, logged = site.ended(laptop.process)
    assert "ana submitted faked" in logged
    for file in [p for p in site.home.rglob("*") if p.is_file()]:
        assert secret.encode() not in file.read_bytes(), file
    assert secret not in logged


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PARIBUS_TOKEN": None}, "PARIBUS_TOKEN is not: set it"),
        ({"PARIBUS_TOKEN": "two words"}, "has characters that no token has"),
        ({"PARIBUS_SERVER": "http://192.0.2.1:8765"}, "without encryption"),
        ({"PARIBUS_SERVER": "http://localhost.example"}, "without encryption"),
        ({"PARIBUS_SERVER": "ftp://localhost"}, "not an address"),
        ({"PARIBUS_SERVER": "paribus.example"}, "not an address"),
        ({"PARIBUS_SERVER": "https://ana:secretpass@paribus.example"}, "not an address"),
        ({"PARIBUS_SERVER": "http://127.0.0.1:1"}, "cannot be reached: .*refused"),
        ({"PARIBUS_TOKEN": None, "PARIBUS_TOKEN_FILE": "/nowhere"}, "cannot read the token"),
    ],
)
def test_wrong_settings_are_sentences(tmp_path, monkeypatch, variables, message):
    """What is wrong and what to set; neither the token nor a password is shown."""
    from click.testing import CliRunner

    from paribus.cli import status
    from paribus.errors import ServerError

    for name, value in {"PARIBUS_SERVER": "http://127.0.0.1:1", "PARIBUS_TOKEN": "x" * 43, **variables}.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(status.command, [])
    assert isinstance(done.exception, ServerError)
    assert re.search(message, str(done.exception))
    assert "secretpass" not in str(done.exception)
    assert "x" * 43 not in str(done.exception)


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects what asks for `/a`, answers others with something, and remembers the headers."""

    seen: list[str | None] = []  # noqa: RUF012

    def do_GET(self):
        """Answer."""
        self.seen.append(self.headers.get("authorization"))
        self.send_response(302 if self.path.startswith("/a/") else 200)
        self.send_header("location", f"http://localhost:{self.server.server_port}/b")
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_):
        """Say nothing."""


def test_a_token_follows_no_redirect_and_another_program_is_noticed(monkeypatch):
    """A server that leads elsewhere gets one request, and elsewhere gets none."""
    from paribus.errors import ServerError
    from paribus.remote.client import Server

    Elsewhere.seen = []
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ServerError, match="leads to another address"):
            Server(address=f"{address}/a", token="secret").studies()
        assert Elsewhere.seen == ["Bearer secret"]
        with pytest.raises(ServerError, match="another program than Paribus answers"):
            Server(address=address, token="secret").studies()
        server.shutdown()
