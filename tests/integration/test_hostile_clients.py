"""A server with clients that break off, lie, or send what is made to harm: it stays up, and nothing of it stays."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import sqlalchemy as sa

from paribus.archive.tar_file import Manifest, member, write_archive
from paribus.remote.tokens import Tokens
from support.databases import server
from support.site import Site, until

__all__ = ["server"]

LIMIT_S = 120
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
STUDY = """
study: {study}
question: Is it safe?
runner: fake
base: {{preset: grpo, set: {{kl: {{kind: "off"}}, schedule.steps: 4{more}}}}}
designs: {{solo: {{kind: list, arms: {{{arm}: {{}}}}}}}}
seeds: {{n: 1}}
"""


class Served:
    """A dashboard with a token, and all that it writes outside its home folder."""

    def __init__(self, path: Path) -> None:
        self.temporary = path / "temporary"
        self.temporary.mkdir()
        self.site = Site(path, {**os.environ, "TMPDIR": str(self.temporary)})
        self.token = Tokens(self.site.home).create("ana", "run")
        self.process = self.site.start("dashboard", "--home", str(self.site.home), "--port", "0")
        assert self.process.stdout is not None
        address = re.search(r"http://[^/\s]+", self.process.stdout.readline())
        assert address is not None
        self.place = urlsplit(address.group())
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and text of an answer."""
        connection = http.client.HTTPConnection(self.place.hostname or "", self.place.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def sends_a_part(self, *, politely: bool) -> None:
        """Send a tenth of a study, and close the connection."""
        with socket.create_connection((self.place.hostname, self.place.port), timeout=LIMIT_S) as connection:
            head = f"POST /api/studies HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n"
            connection.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + b"x" * 100_000)
            until(lambda: list(self.temporary.glob("paribus-api-*/bundle.tar")))
            if not politely:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def ends(self) -> str:
        """Stop the server; return its log."""
        self.process.terminate()
        return self.site.ended(self.process)[1]


@pytest.fixture
def served(server: sa.URL | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server on a free port, over a file and over a PostgreSQL server."""
    for name in ("PARIBUS_SERVER", "PARIBUS_TOKEN", "PARIBUS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    made = Served(tmp_path)
    yield made
    made.site.close()


def bundle(tmp_path: Path, text: str, *others: str) -> bytes:
    """Return a study as `paribus submit` sends it, with empty files of these names beside it."""
    (tmp_path / "sent.yaml").write_text(text)
    (tmp_path / "empty").write_text("")
    sources = {"study.yaml": tmp_path / "sent.yaml", **dict.fromkeys(others, tmp_path / "empty")}
    made = Manifest(study="x", paribus="0", files=tuple(member(name, path) for name, path in sources.items()))
    write_archive(packed := io.BytesIO(), made, sources)
    return packed.getvalue()


def cookie_of(served: Served) -> str:
    """Return the cookie that a browser gets for the token."""
    form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ""}
    found = served.ask("POST", "/", f"token={served.token}".encode(), form)[1]
    return found["set-cookie"].partition(";")[0]


def test_a_client_that_breaks_off_leaves_nothing(served: Served) -> None:
    """No traceback in the log, no file, and no place is taken from others, whether it says goodbye or not."""
    for politely in (True, False):
        served.sends_a_part(politely=politely)
        until(lambda: not list(served.temporary.iterdir()))
    assert served.ask("GET", "/api/studies")[0] == 200
    form = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": "100"}
    with socket.create_connection((served.place.hostname, served.place.port), timeout=LIMIT_S) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in form.items())
        connection.sendall(f"POST / HTTP/1.1\r\nHost: localhost\r\n{lines}\r\ntoken=".encode())
    assert served.ask("GET", "/api/studies")[0] == 200
    logged = served.ends()
    assert "Traceback" not in logged, logged
    assert "ERROR" not in logged, logged


@pytest.mark.slow
def test_what_is_made_to_harm_is_refused(served: Served, tmp_path: Path) -> None:
    """Bombs, names that lead elsewhere, in files, studies, arms and addresses: a sentence each, and no file."""
    before = {p for p in tmp_path.rglob("*") if p.is_file() and served.site.home not in p.parents}
    good = STUDY.format(study="good", arm="plain", more="")
    odd = ("../../evil", "$(touch evil)")
    studies = {f'"{name}"': STUDY.format(study=f'"{name}"', arm="plain", more="") for name in odd}
    studies["a bomb"] = f"{BOMB}{good}"
    studies["depth"] = "study: " + "[" * 5_000
    studies["an object"] = f"{good}evil: !!python/object/apply:os.system ['touch evil']\n"
    studies["a reward"] = STUDY.format(
        study="x", arm="plain", more=", reward: {kind: function, functions: {f: ../../evil.f}}"
    )
    sent = {name: bundle(tmp_path, text) for name, text in studies.items()}
    sent["a file"] = bundle(tmp_path, good, "beside/../../evil.py")
    for name, body in sent.items():
        status, _, answer = served.ask("POST", "/api/studies", body)
        found = json.loads(answer)
        assert (status, "error" in found) == (422, True), (name, answer[:500])
        assert len(found["error"]["message"]) < 5_000, name
        assert "Traceback" not in answer, name
        assert str(served.temporary) not in answer, name
    for path in ("..%2f..%2ftokens.json", "%2e%2e", "x%00y", "a" * 3_000, "%3Cscript%3E"):
        for method, end in (("GET", ""), ("GET", "/report"), ("POST", "/cancel"), ("POST", "/retry")):
            status, _, answer = served.ask(method, f"/api/studies/{path}{end}", b"" if method == "POST" else None)
            assert 400 <= status < 500, (path, end, status)
            assert "hash" not in answer
            assert len(answer) < 5_000
        assert served.ask("POST", f"/api/studies/good/cancel?arm={path}", b"")[0] == 422
    assert json.loads(served.ask("GET", "/api/studies")[2])["answer"]["studies"] == []
    arm = bundle(tmp_path, STUDY.format(study="arms", arm='"../../evil"', more=""))  # a label, which no path has in it
    assert served.ask("POST", "/api/studies", arm)[0] == 200
    (run,) = json.loads(served.ask("GET", "/api/studies/arms")[2])["answer"]["runs"]
    assert served.ask("POST", f"/api/studies/arms/cancel?arm={quote(run['arm'], safe='')}", b"")[0] == 200, run
    assert served.ask("GET", "/study/arms", headers={"Cookie": cookie_of(served)})[0] == 200
    here = {p for p in tmp_path.rglob("*") if p.is_file() and served.site.home not in p.parents}
    assert here - before <= {tmp_path / "sent.yaml", tmp_path / "empty"}
    assert not list(served.site.home.rglob("*evil*"))
    logged = served.ends()
    assert "Traceback" not in logged, logged


def test_no_address_holds_a_null_byte(served: Served) -> None:
    """PostgreSQL takes none in a text: refused in one place, in path and query, of the API and of pages."""
    for path in ("/api/studies/x%00y", "/api/studies?page=%00", "/api/studies/x/report?published=a%00", "/study/x%00y"):
        assert served.ask("GET", path)[0] == 422, path
    for path in ("x%00y/cancel", "x%00y/retry", "x/retry?reason=x%00y", "x/cancel?arm=%00", "x/cancel?%00=1"):
        status, _, answer = served.ask("POST", f"/api/studies/{path}", b"")
        assert (status, json.loads(answer)["error"]["message"]) == (422, "an address holds no null byte (%00)."), path
    logged = served.ends()
    assert "Traceback" not in logged, logged


def test_a_token_stands_in_no_log_and_no_cookie_goes_unencrypted(served: Served) -> None:
    """Not even one that a client has put into an address or a Referer; `Secure` where the proxy says https."""
    status, found, page = served.ask("GET", f"/?token={served.token}", headers={"Authorization": ""})
    assert status == 401
    assert found["referrer-policy"] == "no-referrer"
    assert served.token not in page
    referer = {"Referer": f"http://localhost/?token={served.token}", "Authorization": ""}
    assert served.ask("GET", "/nowhere", headers=referer)[0] == 401
    assert served.ask("GET", f"/api/studies?token={served.token}", headers=referer)[0] == 401
    form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ""}
    for proto, secure in (("https", True), ("http", False), ("evil", False)):
        sent = form | {"X-Forwarded-Proto": proto, "X-Forwarded-For": "192.0.2.7"}
        status, found, _ = served.ask("POST", "/", f"token={served.token}".encode(), sent)
        assert status == 200
        assert ("; Secure" in found["set-cookie"]) == secure
        assert "HttpOnly" in found["set-cookie"]
    assert served.token not in served.ends()
