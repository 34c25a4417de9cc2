"""The fork server: imports a runner's heavy parts once, then forks a process for each job.

Importing torch and transformers takes seconds, and a tiny run takes little longer. The local engine starts one server
per host: ``python -m paribus.engines.fork_server RUNNER FD PARENT GROUP``. The single-threaded server speaks JSON
lines over an inherited socket. GROUP is the control group above those of its jobs; empty if they have none. When its
parent ends, the server ends all processes of its jobs, then itself. It adopts whatever a killed job leaves, in any
session, and reports a job's end only after all of the job's processes have ended. The standard library's
``multiprocessing.forkserver`` does none of this.

Requests: ``{"do": "start", "name", "module", "arguments", "environment", "group"}``, ``{"do": "signal", "name",
"signal"}``. Answers: ``{"warm": true}`` or ``{"warm": false, "error"}`` first; ``{"name", "pid"}`` or ``{"name",
"refused"}`` with the reason; ``{"name", "exit"}``.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paribus.contract import load_runner
from paribus.engines.base import call_main
from paribus.engines.cgroup import end, join
from paribus.engines.process import (
    KIN,
    adopt_orphans,
    die_with_parent,
    end_kin,
    end_orphans,
    lead_group,
    outlive_parent,
    signal_group,
)

_TICK_S = 0.05


class Channel:
    """JSON lines over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """Return the messages that arrive within ``timeout`` seconds, as soon as there is one.

        Raises:
            EOFError: the other side has closed the connection.
        """
        if not select.select([self.socket], [], [], timeout)[0]:
            return []
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Server:
    """Forks jobs and reports their exit codes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._names: dict[int, str] = {}
        self._ended: list[dict[str, Any]] = []

    def serve(self) -> None:
        """Serve until the other side closes the connection."""
        with suppress(EOFError):
            while True:
                for request in self._channel.receive(_TICK_S):
                    self._handle(request)
                self._reap()

    def _handle(self, request: dict[str, Any]) -> None:
        if request["do"] == "start":
            try:
                pid = self._fork(request)
            except OSError as error:  # the machine has no process for it now; the other jobs go on
                self._channel.send({"name": request["name"], "refused": str(error)})
                return
            self._names[pid] = request["name"]
            self._channel.send({"name": request["name"], "pid": pid})
        else:
            for pid, name in self._names.items():
                if name == request["name"]:
                    signal_group(pid, request["signal"])

    def _fork(self, request: dict[str, Any]) -> int:
        server = os.getpid()
        pid = os.fork()
        if pid:
            lead_group(pid)
            return pid
        code = 1
        try:
            self._channel.socket.close()
            lead_group(os.getpid())
            die_with_parent(server)
            join(request["group"])
            os.environ.update(request["environment"])
            code = call_main(request["module"], request["arguments"])
        except BaseException:  # a forked process must never return into the server's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            name = self._names.pop(pid, None)
            if name is not None:
                self._ended.append({"name": name, "exit": os.waitstatus_to_exitcode(status)})
        if self._ended and end_orphans(self._names):
            for message in self._ended:
                self._channel.send(message)
            self._ended.clear()


def main(arguments: Sequence[str]) -> int:
    """Import the runner's heavy parts, then serve."""
    runner, descriptor, parent, group = arguments
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        load_runner(runner).warm()
    except Exception as error:  # whatever a runner's imports raise: jobs then start as plain processes
        channel.send({"warm": False, "error": f"{type(error).__name__}: {error}"})
        return 1
    gc.freeze()  # the collector must not touch (and so copy) the pages that the jobs share
    channel.send({"warm": True})
    adopt_orphans()
    outlive_parent()  # to clean up; the socket shows that the parent has ended
    Server(channel).serve()
    end_kin(os.environ[KIN])
    if group:
        end(Path(group))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
