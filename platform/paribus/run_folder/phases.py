"""What each process of a run is doing: a small file a process, written in place, and read by the supervisor.

``phases/0``, ``phases/1``, ... begin with one line of :data:`HEAD` bytes, JSON: phase, step, process id, a count that
rises with every sign of progress, and whether the process only waits for others. What follows are the stacks of its
threads, which it writes when it gets :data:`DUMP`, whatever it is doing. They exist while a run trains, and after a
process that was killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.contract import PHASES, RunPhase
from paribus.run_folder.json_text import field_of, fields, text, whole

HEAD = 160
"""Bytes of the line; the file is written in place, so that a sign of progress costs one small write."""
DUMP = signal.SIGUSR2
"""Signal on which a process appends the stacks of its threads; faulthandler needs no lock of Python's for it."""
STOP = signal.SIGUSR1
"""Signal that asks the processes of another node to stop: what started them there would end them at once on SIGTERM."""
EVERY_S = 0.5
"""Seconds between two writes within a phase: signs of progress may come a thousand times a second."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a process was doing when it last wrote.

    Attributes:
        phase: the phase.
        step: the step; 0 before the first one.
        pid: its process id.
        count: rises with every sign of progress.
        waiting: whether it waits for other processes of the run.
        elsewhere: whether it is on another node than the supervisor, so that its id means nothing there.
    """

    phase: RunPhase
    step: int
    pid: int
    count: int
    waiting: bool
    elsewhere: bool = False


class Phases:
    """Writes what this process is doing; without a file it does nothing."""

    def __init__(self, file: int | None = None, *, elsewhere: bool = False) -> None:
        self._file, self._elsewhere = file, elsewhere
        self._phase: RunPhase = "start"
        self._step = self._count = 0
        self._waiting = False
        self._next = 0.0
        self._write()

    @classmethod
    @contextmanager
    def open(cls, attempt: Path, rank: int, *, elsewhere: bool = False) -> Iterator[Phases]:
        """Write into the folder of an attempt for the duration, and answer :data:`DUMP`."""
        path = attempt / "phases" / str(rank)
        path.parent.mkdir(exist_ok=True)
        kept = os.O_SYNC if elsewhere else 0  # NFS shows another node what was written half a minute later
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | kept, 0o644)
        try:
            os.lseek(file, HEAD, os.SEEK_SET)  # where the stacks go
            faulthandler.register(DUMP, file=file, all_threads=True)
            yield cls(file, elsewhere=elsewhere)
        finally:
            faulthandler.unregister(DUMP)
            os.close(file)
            path.unlink(missing_ok=True)
            with suppress(OSError):  # other processes of the run still write there
                path.parent.rmdir()

    @property
    def now(self) -> tuple[RunPhase, int]:
        """The phase, and the step; 0 before the first one."""
        return self._phase, self._step

    def enter(self, phase: RunPhase, step: int | None = None) -> None:
        """Note that a phase begins."""
        self._phase, self._step = phase, self._step if step is None else step
        self._write()

    @contextmanager
    def within(self, phase: RunPhase) -> Iterator[None]:
        """Note a phase for the duration; then the one before goes on."""
        before = self._phase
        self.enter(phase)
        yield
        self.enter(before)

    def progress(self) -> None:
        """Note a sign of progress."""
        if self._file is not None and time.monotonic() >= self._next:
            self._write()

    def wait(self, waiting: bool) -> None:
        """Note that this process begins or ends to wait for others."""
        if waiting != self._waiting:
            self._waiting = waiting
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        self._count += 1
        sign = {
            "phase": self._phase, "step": self._step, "pid": os.getpid(), "count": self._count,
            "waiting": self._waiting, "elsewhere": self._elsewhere,
        }  # fmt: skip
        line = json.dumps(sign).encode().ljust(HEAD - 1) + b"\n"
        with suppress(OSError):  # a full disk is found where it matters
            os.pwrite(self._file, line, 0)
        self._next = time.monotonic() + EVERY_S


def read_signs(attempt: Path) -> dict[int, Sign]:
    """Return the last sign of each process of a run by its rank; one that is being written, or damaged, is left out."""
    found = {}
    with suppress(OSError):
        for path in sorted((attempt / "phases").iterdir()):
            with suppress(OSError, ValueError), path.open("rb") as file:
                found[int(path.name)] = _sign(file.read(HEAD))
    return found


def stacks(attempt: Path, rank: int) -> str:
    """Return the stacks that a process has written; empty if it has written none."""
    try:
        return (attempt / "phases" / str(rank)).read_bytes()[HEAD:].decode(errors="replace")
    except OSError:
        return ""


def _sign(line: bytes) -> Sign:
    raw = fields(json.loads(line))
    phase, waiting = text(field_of(raw, "phase"), "phase"), field_of(raw, "waiting")
    elsewhere = raw.get("elsewhere", False)  # older runs have one node
    if phase not in PHASES or not (isinstance(waiting, bool) and isinstance(elsewhere, bool)):
        raise ValueError("not a sign of a process")
    return Sign(
        phase=phase,  # type: ignore[arg-type]  # it is one of them
        step=whole(field_of(raw, "step"), "step", 0),
        pid=whole(field_of(raw, "pid"), "pid", 1, (1 << 31) - 1),
        count=whole(field_of(raw, "count"), "count", 0),
        waiting=waiting,
        elsewhere=elsewhere,
    )
