"""Processes that never outlive their parent, and identities that never mistake one process for another."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

KIN = "PARIBUS_KIN"
"""Environment variable that marks every process of a local engine, whatever session it has moved to."""


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends for any reason (Linux).

    Args:
        parent: process id of the parent; if the parent has already ended, this process exits at once.
        number: the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def outlive_parent() -> None:
    """Undo :func:`die_with_parent`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process, instead of ``init``, the parent of every descendant that loses its own parent (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return the process ids of this process's children, adopted ones included; empty outside Linux."""
    return {pid for pid, parent in _processes() if parent == os.getpid()}


def end_orphans(spared: Collection[int]) -> bool:
    """Kill all children of this process except ``spared``, and reap those that have ended.

    This process adopts what a killed child leaves behind, so call again until the result is true.

    Returns:
        Whether there was nothing to kill.
    """
    strangers = children() - set(spared)
    for pid in strangers:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return not strangers


def kept(*command: str) -> tuple[str, ...]:
    """Return the command that runs ``command`` below a :mod:`~paribus.engines.keeper`, which ends with this process."""
    return (sys.executable, "-P", "-m", "paribus.engines.keeper", str(os.getpid()), *command)


def end_tree(root: Identity, *, wait_s: float = 5.0) -> bool:
    """Kill all that a process has started, and then the process itself.

    Nothing escapes if ``root`` adopts orphans, as a :mod:`~paribus.engines.keeper` does, and lives: it becomes the
    parent of what others leave behind. Call it before ``root`` is waited for.

    Returns:
        Whether all have ended; if not in this time, ``root`` is killed all the same.
    """
    until, empty = time.monotonic() + wait_s, 0
    while empty < 2:  # a process that was being adopted has no place in the tree for a moment
        found = _descendants(root.pid) if root.alive() else set()
        empty = 0 if found else empty + 1
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if found and time.monotonic() > until:
            break
        time.sleep(0.002)
    if root.alive():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(root.pid, signal.SIGKILL)
    return empty == 2


def end_kin(mark: str, *, wait_s: float = 5.0, variable: str = KIN) -> bool:
    """Kill all other processes of this user that were started with the environment ``variable`` set to ``mark``.

    The kernel keeps the environment that a process started with, so moving to another session or group hides nothing.

    Returns:
        Whether all of them have ended.
    """
    wanted, until = f"{variable}={mark}".encode(), time.monotonic() + wait_s
    while left := [pid for pid, _ in _processes() if pid != os.getpid() and wanted in _environment(pid)]:
        if time.monotonic() > until:
            return False
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return True


@contextmanager
def handled(numbers: Collection[int], handler: Callable[[], None]) -> Iterator[None]:
    """Call ``handler`` for each of these signals inside the block; only possible in the main thread."""
    previous = {number: signal.signal(number, lambda *_: handler()) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def restore_sigchld() -> None:
    """Reset SIGCHLD to its default, so that this process and its children learn how their own children end.

    Ray's workers ignore SIGCHLD and what they start inherits that; ``wait`` then reports success for every child.
    Python's ``signal.signal`` works in the main thread only, hence the call into libc.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGCHLD, None)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A process that can't be confused with a later one under the same number.

    Attributes:
        pid: process id; the process leads its own group, so this is the group's id, too.
        start: start time as the system writes it.
        boot: identifier of the system's boot.
        host: name of the host.
    """

    pid: int
    start: str
    boot: str
    host: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a running process."""
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
    """Kill the process group of ``leader``, provided this very process still leads it.

    Returns:
        Whether the leader has ended.
    """
    until = time.monotonic() + wait_s
    while leader.alive():
        signal_group(leader.pid, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def lead_group(pid: int) -> None:
    """Make a child the leader of its own process group. Parent and child both call this, so neither has to wait."""
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group; do nothing if the group no longer exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def proc_stat(pid: int) -> list[str]:
    """Return what ``/proc/PID/stat`` has after the name, from the state on; empty if there is no such process.

    The name may be any bytes: a process chooses its own, and the kernel cuts it off within a character.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode("ascii").split()
    except OSError:  # it may also end while it is read
        return []


def _descendants(root: int) -> set[int]:
    """Return the processes below a process that have not ended."""
    below: dict[int, list[int]] = {}
    for pid, parent in _processes():
        below.setdefault(parent, []).append(pid)
    found, left = set[int](), list(below.get(root, ()))
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += below.get(pid, ())
    return {pid for pid in found if _start_time(pid)}


def _processes() -> Iterator[tuple[int, int]]:
    """Yield the process id and the parent's process id of each process; nothing outside Linux."""
    for name in [entry.name for entry in Path("/proc").iterdir()] if sys.platform == "linux" else ():
        if name.isdecimal() and (fields := proc_stat(int(name))):
            yield int(name), int(fields[1])


def _environment(pid: int) -> list[bytes]:
    """Return the environment a process started with; empty if it has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _start_time(pid: int) -> str:
    """Return when a process started; empty if there is no such process or it is a zombie."""
    if sys.platform == "linux":
        fields = proc_stat(pid)
        return "" if not fields or fields[0] in ("Z", "X") else fields[19]
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607
    return shown.stdout.strip()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
