"""The RPC server that supervisors send heartbeats and reports to, in the one process that writes the store.

One connection per request, one JSON line each way::

    {"do": "start" | "renew" | "finish" | "fail" | "release" | "cancelled", "run": 3, "token": 2, ...}
    {"ok": true, "lease_s": 60.0, "cancel": false}      or      {"ok": false, "lost": true, "error": "..."}

``lost`` means that another attempt holds the run: the supervisor stops at once. Supervisors call the server through
:mod:`paribus.rpc.client`.

On this machine the server listens on a Unix socket. For jobs on other machines it listens on a TCP port, named in a
file of the home folder that only the user can read. The server greets each connection with a nonce; request and answer
are each followed by a line with their HMAC under the file's key. Messages are authenticated, not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socketserver
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from paribus.atomic import write_whole
from paribus.engines.base import Reach
from paribus.errors import EngineError, StoreError
from paribus.rpc.client import MAX_BYTES, PATIENCE_S, seal
from paribus.rpc.handler import RpcHandler
from paribus.store.store import Store

FILE = "server.json"

SOCKET = "server.socket"
"""File of the home folder on which the server of this machine listens."""

_LONGEST_PATH = 100
"""Bytes of a socket's path: Linux takes 107, macOS 103."""


class RpcServer:
    """Answers requests until it is closed.

    Args:
        store: the store, open for writing.
        reach: how jobs on other machines reach this one; ``None``: all jobs run here.

    Attributes:
        address: the Unix socket or the server file, for :func:`paribus.rpc.client.call`.

    Raises:
        EngineError: the port is taken.
    """

    def __init__(self, store: Store, reach: Reach | None = None) -> None:
        self._server: socketserver.BaseServer
        self._handler = handler = RpcHandler(store)
        self._home = store.home if reach else store.home.resolve()
        if reach is not None:
            self.address = store.home / FILE
            self._server = _listen(handler, reach, self.address)
        else:
            self._server, self.address = _local(handler, self._home)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def stopping(self) -> None:
        """Note that this process has asked the attempts to stop: their interruptions don't count."""
        self._handler.stopping = True

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._handler.close()
        self.address.unlink(missing_ok=True)
        if self.address.parent != self._home:
            self.address.parent.rmdir()


class _Threads(socketserver.ThreadingMixIn):
    """One thread per connection, so that a silent client does not delay the others."""

    daemon_threads = True
    request_queue_size = 128


class _Server(_Threads, socketserver.TCPServer):
    allow_reuse_address = True


class _LocalServer(_Threads, socketserver.UnixStreamServer):
    pass


def _local(handler: RpcHandler, home: Path) -> tuple[_LocalServer, Path]:
    """Return a server on a Unix socket, and its path: in the home folder, else in a folder with a name of its own.

    A killed process leaves its socket, and the next one replaces it: a home folder has one server at a time.

    Raises:
        OSError: no folder takes a socket.
    """
    connection = _plain_connection(handler)
    place = home / SOCKET
    if len(os.fsencode(place)) <= _LONGEST_PATH:
        with suppress(OSError):  # some network file systems take no sockets
            place.unlink(missing_ok=True)
            return _LocalServer(str(place), connection), place
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"paribus-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        folder = Path(tempfile.mkdtemp(prefix="paribus-"))  # another user has taken the name
    place = folder / SOCKET
    place.unlink(missing_ok=True)
    return _LocalServer(str(place), connection), place


def _listen(handler: RpcHandler, reach: Reach, file: Path) -> _Server:
    key = secrets.token_bytes(32)
    try:
        server = _Server(("", reach.port), _sealed_connection(handler, key))
    except OSError as error:
        raise EngineError(
            f"cannot listen on port {reach.port} for reports from the runs: {error.strerror}. Choose another `port` in "
            "the engine's options, or leave it out."
        ) from error
    place = {"host": reach.host, "port": server.server_address[1], "key": key.hex()}
    write_whole(file, json.dumps(place), private=True)
    return server


def _plain_connection(handler: RpcHandler) -> type[socketserver.StreamRequestHandler]:
    class Connection(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            try:
                answer = handler.answer(json.loads(self.rfile.readline(MAX_BYTES)))
                self.wfile.write(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError, StoreError):
                return  # lost connection, malformed request, or no database: a supervisor calls again

    return Connection


def _sealed_connection(handler: RpcHandler, key: bytes) -> type[socketserver.StreamRequestHandler]:
    class Connection(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            nonce = secrets.token_hex(16).encode()
            try:
                self.wfile.write(nonce + b"\n")
                line, mark = (self.rfile.readline(MAX_BYTES).strip() for _ in range(2))
                if not hmac.compare_digest(mark, seal(key, b"ask", nonce, line)):
                    return
                answer = json.dumps(handler.answer(json.loads(line))).encode()
                self.wfile.write(answer + b"\n" + seal(key, b"answer", nonce, line, answer) + b"\n")
            except (OSError, ValueError, StoreError):
                return

    return Connection
