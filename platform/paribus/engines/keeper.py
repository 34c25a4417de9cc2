"""Runs a program so that nothing which it starts outlives it: ``python -m paribus.engines.keeper PARENT PROGRAM ...``.

This process adopts what the program's processes leave behind, whatever session they have moved to and whatever
environment they have. It kills all of it when the program ends, when ``PARENT`` (a process id) ends, or on SIGTERM. The
parent kills everything at once with :func:`paribus.engines.process.end_tree`. It imports no more than it needs, as
there is one above each worker process and each job on Ray.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

from paribus.engines.process import adopt_orphans, die_with_parent, end_orphans

STOPPED = 128 + signal.SIGTERM
"""Exit status after SIGTERM, and when the parent has ended."""


_HELD = frozenset({signal.SIGCHLD, signal.SIGTERM})
"""Signals that are waited for: one that interrupted the end of the others would leave some alive."""


def keep(parent: int, command: Sequence[str], *, leads: bool = False) -> int:
    """Run a command until it ends.

    Args:
        parent: process id of the parent.
        command: the program and its arguments.
        leads: whether this process leads a group for the program's sake: signals to the group, SIGTERM among them, are
            for the program alone.

    Returns:
        Exit status of the program, negative if a signal has killed it; :data:`STOPPED` if this process has ended it.
    """
    adopt_orphans()
    own, held = os.getpid(), frozenset(signal.valid_signals()) if leads else _HELD
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as in what Ray starts, no child's end is known
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, held)

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        die_with_parent(own)

    try:
        die_with_parent(parent, signal.SIGTERM)
        program = subprocess.Popen(command, preexec_fn=begin)
        _let_go()
        while signal.sigwait(held) != signal.SIGTERM or (leads and os.getppid() == parent):
            for pid, status in _ended():
                if pid == program.pid:
                    program.returncode = os.waitstatus_to_exitcode(status)
                    return program.returncode
        return STOPPED
    finally:
        while not end_orphans(()):
            time.sleep(0.005)


def _ended() -> Iterator[tuple[int, int]]:
    """Yield process id and status of each child that has ended, also of those that were adopted."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _let_go() -> None:
    """Close the pipes, so that their ends are the program's alone."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    os.close(null)


def end_like(status: int) -> NoReturn:
    """End this process as the program ended, also by the same signal."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    end_like(keep(int(sys.argv[1]), sys.argv[2:]))
