"""Where supervisors hand in heartbeats and reports: a Unix socket in the one process that writes the store.

One JSON line in, one JSON line out, one connection a request::

    {"do": "start" | "renew" | "finish" | "fail" | "release" | "cancelled", "run": 3, "token": 2, ...}
    {"ok": true, "lease_s": 60.0, "cancel": false}      or      {"ok": false, "lost": true, "error": "..."}

``lost`` means: another attempt holds the run, stop at once. Supervisors ask through :mod:`paribus.schedule.ask`.
"""

from __future__ import annotations

import json
import shutil
import socketserver
import tempfile
import threading
from pathlib import Path
from typing import Any

from paribus.errors import LostLease
from paribus.schedule.ask import PATIENCE_S
from paribus.store.database import Unreachable
from paribus.store.store import Store


class Office:
    """Serves requests in one thread, until it is closed."""

    def __init__(self, store: Store) -> None:
        # a socket's path may have about a hundred characters, a home folder's may have more
        self._folder = Path(tempfile.mkdtemp(prefix="paribus-"))
        self.address = self._folder / "office"
        self._server = socketserver.UnixStreamServer(str(self.address), _handler(store))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _handler(store: Store) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        timeout = PATIENCE_S

        def handle(self) -> None:
            try:
                answer = answer_to(store, json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError, Unreachable):
                return  # the other side is gone or speaks another language, or the database is: it will ask again

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
