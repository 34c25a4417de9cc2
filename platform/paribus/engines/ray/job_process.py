"""The process of one job on a Ray node: what to start (:class:`Order`), and how to run it to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paribus.engines.launch import write_number
from paribus.engines.process import restore_sigchld, signal_group

_NO_PROGRAM = 127


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


def run_order(order: Order, environment: Mapping[str, str], started: Callable[[int], None]) -> None:
    """Run an order's process to its end and write its exit status to the order's note.

    Call this in a thread that outlives the process: the kernel kills a process when the *thread* that started it ends.

    Args:
        order: what to start.
        environment: what the node adds to the order's environment.
        started: receives the process id, which is also the id of its group; 0 if the process could not be started.
    """
    restore_sigchld()
    launch = ("paribus.engines.launch", "local", str(os.getpid()), "", order.module)
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
            started(0)
        else:
            started(process.pid)
            code = process.wait()
            signal_group(process.pid, signal.SIGKILL)
    write_number(Path(order.note), code)
