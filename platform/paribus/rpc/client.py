"""Calls the scheduler's RPC server (:mod:`paribus.rpc.server`). A separate module, because supervisors stay light."""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

PATIENCE_S = 5.0
"""Seconds to wait for an answer; well below the margin in which a lease may expire."""

_LEAST_S = 0.1

MAX_BYTES = 1 << 24
"""Longest line that is read."""


def call(address: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return the answer.

    Args:
        address: a Unix socket; or the server file, which names host, port and key. The file is read for every call,
            because the next scheduler may run elsewhere.
        request: what to do.

    Raises:
        OSError: the server does not answer.
        ValueError: the answer is incomplete or not authentic.
    """
    line = json.dumps(request).encode()
    if address.is_socket():
        with closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(os.fspath(address))
            connection.sendall(line + b"\n")
            with connection.makefile("rb") as lines:
                return _object(lines.readline(MAX_BYTES))
    place = json.loads(address.read_bytes())
    key, until = bytes.fromhex(place["key"]), time.monotonic() + PATIENCE_S
    with (
        closing(socket.create_connection((place["host"], place["port"]), timeout=PATIENCE_S)) as connection,
        connection.makefile("rb") as lines,
    ):
        nonce = lines.readline(MAX_BYTES).strip()
        connection.settimeout(max(until - time.monotonic(), _LEAST_S))  # one time limit for the whole exchange
        connection.sendall(line + b"\n" + seal(key, b"ask", nonce, line) + b"\n")
        answered, mark = lines.readline(MAX_BYTES).strip(), lines.readline(MAX_BYTES).strip()
    if not hmac.compare_digest(mark, seal(key, b"answer", nonce, line, answered)):
        raise ValueError(f"{place['host']}:{place['port']} does not belong to the scheduler of {address.parent}")
    return _object(answered)


def _object(line: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(line)
    return reply


def seal(key: bytes, *parts: bytes) -> bytes:
    """Return the HMAC of the message under the key in the server file."""
    return hmac.new(key, b"\n".join(parts), "sha256").hexdigest().encode()
