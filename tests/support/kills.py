"""Kills a process for real while it writes files: before a call of the file system, or in the middle of a write."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable

FILE_CALLS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"})
"""Audit events of what programs do with files; ``os.fsync`` has none and is counted as well."""


def killed_at(call: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a process that kills itself before this call of the file system; return whether it was killed.

    The process is a copy of this one, which must have a single thread.
    """
    return _killed(lambda: kill_this_process_at(call), action)


def kill_this_process_at(call: int) -> None:
    """Let this process kill itself before this call of the file system, counted from now."""
    calls, sync = itertools.count(), os.fsync

    def count(event: str, _: object) -> None:
        if event in FILE_CALLS and next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_sync(number: int) -> None:
        count("open", None)
        sync(number)

    sys.addaudithook(count)
    os.fsync = counted_sync  # type: ignore[assignment]


def killed_at_byte(size: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a process that dies while it writes a file larger than ``size``; return whether it died."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return _killed(prepare, action)


def killed_in(action: Callable[[], object]) -> bool:
    """Run ``action`` in a process that may kill itself; return whether it was killed."""
    return _killed(lambda: None, action)


def _killed(prepare: Callable[[], None], action: Callable[[], object]) -> bool:
    if (pid := os.fork()) == 0:
        try:
            prepare()
            action()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, "the action failed"
    return os.WIFSIGNALED(status)
