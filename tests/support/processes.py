"""Processes and what they have started."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

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


def until_up(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Wait until MLflow's server answers; it must live."""
    end = time.monotonic() + 240
    while True:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
