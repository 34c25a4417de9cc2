"""Asks the scheduler's office (:mod:`paribus.schedule.office`). Apart from it, because supervisors stay light."""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

PATIENCE_S = 5.0
"""Seconds to wait for an answer: well below the margin in which a lease may be over."""


def ask(address: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return the answer.

    Raises:
        OSError: nobody answers.
        ValueError: the answer is cut short.
    """
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(os.fspath(address))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answer:
            reply: dict[str, Any] = json.loads(answer.readline())
    return reply
