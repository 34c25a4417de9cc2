"""How a job's Python process begins: ``python -m paribus.engines.launch KIND ... MODULE ARGUMENTS``.

``local PARENT GROUP MODULE ARGUMENTS``
    A job that ends with the process that started it (PARENT). GROUP is the folder of its control group; if it's
    empty, the job stays in its parent's.

``kept PARENT MODULE ARGUMENTS``
    The same on a machine of Ray, below a :mod:`~paribus.engines.keeper` that leads the job's group: Ray ends no process
    that has moved to a session of its own.

``remote FILE MODULE ARGUMENTS``
    A job on a machine that a cluster chose. It leaves its exit status in FILE, because a cluster forgets its jobs
    soon after they end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.atomic import write_whole
from paribus.engines.base import call_main
from paribus.engines.cgroup import join
from paribus.engines.keeper import end_like, keep
from paribus.engines.process import Identity, die_with_parent, end_tree, lead_group, restore_sigchld, signal_group

_NO_PROGRAM = 127
_HIGHEST = 255
_DIGITS = 64


def write_number(file: Path, number: int) -> None:
    """Write an exit status or a signal number atomically."""
    write_whole(file, f"{int(number)}\n")


def read_number(file: Path) -> int | None:
    """Return the exit status in a file; ``None`` if there is no file, or no number that a process can end with."""
    with suppress(OSError, ValueError):
        with file.open("rb") as opened:
            number = int(opened.read(_DIGITS))
        return number if -_HIGHEST <= number <= _HIGHEST else None
    return None


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to start on a node.

    Attributes:
        module: module whose ``main`` is the job.
        arguments: its arguments.
        environment: environment of the job, except for what the node itself adds.
        cwd: working folder.
        log: file for the job's output.
        note: file for its exit status.
    """

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str
    log: str
    note: str


def run_order(order: Order, environment: Mapping[str, str], started: Callable[[Identity | None], None]) -> None:
    """Run an order's process to its end, kill all that it leaves, and write its exit status to the order's note.

    Call this in a thread that outlives the process: the kernel ends a process when the *thread* that started it ends.

    Args:
        order: what to start.
        environment: what the node adds to the order's environment.
        started: receives the process for :func:`signal_order`; ``None`` if it could not be started.
    """
    restore_sigchld()
    launch = ("paribus.engines.launch", "kept", str(os.getpid()), order.module)
    with Path(order.log).open("ab") as file:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", *launch, *order.arguments],
                env={**order.environment, **environment},
                cwd=order.cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        except OSError as error:
            file.write(f"{error}\n".encode())
            code = _NO_PROGRAM
            started(None)
        else:
            started(Identity.of(process.pid))
            code = process.wait()
    write_number(Path(order.note), code)


def signal_order(process: Identity, number: int) -> None:
    """Send a signal to the process group of an order; SIGKILL goes to all processes below it, of any session."""
    if number == signal.SIGKILL:
        end_tree(process)
    elif process.alive():
        signal_group(process.pid, number)


def main(arguments: Sequence[str]) -> int:
    """Run a module's ``main`` and return its exit status."""
    kind, *rest = arguments
    if kind == "kept":
        parent, *rest = rest
        job = (sys.executable, "-m", "paribus.engines.launch", "local", str(os.getpid()), "", *rest)
        end_like(keep(int(parent), job, leads=True))
    if kind == "local":
        parent, group, module, *rest = rest
        die_with_parent(int(parent))
        join(group)
        return call_main(module, rest)
    file, module, *rest = rest
    lead_group(os.getpid())
    try:
        code = call_main(module, rest)
    except Exception:
        traceback.print_exc()
        code = 1
    write_number(Path(file), code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
