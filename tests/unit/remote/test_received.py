"""What a laptop does with the answers of a server that is broken or hostile: one plain error, and nothing else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.errors import ArchiveError, ParibusError, ServerError
from paribus.remote import received
from paribus.remote.bundle import pack_report, unpack_report
from paribus.remote.client import Server
from paribus.store.remarks import Change

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\r\b\u202e\u2066end"
ENTRY = {
    "study": "s", "state": "queued", "priority": 0, "weight": 1.0, "runs": 1, "running": 0, "states": {"QUEUED": 1},
    "paused": "",
}  # fmt: skip
RUN = {
    "arm": "a", "seed": 1, "state": "QUEUED", "attempt": 0, "step": 0, "steps": 5, "health": "unknown", "detector": "",
    "reward": None, "reason": "", "fingerprint": "f" * 12,
}  # fmt: skip
STUDY = {
    "study": "s", "paused": "", "stage": "", "budget": [], "states": {"QUEUED": 1}, "page": 1, "pages": 1,
    "runs": [RUN],
}  # fmt: skip


class Fake:
    """A server that sends some bytes for each request and closes the connection."""

    def __init__(self) -> None:
        self.sends: Callable[[socket.socket], None] = lambda _: None
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                try:
                    while b"\r\n\r\n" not in connection.recv(1 << 16):
                        pass
                    self.sends(connection)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass
                except OSError:  # the client has gone
                    pass

    def answers(self, body: bytes, status: int = 200, length: int | None = None) -> None:
        """Answer from now on with this body."""
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body) if length is None else length}\r\n\r\n"
        self.sends = lambda connection: connection.sendall(head.encode() + body)

    def says(self, answer: Any, version: Any = 1) -> None:
        """Answer from now on as the API does, with any value."""
        self.answers(json.dumps({"version": version, "answer": answer}).encode())

    def close(self) -> None:
        """Listen no more; the number of the socket is the next one's only when the thread uses it no longer."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._listening.close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A server, and nothing else in the environment."""
    made = Fake()
    yield made
    made.close()


def error_of(fake: Fake, call: Callable[[Server], object] = Server.studies) -> str:
    """Return what a call raises; it is one of our errors, short, and harmless on a terminal."""
    with pytest.raises(ParibusError) as found:
        call(Server(address=fake.address, token="x" * 43))
    text = str(found.value)
    assert len(text) < 1000
    assert all(c.isprintable() for c in text), text
    assert "x" * 43 not in text
    return text


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"1", b"\x1b[2J", b"<html>", b"\xff\xfe", b'{"version": 1}', b'{"answer": {}}',
     b'{"version": "1", "answer": {}}', b'{"version": true, "answer": {}}', b"[" * 100_000,
     b'{"version": 1, "answer": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001, b"1" * 5_000],
)  # fmt: skip
def test_what_is_no_answer_of_paribus_is_one_error(fake: Fake, body: bytes) -> None:
    """Of any bytes, and of any depth."""
    fake.answers(body)
    assert "another program than Paribus answers" in error_of(fake)
    fake.answers(body, status=422)
    assert "another program than Paribus answers" in error_of(fake)
    fake.answers(body, status=502)
    assert "answers 502" in error_of(fake)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"studies": None}, "`studies` is None, not a list"),
        ({"studies": {}}, "not a list"),
        ({"studies": ["s"]}, "is not an object"),
        ({"served_by": "me"}, "`served_by`"),
        ({"served_by": {"command": "c", "process": "1", "engine": ""}}, "`process` is '1', not a whole number"),
        ({"studies": [ENTRY | {"study": ["s"]}]}, "`study` is"),
        ({"studies": [ENTRY | {"study": "s" * 5_000}]}, "5,000 characters"),
        ({"studies": [ENTRY | {"runs": 1.5}]}, "`runs` is 1.5, not a whole number"),
        ({"studies": [ENTRY | {"runs": -1}]}, "`runs` is -1"),
        ({"studies": [ENTRY | {"runs": True}]}, "`runs` is True"),
        ({"studies": [ENTRY | {"runs": 10**400}]}, "`runs` is 1000"),
        ({"studies": [ENTRY | {"weight": float("nan")}]}, "`weight` is nan"),
        ({"studies": [ENTRY | {"weight": float("-inf")}]}, "`weight` is -inf"),
        ({"studies": [ENTRY | {"weight": "inf"}]}, "`weight` is 'inf'"),
        ({"studies": [ENTRY | {"states": {"QUEUED": "many"}}]}, "`QUEUED` is 'many'"),
        ({"studies": [ENTRY | {"states": {str(n): n for n in range(101)}}]}, "101 entries"),
        ({"studies": [ENTRY | {"states": {ESCAPES: ESCAPES}}]}, "not a whole number"),
        ({"studies": [{k: v for k, v in ENTRY.items() if k != "paused"}]}, "`paused` is missing"),
    ],
)
def test_a_field_of_another_kind_is_one_error(fake: Fake, change: dict[str, Any], said: str) -> None:
    """It names the field; nothing of the answer is used."""
    fake.says({"served_by": None, "studies": [ENTRY]} | change)
    found = error_of(fake)
    assert "is damaged, and nothing of it is used" in found
    assert said in found


def test_every_request_checks_its_answer(fake: Fake) -> None:
    """No method of the client returns what it has not looked at."""
    fake.says({"runs": [], "study": 1})
    calls: tuple[Callable[[Server], object], ...] = (
        Server.studies,
        lambda s: s.study("s", 1, ()),
        lambda s: s.submit(b"x", {}, "s.yaml"),
        lambda s: s.cancel("s", None),
        lambda s: s.retry("s", None, "because"),
        lambda s: s.remarks("s"),
        lambda s: s.remark("s", Change(note="n")),
    )
    for call in calls:
        assert "is damaged" in error_of(fake, call)
    fake.says(STUDY | {"new": {"of": "a later version"}})
    older = {"note": "", "tags": []}  # of a server that does not send them yet
    said = STUDY | older | {"archived": False, "runs": [RUN | older | {"stopped_at_end": False}]}
    assert Server(address=fake.address, token="t").study("s", 1, ()) == said
    fake.says(STUDY, version=2)
    assert "answers in version 2" in error_of(fake)


def test_too_much_is_not_read(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading ends at the limit, whatever the server says of the length, or does not."""
    sent: list[int] = []

    def floods(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 X\r\n\r\n")
        try:
            for n in range(10_000):
                connection.sendall(b" " * 65_536)
                sent.append(n)
        except OSError:
            pass

    monkeypatch.setattr(received, "MOST_JSON", 1 << 20)
    fake.sends = floods
    assert "has sent more than 1,048,576 bytes" in error_of(fake)
    assert len(sent) < 10_000
    fake.answers(b" " * (received.MOST_ERROR + 1), status=422)
    assert "another program" in error_of(fake)


def test_an_answer_that_ends_early_or_never_is_one_error(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that breaks, and a server that sends a byte now and then, for ever."""
    fake.answers(b'{"version": 1', length=1000)
    assert "the connection ended 987 bytes before the answer" in error_of(fake)
    stop = threading.Event()

    def drips(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 X\r\n\r\n")
        while not stop.wait(0.05):
            connection.sendall(b" ")

    clock = count(0, 10)  # ten seconds from one look at it to the next
    monkeypatch.setattr(received, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    fake.sends = drips
    with pytest.raises(ServerError, match="not all of the answer came within 60 s"):
        Server(address=fake.address, token="t").studies()
    stop.set()


@pytest.mark.parametrize(
    "head",
    [b"", b"\x1b[31m\r\n\r\n", b"HTTP/1.1 two X\r\n\r\n", b"HTTP/1.1 200 X\r\n" + b"a" * 70_000,
     b"HTTP/1.1 200 X\r\n" + b"a: b\r\n" * 200 + b"\r\n"],
)  # fmt: skip
def test_what_is_no_http_is_one_error(fake: Fake, head: bytes) -> None:
    """Nothing, noise, and headers without end."""
    fake.sends = lambda connection: connection.sendall(head)
    assert "cannot be reached" in error_of(fake)


def test_escapes_are_shown_and_have_no_effect(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every text that a command prints: a server can neither clear a terminal nor forge a line of a table."""
    monkeypatch.setenv("PARIBUS_SERVER", fake.address)
    monkeypatch.setenv("PARIBUS_TOKEN", "t" * 43)

    def prints(*arguments: str) -> str:
        done = CliRunner().invoke(paribus, list(arguments))
        assert done.exit_code == 0, done.output
        assert all(c.isprintable() or c == "\n" for c in done.output), repr(done.output)
        return done.output

    names = {"study": ESCAPES, "state": f"ok\n{ESCAPES}", "paused": ESCAPES}
    by = {"command": ESCAPES, "process": 1, "engine": ESCAPES}
    fake.says({"served_by": by, "studies": [ENTRY | names]})
    shown = prints("status").replace("\n", "")
    assert "\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\r\\x08\\u202e\\u2066end" in shown
    assert prints("status", "--json")
    run = RUN | dict.fromkeys(("arm", "health", "detector", "reason", "state"), ESCAPES)
    fake.says(STUDY | {"runs": [run], "stage": ESCAPES, "paused": ESCAPES, "states": {ESCAPES: 1}, "pages": 2})
    prints("status", "s")
    fake.says({"runs": dict.fromkeys(("queued", "running", "shared", "ended"), 1), "serving": True, "trouble": ESCAPES})
    prints("cancel", "s")
    error = {"code": "P300", "exit_code": 1, "message": ESCAPES}
    fake.answers(json.dumps({"error": error}).encode(), status=422)
    assert "\\x1b[2J" in error_of(fake)
    for wrong in ({"exit_code": 0}, {"code": "P1\n"}, {"message": 1}, {"problems": {}}):
        fake.answers(json.dumps({"error": error | wrong}).encode(), status=422)
        assert "another program" in error_of(fake)


def test_letters_of_the_world_and_spaces_stay(fake: Fake) -> None:
    """Only what has no shape of its own is escaped."""
    name = "Zürich 東京 αβ 😀 a\u00a0b\u2009c"
    fake.says(STUDY | {"study": name})
    assert Server(address=fake.address, token="t").study("s", 1, ())["study"] == name
    assert received.visible("a\nb", lines=True) == "a\nb"
    assert received.visible("a\nb\udc80") == "a\\nb\\udc80"


def test_a_report_says_only_what_came_with_it(tmp_path: Path) -> None:
    """The files that it names are those of the bundle, and its text controls no terminal."""
    report, out = tmp_path / "report", tmp_path / "out"
    report.mkdir()
    (report / "report.md").write_text("x")
    good = {"text": f"a\n{ESCAPES}", "notes": [ESCAPES], "paths": ["report.md"]}
    found = unpack_report(pack_report("s", good, report), out)
    assert all(c.isprintable() or c == "\n" for c in found["text"] + found["notes"][0])
    for wrong in ({"paths": ["/etc/passwd"]}, {"paths": ["../x"]}, {"paths": "x"}, {"text": None}, {"notes": [1]}):
        with pytest.raises(ArchiveError, match=r"answer.json of the server's report"):
            unpack_report(pack_report("s", good | wrong, report), tmp_path / "other")
    assert not (tmp_path / "other").exists()
