"""The actor that keeps one job on a Ray node: starts its process, passes signals on, and clears up after it.

Ray takes an actor's word that its work is done, and gives a GPU away while a process that the actor started may
still hold it. So the job's process dies with the actor, the actor frees its placement group only when the process
is gone, and what the process returned is left in a file.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.engines.process import hear_of_children, signal_group

_TICK_S = 0.1
_NO_PROGRAM = 127


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to start on a node.

    Attributes:
        module: module whose ``main`` is the job.
        arguments: its arguments.
        environment: environment of the job, but for what the node itself gives.
        cwd: working folder.
        log: file for what the job prints.
        note: file for its exit status.
    """

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str
    log: str
    note: str


def keep(order: Order, environment: Mapping[str, str], started: Callable[[int], None]) -> None:
    """Run an order's process to its end and write its exit status into the note.

    The kernel ends a process with the thread that started it, not with that thread's process: call this in a thread
    that stays.

    Args:
        order: what to start.
        environment: what the node adds to the order's environment.
        started: told the process id, which is also the id of its group; 0 if it could not be started.
    """
    hear_of_children()
    command = [sys.executable, "-m", "paribus.engines.launch", str(os.getpid()), "", order.module, *order.arguments]
    with Path(order.log).open("ab") as file:
        try:
            process = subprocess.Popen(
                command,
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
            signal_group(process.pid, 9)
    write_number(Path(order.note), code)


def write_number(file: Path, number: int) -> None:
    """Write an exit status or a signal, whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(f"{number}\n")
    temporary.replace(file)


class Keeper:
    """Keeps one job; its GPUs are those that Ray gave to the actor."""

    def __init__(self, order: Order) -> None:
        from ray.util import get_current_placement_group

        self._group: Any = get_current_placement_group()
        self._pid = 0
        self._ended = False
        self._started = threading.Event()
        threading.Thread(target=self._keep, args=(order,), daemon=True).start()
        self._started.wait()

    async def began(self) -> None:
        """Return as soon as the actor runs."""

    async def watch(self) -> None:
        """Return when the job has ended and its exit status is in the file."""
        while not self._ended:
            await asyncio.sleep(_TICK_S)

    async def signal(self, number: int) -> None:
        """Send a signal to the job's process group."""
        if self._pid and not self._ended:
            signal_group(self._pid, number)

    def _keep(self, order: Order) -> None:
        own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        keep(order, own, self._has_started)
        self._ended = True
        self._free()

    def _has_started(self, pid: int) -> None:
        self._pid = pid
        self._started.set()

    def _free(self) -> None:
        """Give the resources back, and so end this actor, also if no scheduler is left to do it."""
        from ray.util import remove_placement_group

        with suppress(Exception):  # the head may be gone; then so are the resources
            remove_placement_group(self._group)
