"""The processes of the API: what they get, what is left of them, and what becomes of clients when all are busy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from paribus.errors import DashboardError
from paribus.remote.tokens import Tokens
from paribus_dashboards.api import routes, work
from paribus_dashboards.data.home import Home
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app

PATIENCE_S = 60
LEAVES = """
import os, pathlib, signal, subprocess, sys, tempfile, time
marks = pathlib.Path(sys.argv[1])
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (marks / str(os.getpid())).touch()
        time.sleep(120)
        os._exit(0)
hides = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(120)"
subprocess.Popen([sys.executable, "-c", hides, str(marks)], env={}, start_new_session=True)
while len(list(marks.iterdir())) < 9:
    time.sleep(0.01)
pathlib.Path(tempfile.mkdtemp(), "file").write_text("x")
(marks / "ready").touch()
time.sleep(120)
"""


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program `LEAVES` notes what it starts; temporary folders are beside it."""
    for name in ("marks", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "leaves.py").write_text(LEAVES)
    monkeypatch.setattr(work, "COMMAND", (sys.executable, str(tmp_path / "leaves.py"), str(tmp_path / "marks")))
    return tmp_path / "marks"


@pytest.fixture
def server(new_folder: Callable[[], Path]) -> tuple[TestClient, dict[str, str]]:
    """A server, and the headers of a token that may do everything."""
    folder = new_folder()
    headers = {"authorization": f"Bearer {Tokens(folder).create('ana', 'run')}"}
    return TestClient(make_app(Home(folder), access=Access(), keep_s=0), base_url="http://localhost"), headers


class Request:
    """A request of which only one thing is known: when its client disconnects."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        """Wait until the client has gone."""
        await self.gone.wait()
        return {"type": "http.disconnect"}


def lives(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def nothing_is_left(marks: Path) -> None:
    """No process that `LEAVES` has started lives, and no temporary file exists."""
    started = [int(path.name) for path in marks.iterdir() if path.name != "ready"]
    assert len(started) == 9
    end = time.monotonic() + PATIENCE_S
    while left := [pid for pid in started if lives(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert not list((marks.parent / "tmp").iterdir())


@pytest.mark.slow
def test_nothing_outlives_the_time_limit(
    marks: Path, server: tuple[TestClient, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither processes that have left session and parent, nor files; the client gets a sentence."""
    monkeypatch.setattr(work, "LIMIT_S", 10.0)
    client, headers = server
    answer = client.get("/api/studies/made-up/report", headers=headers)
    assert answer.status_code == 422
    assert "has not done this within 10 s" in answer.json()["error"]["message"]
    nothing_is_left(marks)


@pytest.mark.parametrize("how", ["disconnects", "is cancelled"])
def test_a_client_that_goes_ends_its_work(marks: Path, how: str) -> None:
    """As does a server that stops; the next request finds the places free."""

    async def one() -> None:
        room, request = work.Room(), Request()

        async def wanted() -> None:
            async with room.place() as folder:
                await room.work(request, {"do": "report"}, folder)  # type: ignore[arg-type]

        task = asyncio.create_task(wanted())
        end = time.monotonic() + PATIENCE_S
        while not (marks / "ready").exists():
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        if how == "disconnects":
            request.gone.set()
            with pytest.raises(work.ClientDisconnect):
                await asyncio.wait_for(task, PATIENCE_S)
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, PATIENCE_S)
        assert room._there == 0
        assert room._turn._value == work.AT_ONCE

    asyncio.run(one())
    nothing_is_left(marks)


def test_files_of_a_server_that_was_killed_go_with_the_next_request(marks: Path) -> None:
    """Those of a server that lives, and of other requests, stay."""
    folder = marks.parent / "tmp"
    program = (
        "import asyncio, sys, time\nfrom paribus_dashboards.api.work import Room\nasync def one():\n"
        " async with Room().place() as f:\n  print(f, flush=True); time.sleep(600)\nasyncio.run(one())"
    )
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        for _ in range(2)
    ]

    async def others(room: work.Room, wanted: set[Path]) -> None:
        async with room.place() as own, room.place() as other:
            assert set(folder.iterdir()) == wanted | {own, other}

    try:
        killed, lives_ = (Path(server.stdout.readline().strip()) for server in servers if server.stdout is not None)
        servers[0].kill()
        servers[0].wait()
        assert killed.exists()
        asyncio.run(others(work.Room(), {lives_}))
        assert list(folder.iterdir()) == [lives_]
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def test_a_number_that_may_be_anothers_by_now_gets_no_signal(marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended and was waited for, so the system may give its number to another one."""
    told: list[int] = []
    monkeypatch.setattr(work, "COMMAND", (sys.executable, "-c", "print('{}')"))
    monkeypatch.setattr(work, "signal_group", lambda group, number: told.append(group))

    async def one() -> None:
        async with work._process(marks.parent) as process:
            await process.communicate(b"")

    asyncio.run(one())
    assert told == []


def test_a_process_gets_no_secret_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The store's, and those for data and models; what else a runner needs is named."""
    for name in (
        "PARIBUS_TOKEN",
        "DASHBOARD",
        "MLFLOW_TRACKING_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "ALERT_URL",
        "MINE",
    ):
        monkeypatch.setenv(name, "s3cret-mark")
    for name in ("PARIBUS_DATABASE_URL", "HF_TOKEN", "PGPASSFILE", "LC_ALL"):
        monkeypatch.setenv(name, "needed")
    found = work.environment("m", tmp_path)
    assert "s3cret-mark" not in found.values()
    assert {name for name, value in found.items() if value == "needed"} >= {
        "PARIBUS_DATABASE_URL", "HF_TOKEN", "PGPASSFILE", "LC_ALL",
    }  # fmt: skip
    assert (found["TMPDIR"], found[work.MARK]) == (str(tmp_path), "m")
    monkeypatch.setenv("PARIBUS_API_ENVIRONMENT", "MINE, OTHER")
    assert work.environment("m", tmp_path)["MINE"] == "s3cret-mark"


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What takes more than it may ends with a sentence; what is below is done."""
    program = (
        "import sys\nfrom paribus.remote import worker\n"
        "worker.report = lambda order, stage: {'length': len(bytearray(int(float(sys.argv[1]) * 2**30)))}\n"
        "worker.main()"
    )
    monkeypatch.setenv(work.MEMORY, "0.5")
    client, headers = request.getfixturevalue("server")
    monkeypatch.setattr(work, "COMMAND", (sys.executable, "-c", program, "0.6"))
    refused = client.get("/api/studies/made-up/report", headers=headers)
    assert refused.status_code == 422
    assert "takes more than 0.5 GiB of memory" in refused.json()["error"]["message"]

    async def one(gib: str) -> dict[str, object]:
        monkeypatch.setattr(work, "COMMAND", (sys.executable, "-c", program, gib))
        room = work.Room()
        async with room.place() as folder:
            order = {"do": "report", "bundle": str(folder / "bundle")}
            return await room.work(Request(), order, folder)  # type: ignore[arg-type]

    assert asyncio.run(one("0.3")) == {"length": int(0.3 * 2**30)}


@pytest.mark.parametrize("given", ["lots", "nan", "inf", "0.1", "-1"])
def test_a_wrong_limit_of_memory_is_refused_at_the_start(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it takes, and an example."""
    monkeypatch.setenv(work.MEMORY, given)
    with pytest.raises(DashboardError, match=f"{work.MEMORY} is `{given}`: it takes a number of GiB from 0.5 on"):
        work.Room()


def test_more_requests_than_places_are_refused_before_they_are_read(
    marks: Path, server: tuple[TestClient, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 and when to come again; nothing of the body is kept, and reading studies goes on."""
    client, headers = server
    read: list[Path] = []

    async def never(_: object, bundle: Path) -> bool:
        read.append(bundle)
        return True

    monkeypatch.setattr(routes, "_receive", never)
    monkeypatch.setattr(work, "AT_ONCE", 0)
    monkeypatch.setattr(work, "WAITING", 0)
    for answer in (
        client.post("/api/studies", headers=headers, content=b"x" * 100_000),
        client.get("/api/studies/made-up/report", headers=headers),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        assert "try again in 30 s" in answer.json()["error"]["message"]
    assert client.get("/api/studies", headers=headers).status_code == 200
    assert not read
    assert not list((marks.parent / "tmp").iterdir())


def test_places_are_counted_and_waiting_ends(marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are worked on and sixteen wait; the next is refused, and one that waits too long is, too."""
    monkeypatch.setattr(work, "WAIT_S", 0.2)

    async def one() -> None:
        room = work.Room()
        places = [room.place() for _ in range(work.AT_ONCE + work.WAITING)]
        for place in places:
            await place.__aenter__()
        with pytest.raises(work.Busy, match="16 more wait") as refused:
            await room.place().__aenter__()
        assert refused.value.unread
        for _ in range(work.AT_ONCE):
            await room._turn.acquire()
        with pytest.raises(work.Busy, match="is busy since") as refused:
            await room.work(Request(), {}, marks)  # type: ignore[arg-type]
        assert not refused.value.unread
        for place in places:
            await place.__aexit__(None, None, None)
        async with room.place():
            pass

    asyncio.run(one())
    assert not list((marks.parent / "tmp").iterdir())


def test_a_study_that_arrives_too_slowly_is_refused(
    server: tuple[TestClient, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a client cannot hold a place by sending nothing."""
    client, headers = server

    async def slow(*_: object) -> bool:
        await asyncio.sleep(PATIENCE_S)
        return True

    monkeypatch.setattr(routes, "_receive", slow)
    monkeypatch.setattr(routes, "RECEIVE_S", 0.1)
    answer = client.post("/api/studies", headers=headers, content=b"x")
    assert (answer.status_code, "has not arrived within" in answer.json()["error"]["message"]) == (408, True)


def test_a_cookie_of_an_encrypted_page_stays_encrypted(new_folder: Callable[[], Path]) -> None:
    """`Secure` where the request came by https; without it a tunnel to http://localhost would not work."""
    folder = new_folder()
    secret = Tokens(folder).create("bob", "read")
    app = make_app(Home(folder), access=Access(), keep_s=0)
    for address, secure in (("https://localhost", True), ("http://localhost", False)):
        cookie = TestClient(app, base_url=address).post("/", data={"token": secret}).headers["set-cookie"].lower()
        assert ("; secure" in cookie) == secure
        assert "httponly" in cookie
