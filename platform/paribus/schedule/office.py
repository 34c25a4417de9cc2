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

from paribus.engines.base import Reach
from paribus.errors import EngineError, StoreError
from paribus.schedule.ask import MAX_BYTES, PATIENCE_S, seal
from paribus.schedule.desk import Desk
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
        self._desk = desk = Desk(store)
        if self._folder is None:
            assert reach is not None
            self.address = store.home / FILE
            self._server = _listen(desk, reach, self.address)
        else:
            self.address = self._folder / "office"
            self._server = _LocalServer(str(self.address), _handler(desk))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._desk.close()
        if self._folder is None:
            self.address.unlink(missing_ok=True)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Threads(socketserver.ThreadingMixIn):
    """A thread a connection, so that one who says nothing does not keep the others waiting."""

    daemon_threads = True
    request_queue_size = 128


class _Server(_Threads, socketserver.TCPServer):
    allow_reuse_address = True


class _LocalServer(_Threads, socketserver.UnixStreamServer):
    pass


def _listen(desk: Desk, reach: Reach, file: Path) -> _Server:
    key = secrets.token_bytes(32)
    try:
        server = _Server(("", reach.port), _sealed_handler(desk, key))
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


def _handler(desk: Desk) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            try:
                answer = desk.answer(json.loads(self.rfile.readline(MAX_BYTES)))
                self.wfile.write(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError, StoreError):
                return  # the other side is gone or speaks another language, or the database is: it will ask again

    return Handler


def _sealed_handler(desk: Desk, key: bytes) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            nonce = secrets.token_hex(16).encode()
            try:
                self.wfile.write(nonce + b"\n")
                line, mark = (self.rfile.readline(MAX_BYTES).strip() for _ in range(2))
                if not hmac.compare_digest(mark, seal(key, b"ask", nonce, line)):
                    return
                answer = json.dumps(desk.answer(json.loads(line))).encode()
                self.wfile.write(answer + b"\n" + seal(key, b"answer", nonce, line, answer) + b"\n")
            except (OSError, ValueError, StoreError):
                return

    return Handler
