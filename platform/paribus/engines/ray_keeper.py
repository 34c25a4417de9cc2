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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paribus.engines.process import hear_of_children, signal_group

_TICK_S = 0.1
_NO_PROGRAM = 127


class Keeper:
    """Keeps one job.

    Args:
        module: module whose ``main`` is the job.
        arguments: its arguments.
        environment: environment of the job; the GPUs are those that Ray gave to the actor.
        cwd: working folder.
        log: file for what the job prints.
        note: file for its exit status.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], cwd: str, log: str, note: str
    ) -> None:
        from ray.util import get_current_placement_group

        self._group: Any = get_current_placement_group()
        self._note = Path(note)
        self._pid = 0
        self._ended = False
        started = threading.Event()
        command = [sys.executable, "-m", "paribus.engines.launch", str(os.getpid()), module, *arguments]
        own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        keep = (command, {**environment, **own}, cwd, log, started)
        # the kernel ends a process with the thread that started it, not with that thread's process: this one stays
        threading.Thread(target=self._keep, args=keep, daemon=True).start()
        started.wait()

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

    def _keep(
        self, command: list[str], environment: dict[str, str], cwd: str, log: str, started: threading.Event
    ) -> None:
        hear_of_children()
        with Path(log).open("ab") as file:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            except OSError as error:
                file.write(f"{error}\n".encode())
                code = _NO_PROGRAM
            else:
                self._pid = process.pid
                started.set()
                code = process.wait()
                signal_group(process.pid, 9)
        temporary = self._note.with_name(f".{self._note.name}.{os.getpid()}")
        temporary.write_text(f"{code}\n")
        temporary.replace(self._note)
        self._ended = True
        started.set()
        self._free()

    def _free(self) -> None:
        """Give the resources back, and so end this actor, also if no scheduler is left to do it."""
        from ray.util import remove_placement_group

        with suppress(Exception):  # the head may be gone; then so are the resources
            remove_placement_group(self._group)
