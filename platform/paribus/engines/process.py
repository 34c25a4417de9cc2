"""Processes that never outlive their parent, and identities that do not mistake one process for another."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

KIN = "PARIBUS_KIN"
"""Environment variable that all processes of an engine of this machine carry, whatever session they have moved to."""


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, however it ends (Linux).

    Args:
        parent: process id of the parent; if it has ended already, this process ends here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def outlive_parent() -> None:
    """Undo :func:`die_with_parent`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of ``init`` (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return the children of this process, those that it has adopted included; empty where nobody tells (not Linux)."""
    return {pid for pid, parent in _processes() if parent == os.getpid()}


def end_orphans(spared: Collection[int]) -> bool:
    """Kill the children of this process but those that are spared, and reap what has ended of them.

    Whatever a killed process leaves is adopted in turn: call again until none is left.

    Returns:
        Whether none was there.
    """
    strangers = children() - set(spared)
    for pid in strangers:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return not strangers


def end_kin(mark: str, *, wait_s: float = 5.0) -> bool:
    """Kill all other processes of this user that were started with :data:`KIN` set to ``mark``.

    A process carries its variable into any session and group; it is read from what the kernel keeps.

    Returns:
        Whether none is left.
    """
    wanted, until = f"{KIN}={mark}".encode(), time.monotonic() + wait_s
    while left := [pid for pid, _ in _processes() if pid != os.getpid() and wanted in _environment(pid)]:
        if time.monotonic() > until:
            return False
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return True


def hear_of_children() -> None:
    """Let this process, and those that it starts, learn how their children end.

    Ray's workers ignore SIGCHLD, and what they start inherits that: ``wait`` then says that all went well. Python's
    own ``signal`` may only be called in the main thread.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGCHLD, None)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A process, told apart from a later one with the same number.

    Attributes:
        pid: process id; the process leads its own group, so this is the group's id, too.
        start: start time as the system writes it.
        boot: identity of the system's boot.
        host: name of the host.
    """

    pid: int
    start: str
    boot: str
    host: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a process that is there."""
        return cls(pid=pid, start=_start_time(pid), boot=_boot_id(), host=socket.gethostname())

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Identity:
        """Return the identity that :meth:`to_json` wrote."""
        return cls(**{k: values[k] for k in ("pid", "start", "boot", "host")})

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    def here(self) -> bool:
        """Return whether the process belongs to this host and boot."""
        return self.host == socket.gethostname() and self.boot == _boot_id()

    def alive(self) -> bool:
        """Return whether this very process is running on this host."""
        return self.here() and self.start != "" and _start_time(self.pid) == self.start


def kill_group(leader: Identity, *, wait_s: float = 5.0) -> bool:
    """Kill the process group of ``leader``, if this very process still leads it.

    Returns:
        Whether it has ended.
    """
    until = time.monotonic() + wait_s
    while leader.alive():
        signal_group(leader.pid, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def lead_group(pid: int) -> None:
    """Make a child the leader of a group of its own; called in parent and child, so that neither has to wait."""
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group; one that is gone is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def since_boot() -> float:
    """Return seconds on a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _processes() -> Iterator[tuple[int, int]]:
    """Yield each process with its parent."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            yield int(entry.parent.name), int(entry.read_text().rpartition(")")[2].split()[1])


def _environment(pid: int) -> list[bytes]:
    """Return what a process was started with; empty if it has ended, or belongs to somebody else."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _start_time(pid: int) -> str:
    """Return when a process started, empty if there is none or it is only waiting to be reaped."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in ("Z", "X") else fields[19]
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607
    return shown.stdout.strip()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
