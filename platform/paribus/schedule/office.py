"""Where supervisors hand in heartbeats and reports: in the one process that writes the store.

One JSON line in, one JSON line out, one connection a request::

    {"do": "start" | "renew" | "finish" | "fail" | "release" | "cancelled", "run": 3, "token": 2, ...}
    {"ok": true, "lease_s": 60.0, "cancel": false}      or      {"ok": false, "lost": true, "error": "..."}

``lost`` means: another attempt holds the run, stop at once. Supervisors ask through :mod:`paribus.schedule.ask`.

On this machine the office is a Unix socket. For jobs on other machines it is a TCP port, told in a file of the home
folder that only the user can read. Whoever connects gets a number that is used once; request and answer are each
followed by a line with their HMAC under the file's key. They are authentic, not secret.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shutil
import socketserver
import tempfile
import threading
from pathlib import Path
from typing import Any

from paribus.engines.base import Reach
from paribus.errors import EngineError, LostLease, StoreError
from paribus.schedule.ask import MAX_BYTES, PATIENCE_S, seal
from paribus.store.store import Store

FILE = "office.json"


class Office:
    """Serves requests until it is closed.

    Args:
        store: the store, open for writing.
        reach: how jobs on other machines reach this one; ``None``: all jobs run here.

    Raises:
        EngineError: the port is taken.
    """

    def __init__(self, store: Store, reach: Reach | None = None) -> None:
        # a socket's path may have about a hundred characters, a home folder's may have more
        self._folder = None if reach else Path(tempfile.mkdtemp(prefix="paribus-"))
        self._server: socketserver.BaseServer
        if self._folder is None:
            assert reach is not None
            self.address = store.home / FILE
            self._server = _listen(store, reach, self.address)
        else:
            self.address = self._folder / "office"
            self._server = socketserver.UnixStreamServer(str(self.address), _handler(store))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._folder is None:
            self.address.unlink(missing_ok=True)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Server(socketserver.ThreadingTCPServer):
    """A thread a connection, so that one who says nothing does not keep the others waiting."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


def _listen(store: Store, reach: Reach, file: Path) -> _Server:
    key = secrets.token_bytes(32)
    try:
        server = _Server(("", reach.port), _sealed_handler(store, key))
    except OSError as error:
        raise EngineError(
            f"the supervisors cannot report to port {reach.port} of this machine: {error.strerror}. Choose another "
            "`port` in the engine's options, or leave it out."
        ) from error
    place = {"host": reach.host, "port": server.server_address[1], "key": key.hex()}
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        json.dump(place, opened)
    temporary.replace(file)
    return server


def _handler(store: Store) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            try:
                answer = answer_to(store, json.loads(self.rfile.readline(MAX_BYTES)))
                self.wfile.write(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError, StoreError):
                return  # the other side is gone or speaks another language, or the database is: it will ask again

    return Handler


def _sealed_handler(store: Store, key: bytes) -> type[socketserver.StreamRequestHandler]:
    one_at_a_time = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            nonce = secrets.token_hex(16).encode()
            try:
                self.wfile.write(nonce + b"\n")
                line, mark = (self.rfile.readline(MAX_BYTES).strip() for _ in range(2))
                if not hmac.compare_digest(mark, seal(key, b"ask", nonce, line)):
                    return
                with one_at_a_time:
                    answer = json.dumps(answer_to(store, json.loads(line))).encode()
                self.wfile.write(answer + b"\n" + seal(key, b"answer", nonce, line, answer) + b"\n")
            except (OSError, ValueError, StoreError):
                return

    return Handler


def answer_to(store: Store, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks for."""
    run, token = int(request["run"]), int(request["token"])
    try:
        match request["do"]:
            case "start" | "renew" as do:
                renewal = store.start(run, token) if do == "start" else store.renew(run, token)
                return {"ok": True, "lease_s": renewal.lease_s, "cancel": renewal.cancel}
            case "finish":
                store.finish(run, token, request["payload"], stopped_early=request["stopped_early"])
            case "fail":
                store.fail(run, token, request["kind"], request["reason"], request["signature"])
            case "release":
                store.release(run, token, request["reason"], wait_s=request["wait_s"], step=request.get("step"))
            case "cancelled":
                store.cancelled(run, token)
            case other:
                return {"ok": False, "lost": False, "error": f"unknown request {other!r}"}
    except LostLease as error:
        return {"ok": False, "lost": True, "error": str(error)}
    return {"ok": True}
