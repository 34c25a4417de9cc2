"""Processes and what they have started."""

from __future__ import annotations

from contextlib import suppress

import psutil


def family(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants, itself first; of one that has ended, none."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]
    return []


def listening(pids: set[int]) -> list[str]:
    """Return the addresses with ports on which processes listen, such as `127.0.0.1:80`."""
    found = psutil.net_connections("inet")
    return [f"{c.laddr.ip}:{c.laddr.port}" for c in found if c.status == psutil.CONN_LISTEN and c.pid in pids]
