"""Asks the scheduler's office (:mod:`paribus.schedule.office`). Apart from it, because supervisors stay light."""

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
"""Seconds to wait for an answer: well below the margin in which a lease may be over."""

_LEAST_S = 0.1

MAX_BYTES = 1 << 24
"""Longest line that is read."""


def ask(address: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return the answer.

    Args:
        address: a Unix socket; or the file in which an office tells where it is reached over TCP, read anew each time,
            because the next scheduler is elsewhere.
        request: what to do.

    Raises:
        OSError: nobody answers.
        ValueError: the answer is cut short, or not the office's.
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
        connection.settimeout(max(until - time.monotonic(), _LEAST_S))  # a lease does not wait for each word anew
        connection.sendall(line + b"\n" + seal(key, b"ask", nonce, line) + b"\n")
        answered, mark = lines.readline(MAX_BYTES).strip(), lines.readline(MAX_BYTES).strip()
    if not hmac.compare_digest(mark, seal(key, b"answer", nonce, line, answered)):
        raise ValueError(f"whoever answers at {place['host']}:{place['port']} is not the scheduler of {address.parent}")
    return _object(answered)


def _object(line: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(line)
    return reply


def seal(key: bytes, *parts: bytes) -> bytes:
    """Return the mark that only those can make who can read the office's file."""
    return hmac.new(key, b"\n".join(parts), "sha256").hexdigest().encode()
