"""A session puts the parts together: without MLflow, with a home folder that is taken, with a budget."""

import errno
import json
import os
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from paribus.engines.base import Reach
from paribus.errors import EngineError, StoreError, install_command
from paribus.rpc import server as rpc
from paribus.rpc.client import PATIENCE_S, call, seal
from paribus.rpc.handler import answer_to
from paribus.rpc.server import RpcServer
from paribus.scheduler import serve
from paribus.scheduler.home_lock import lock_home
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Settings, run_study
from paribus.store.states import RunState
from paribus.store.store import Store
from support.lines import Lines
from support.plans import small_plan


@pytest.fixture
def no_mlflow(monkeypatch):
    """An installation without the extra."""
    monkeypatch.setattr(serve, "mlflow_is_installed", lambda: False)


def test_without_mlflow_a_study_runs_and_the_user_is_told_once(no_mlflow, tmp_path, monkeypatch):
    """The mirror is optional; what to install is said."""
    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({}))
    display = Lines()
    summary = run_study(small_plan(), Settings(home=tmp_path / "home", engine="inline"), display)
    assert (summary.ending, summary.trained, summary.mirror) == (Ending.COMPLETE, True, "")
    assert summary.counts == {RunState.SUCCEEDED: 4}
    assert sum(install_command("mlflow") in line for line in display.said) == 1
    assert not (tmp_path / "home" / "mlflow_sync.log").exists()


def test_a_home_folder_that_is_taken_is_told_with_the_process(no_mlflow, tmp_path):
    """Two schedulers would write one SQLite file."""
    with lock_home(tmp_path, "paribus run"), pytest.raises(StoreError, match=f"process {os.getpid()}"):
        run_study(small_plan(), Settings(home=tmp_path), Lines())


def test_the_office_answers_over_its_socket(tmp_path):
    """A heartbeat is taken, a stale one is told that the run is lost, nonsense gets no answer and does no harm."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        claim = store.claim(study.id, engine="test", worker="here")
        server = RpcServer(store)
        try:
            request = {"run": claim.run_id, "token": claim.token}
            assert call(server.address, {**request, "do": "start"}) == {"ok": True, "lease_s": 60.0, "cancel": False}
            assert call(server.address, {**request, "token": 0, "do": "renew"})["lost"] is True
            assert call(server.address, {**request, "do": "dance"})["ok"] is False
            with pytest.raises(ValueError, match="Expecting value"):
                call(server.address, {"do": "renew"})
            assert call(server.address, {**request, "do": "renew"})["ok"] is True
        finally:
            server.close()
        with pytest.raises(OSError, match="No such file"):
            call(server.address, {**request, "do": "renew"})


@pytest.fixture
def far(tmp_path):
    """A claim, the request that starts it, and an server for jobs on other machines."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        claim = store.claim(study.id, engine="test", worker="here")
        server = RpcServer(store, Reach(host="127.0.0.1"))
        yield server, {"run": claim.run_id, "token": claim.token, "do": "start"}
        server.close()


def test_the_office_answers_other_machines(far):
    """Over TCP a heartbeat is taken as over the socket; the file that tells where is the user's alone, and goes."""
    server, start = far
    assert stat.S_IMODE(server.address.stat().st_mode) == 0o600
    assert call(server.address, start) == {"ok": True, "lease_s": 60.0, "cancel": False}
    assert call(server.address, {**start, "do": "renew"})["ok"] is True
    assert call(server.address, {**start, "token": 0, "do": "renew"})["lost"] is True
    server.close()
    with pytest.raises(OSError, match="No such file"):
        call(server.address, start)


def test_the_office_does_nothing_for_those_who_cannot_read_its_file(far):
    """A request under another key, or a recorded one sent again, has no effect and no answer."""
    server, start = far
    place = json.loads(server.address.read_text())
    server.address.write_text(json.dumps({**place, "key": "00" * 32}))
    with pytest.raises(ValueError, match="does not belong to the scheduler of"):
        call(server.address, start)
    server.address.write_text(json.dumps(place))
    line = json.dumps(start).encode()
    with socket.create_connection(("127.0.0.1", place["port"]), timeout=5) as connection:
        lines = connection.makefile("rb")
        lines.readline()
        old = seal(bytes.fromhex(place["key"]), b"ask", b"0" * 32, line)
        connection.sendall(line + b"\n" + old + b"\n")
        assert lines.read() == b""
    assert call(server.address, {**start, "do": "renew"})["ok"] is True
    assert call(server.address, start)["ok"] is True


def test_somebody_who_says_nothing_does_not_keep_the_others_waiting(far):
    """A port scanner must not cost a lease."""
    server, start = far
    port = json.loads(server.address.read_text())["port"]
    with socket.create_connection(("127.0.0.1", port)):
        before = time.monotonic()
        assert call(server.address, start)["ok"] is True
        assert time.monotonic() - before < PATIENCE_S


def test_who_answers_without_the_key_is_not_believed(far, tmp_path):
    """A supervisor must not stop its run because a stranger says so."""
    server, start = far
    stranger = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = stranger.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(b"1\n")
            lines.readline(), lines.readline()
            connection.sendall(b'{"ok": false, "lost": true, "error": ""}\nmark\n')

    thread = threading.Thread(target=answer)
    thread.start()
    place = json.loads(server.address.read_text())
    file = tmp_path / "other.json"
    file.write_text(json.dumps({**place, "port": stranger.getsockname()[1]}))
    with pytest.raises(ValueError, match="does not belong to the scheduler of"):
        call(file, start)
    thread.join()
    stranger.close()


def test_a_port_that_is_taken_is_told(far, tmp_path):
    """The remedy is in the engine's options."""
    server, _ = far
    port = json.loads(server.address.read_text())["port"]
    with Store.open(tmp_path / "other") as store, pytest.raises(EngineError, match=rf"port {port}.*Choose another"):
        RpcServer(store, Reach(host="127.0.0.1", port=port))


def preempt(server, store, study):
    """Let a supervisor report that it was asked to stop before its first step; return the run's state."""
    claim = store.claim(study.id, engine="test", worker="here")
    request = {"run": claim.run_id, "token": claim.token}
    call(server.address, {**request, "do": "start"})
    release = {**request, "do": "release", "reason": "asked to stop", "wait_s": 0.0, "reached": 0}
    assert call(server.address, release) == {"ok": True}
    return store.runs_of(study.id)[0].state


def test_what_the_scheduler_itself_interrupts_does_not_count(tmp_path):
    """Ctrl-C as often as you like; what somebody else asks to stop again and again without a step is quarantined."""
    now = [1000.0]
    with Store.open(tmp_path, clock=lambda: now[0]) as store:
        study = store.add_study(small_plan(arms=1, seeds=1))
        server = RpcServer(store)
        server.stopping()
        assert {preempt(server, store, study) for _ in range(6)} == {RunState.QUEUED}
        server.close()
        server = RpcServer(store)
        states = []
        for _ in range(5):
            states.append(preempt(server, store, study))
            now[0] += 200
        assert states == [RunState.QUEUED] * 4 + [RunState.QUARANTINED]
        server.close()


@pytest.fixture
def short_folder():
    """A folder near the root."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("long", [False, True])
def test_a_killed_scheduler_leaves_nothing_that_the_next_one_does_not_take_over(
    tmp_path, short_folder, monkeypatch, long
):
    """The socket is in the home folder; where its path is too long, in one folder, whoever else has taken its name."""
    home = tmp_path / ("long" * 30 if long else "h")
    temporary = short_folder  # a socket's path is short
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    if not long:
        monkeypatch.setattr(rpc, "_LONGEST_PATH", 200)
    with Store.open(home) as store:
        killed = RpcServer(store)
        assert killed.address.parent.samefile(home) == (not long)
        left = list(temporary.iterdir())
        assert len(left) == long
        server = RpcServer(store)
        assert (server.address, list(temporary.iterdir())) == (killed.address, left)
        assert call(server.address, {"do": "dance", "run": 1, "token": 1})["ok"] is False
        server.close()
        assert list(temporary.iterdir()) == []
        if long:
            left[0].mkdir(mode=0o755)
            server = RpcServer(store)
            assert server.address.parent != left[0]
            server.close()
        killed._server.server_close()


@pytest.mark.parametrize("kind", ["program", "infrastructure"])
def test_the_office_passes_reports_on(tmp_path, kind):
    """What a supervisor reports is in the store."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan(arms=1, seeds=1))
        claim = store.claim(study.id, engine="test", worker="here")
        request = {"run": claim.run_id, "token": claim.token, "reason": "why"}
        assert answer_to(store, {**request, "do": "fail", "kind": kind, "signature": "s"}) == {"ok": True}
        run = store.runs_of(study.id)[0]
        assert (run.program_failures, run.infrastructure_failures) == (kind == "program", kind != "program")
        assert answer_to(store, {**request, "do": "release", "wait_s": 0.0})["lost"] is True


@pytest.mark.parametrize(("number", "told"), [(errno.EROFS, StoreError), (errno.EPERM, PermissionError)])
def test_a_disk_that_takes_nothing_is_told_with_what_to_do(tmp_path, monkeypatch, number, told):
    """The lock is the first file that is written; what is not the disk's fault is not called so."""
    monkeypatch.setattr(serve, "lock_home", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(told, match=r"Make room|Operation not permitted"):
        run_study(small_plan(), Settings(home=tmp_path), Lines())
