"""Ray's driver, in a process of its own: Ray ends a process that has lost the head, and writes to its terminal.

``python -m paribus.engines.ray.driver FD ADDRESS LAUNCH FOLDER`` joins the cluster and speaks JSON lines over an
inherited socket. It ends when the other end of the socket is closed. What Ray prints goes to ``driver.log`` in FOLDER.

Requests: ``{"do": "start", "job", "order", "bundle", "nodes"}``, ``{"do": "find" | "drop", "job"}``, ``{"do": "signal",
"job", "number"}``, ``{"do": "look", "jobs"}``, ``{"do": "nodes"}``, ``{"do": "close"}``. Answers: ``{"value"}``,
``{"away"}`` (why the head does not answer) or ``{"error"}``; before the first request one after Ray's import, and one
after joining.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from paribus.engines.base import JobState
from paribus.engines.controller import Away
from paribus.engines.fork_server import Channel
from paribus.engines.launch import Order
from paribus.engines.ray.actors import NAMESPACE, Actors
from paribus.engines.ray.jobs import Jobs
from paribus.errors import EngineError

LOG = "driver.log"

_CONNECT_S = 5.0
_IMPORT_S = 120.0
_JOIN_S = 120.0
_ANSWER_S = 75.0  # Ray itself gives up after 60
_CLOSE_S = 3.0
_FOREVER_S = 3600.0


class Driver:
    """The engine's side: starts the process, and starts it again when it has ended.

    Args:
        address: ``host:port`` of the head, or ``auto``.
        launch: ``actor`` or ``job``.
        folder: folder for orders, and for the log of the process.
    """

    def __init__(self, address: str, launch: str, folder: Path) -> None:
        self._address = address
        self._launch = launch
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._answers = deque[dict[str, Any]]()

    def join(self) -> None:
        """Join the cluster.

        Raises:
            EngineError: the cluster can't be joined; the message says what to check.
        """
        try:
            if self._address != "auto":
                _knock(self._address)
            self._start()
        except (OSError, ValueError, Away) as error:
            self._end()
            raise EngineError(_cannot_join(self._address, error)) from error
        except EngineError:
            self._end()
            raise

    def ask(self, do: str, **values: Any) -> Any:
        """Return the answer to a request.

        Raises:
            Away: the head does not answer.
            EngineError: Ray refuses the request.
        """
        if self._process is None:
            try:
                self.join()
            except EngineError as error:
                raise Away(_in_a_line(error.__cause__ or error)) from error
        try:
            assert self._channel is not None
            self._channel.send({"do": do, **values})
            return self._answer(_ANSWER_S)
        except (OSError, EOFError) as error:
            self._end()
            raise Away("the connection to the head broke") from error
        except _NoReply as error:
            self._end()
            raise Away(str(error)) from error

    def close(self) -> None:
        """Leave the cluster."""
        if self._process is not None and self._channel is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._channel.send({"do": "close"})
                self._process.wait(_CLOSE_S)
        self._end()

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), self._address, self._launch, str(self._folder)]
        with theirs, (self._folder / LOG).open("ab") as log:
            self._channel = Channel(ours)
            self._answers.clear()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is for the scheduler
            )
        try:
            self._answer(_IMPORT_S)
            self._answer(_JOIN_S)
        except EOFError as error:
            raise OSError(f"Ray ended the process; its words are in {self._folder / LOG}") from error

    def _answer(self, limit_s: float) -> Any:
        assert self._channel is not None
        until = time.monotonic() + limit_s
        while not self._answers:
            self._answers.extend(self._channel.receive(max(0.0, until - time.monotonic())))
            if not self._answers and time.monotonic() >= until:
                raise _NoReply(f"no reply in {limit_s:.0f} s")
        return value_of(self._answers.popleft())

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._channel = None


def value_of(answer: Mapping[str, Any]) -> Any:
    """Return the value of an answer.

    Raises:
        Away: the head does not answer.
        EngineError: Ray refuses the request.
    """
    if "away" in answer:
        raise Away(answer["away"])
    if "error" in answer:
        raise EngineError(answer["error"])
    return answer["value"]


class _NoReply(Away):
    """The process itself is stuck."""


def _knock(address: str) -> None:
    """Fail fast if nothing listens at the address: Ray itself retries for minutes.

    Raises:
        OSError: the address cannot be reached.
        ValueError: the address isn't of the form ``host:port``.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ValueError("the address has the form host:port")
    socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def _cannot_join(address: str, error: Exception) -> str:
    said = _in_a_line(error)
    return (
        f"cannot join the Ray cluster `{address}`: {said}. Is it up (`ray status`), is `address` of `ray` in "
        "engines.yaml its head, and do RAY_AUTH_MODE and the token agree with the head's?"
    )


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


# ---- the process -------------------------------------------------------------------------------------


class Launcher(Protocol):
    """How jobs are started: :class:`Actors` or :class:`Jobs`. All calls raise Ray's errors if the head is away."""

    def start(self, job: str, order: Order, bundle: Mapping[str, float], nodes: int) -> str:
        """Start a job that holds a bundle on each of its nodes, unless Ray knows it.

        Returns:
            Why Ray doesn't take it yet, or an empty string.

        Raises:
            EngineError: Ray refuses the job.
        """

    def find(self, job: str) -> bool:
        """Return whether Ray knows a job."""

    def check(self) -> None:
        """Raise an error if what starts jobs does not answer."""

    def state(self, job: str) -> tuple[JobState, str]:
        """Return the state of a job, and Ray's words about its end."""

    def signal(self, job: str, number: int) -> None:
        """Send a signal to the process group of a job."""

    def drop(self, job: str) -> None:
        """End a job if it still runs, and release what it holds."""


class Server:
    """Answers requests, one after the other."""

    def __init__(self, ray: Any, launcher: Launcher) -> None:
        self._ray = ray
        self._launcher = launcher

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        try:
            return {"value": self._do(**request)}
        except EngineError as error:
            return {"error": str(error)}
        except Away as error:
            return {"away": str(error)}
        except Exception as error:  # of the connection, in any of Ray's forms
            traceback.print_exc()
            return {"away": _in_a_line(error)}

    def _do(self, do: str, **values: Any) -> Any:
        match do:
            case "nodes":
                self._launcher.check()
                return [n["Resources"] for n in self._ray.nodes() if n["Alive"]]
            case "look":
                return {job: self._launcher.state(job) for job in values["jobs"]}
            case "start":
                order = Order(**{**values["order"], "arguments": tuple(values["order"]["arguments"])})
                return self._launcher.start(values["job"], order, values["bundle"], values["nodes"])
            case "find":
                return self._launcher.find(**values)
            case "signal":
                return self._launcher.signal(**values)
            case "drop":
                return self._launcher.drop(**values)
            case _:
                raise EngineError(f"there is no request `{do}`")


def main(arguments: Sequence[str]) -> int:
    """Join the cluster and answer requests until the engine has gone."""
    descriptor, address, launch, folder = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel, requests = Channel(socket.socket(fileno=int(descriptor))), queue.SimpleQueue[dict[str, Any]]()
    threading.Thread(target=_receive, args=(channel, requests), daemon=True).start()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    channel.send({"value": "imported"})
    try:
        server = Server(ray, _launcher(ray, address, launch, Path(folder)))
    except EngineError as error:
        channel.send({"error": str(error)})
        return 1
    channel.send({"value": "joined"})
    while (request := requests.get())["do"] != "close":
        channel.send(server.answer(request))
    ray.shutdown()
    return 0


def _receive(channel: Channel, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass on requests; end the process with its engine, even while a call of Ray hangs."""
    while True:
        try:
            for request in channel.receive(_FOREVER_S):
                requests.put(request)
        except (EOFError, OSError):
            os._exit(0)


def _launcher(ray: Any, address: str, launch: str, folder: Path) -> Launcher:
    try:
        context = ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, logging_level="ERROR"
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise EngineError(_cannot_join(address, error)) from error
    return Jobs(context.dashboard_url or "", folder) if launch == "job" else Actors(ray)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
