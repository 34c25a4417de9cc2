"""The process of a program: started without a shell, its output bounded, and ended with all that it has started."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paribus.engines.process import end_kin, signal_group
from paribus.errors import RunnerError
from paribus.masking import mask

MARK = "PARIBUS_PROGRAM"
"""Environment variable that marks every process that the program starts."""

MOST_PRINTED = 8 << 20
"""Bytes of output that are kept from its beginning."""

MOST_LAST = 64 << 10
"""Bytes of output that are kept from its end, where there is more."""

_READ = 1 << 16
_AT_A_TIME = 64  # reads between two looks at the outbox
_SHOWN = 200
_PR_SET_PDEATHSIG = 1


class Output:
    """Copies what a program prints to this process's standard output, without what is too much."""

    def __init__(self) -> None:
        self.printed = 0
        self._last = bytearray()

    def take(self, data: bytes) -> None:
        """Take what was printed."""
        room = max(0, MOST_PRINTED - self.printed)
        if room:
            _write(data[:room])
        self.printed += len(data)
        self._last += data
        if len(self._last) > 2 * MOST_LAST:
            del self._last[:-MOST_LAST]

    def close(self) -> None:
        """Write the end of an output that was too long."""
        left = self.printed - MOST_PRINTED
        if left <= 0:
            return
        shown = bytes(self._last[-min(left, MOST_LAST) :])
        if (gap := left - len(shown)) > 0:
            kept = f"{MOST_PRINTED:,} are kept, and the last {MOST_LAST:,}"
            _write(f"\n... {gap:,} bytes are left out: {kept} ...\n".encode())
        _write(shown if shown.endswith(b"\n") else shown + b"\n")

    @property
    def last_line(self) -> str:
        """The last line that was printed, without credentials; empty if there is none."""
        lines = [line.strip() for line in bytes(self._last[-4096:]).decode(errors="replace").splitlines()]
        text = mask(next((line for line in reversed(lines) if line), ""))
        return "".join(c if c.isprintable() else "?" for c in text)[:_SHOWN]


def _write(data: bytes) -> None:
    sys.stdout.flush()
    while data:
        data = data[os.write(1, data) :]


class Program:
    """A program that runs, in a group of its own.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        environment: its environment, with a value for :data:`MARK`.

    Raises:
        RunnerError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.output = Output()
        self._mark = environment[MARK]
        libc, parent = ctypes.CDLL(None), os.getpid()

        def die_with_parent() -> None:  # between fork and exec: nothing is imported or loaded
            if sys.platform == "linux":
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(128 + signal.SIGKILL)

        try:
            self._process = subprocess.Popen(
                command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, process_group=0, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise RunnerError(
                f"`{command[0]}` cannot be started: {error.strerror or error}. A script needs a first line such as "
                "`#!/bin/sh`, or the program that reads it before it in `runner.argv`"
            ) from error
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._open = True

    def wait(self, seconds: float) -> None:
        """Wait until it prints, at most for so long, and take what it prints."""
        if not self._open:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return
        if select.select([self._pipe], [], [], seconds)[0]:
            self._read()

    def _read(self) -> None:
        for _ in range(_AT_A_TIME):
            try:
                data = os.read(self._pipe, _READ)
            except BlockingIOError:
                return
            if not data:
                self._open = False  # it has closed its output, and may go on
                return
            self.output.take(data)

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to its group."""
        signal_group(self._process.pid, signal.SIGTERM)

    def close(self) -> None:
        """Kill it with all that it has started, wherever that has moved to, and write the end of its output."""
        if self._process.poll() is None:
            signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
        else:
            signal_group(self._process.pid, signal.SIGKILL)  # what is left of the group
        end_kin(self._mark, variable=MARK)
        if self._open:
            self._read()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.output.close()


def new_mark() -> str:
    """Return a value by which the processes of one program are found."""
    return uuid.uuid4().hex
