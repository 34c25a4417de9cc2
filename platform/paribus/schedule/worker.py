"""Who a scheduler is: what the store calls it, and the next one of the same home folder."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path


def worker_of(home: Path) -> str:
    """Return who the scheduler of a home folder on this machine is: two folders may share one database."""
    return f"{socket.gethostname()}/{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:8]}"


def host_of(worker: str) -> str:
    """Return the machine of a scheduler."""
    return worker.partition("/")[0]
