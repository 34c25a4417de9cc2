"""A service that stands still holds nothing up: it is killed and started again, and the command is repeated."""

import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from compose.podman_service import PodmanService

SERVICE = """
import socketserver, sys, os

class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n%d" % os.getpid())

socketserver.ThreadingUnixStreamServer(sys.argv[1], Answer).serve_forever()
"""
"""What answers `_ping`, and all else with its process id."""


@pytest.fixture
def service(tmp_path):
    """A service that must answer within seconds."""
    made = PodmanService(tmp_path / "s", [sys.executable, "-c", SERVICE, str(tmp_path / "s")], os.environ,
                         answer_s=5.0, look_s=0.2)  # fmt: skip
    yield made
    made.stop()


def ask(file: Path) -> str:
    """Return what the service answers, as Docker Compose waits for it: for as long as it takes."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(file))
        asked.sendall(b"GET /containers HTTP/1.1\r\n\r\n")
        said = b""
        while piece := asked.recv(100):
            said += piece
    assert said.startswith(b"HTTP/1.1 200"), "the service is gone"
    return said.decode().split("\r\n")[-1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fails", [True, False], ids=["the command fails", "the command only says so"])
def test_a_service_that_stands_still_is_started_again(service, tmp_path, capsys, fails):
    """The command that waits for it ends, is repeated, and gets its answer; this is said once."""
    first = int(service.call(lambda: ask(tmp_path / "s")))
    os.kill(first, signal.SIGSTOP)

    def command():
        try:
            return ask(tmp_path / "s")
        except (AssertionError, OSError) as error:
            if fails:
                raise AssertionError("the command failed") from error
            return "failed"

    assert int(service.call(command)) != first
    assert re.findall("was killed and started again", capsys.readouterr().out) == ["was killed and started again"]


@pytest.mark.timeout(120)
def test_a_command_that_is_slow_or_fails_is_not_repeated(service, capsys):
    """While the service answers, the command decides."""
    calls = []

    def slow():
        calls.append(time.sleep(1.5))
        return "done"

    def fails():
        calls.append(None)
        raise AssertionError("wrong file")

    assert service.call(slow) == "done"
    with pytest.raises(AssertionError, match="wrong file"):
        service.call(fails)
    assert (len(calls), capsys.readouterr().out) == (2, "")
