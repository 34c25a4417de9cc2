"""What kind of failure a run had, so that equal failures compare equal; and whether the disk is the cause."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.masking import mask
from paribus.text import printable

_TAIL = 1 << 16
_START = "Traceback (most recent call last):"
_OURS = re.compile(r"\bparibus\.errors\.\w+: ")
"""What Python prints before the message of a ``ParibusError``, a whole sentence, also where it is handed on."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_LONGEST = 300
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
# as written by Python, and by libraries in other languages
_DISK_MESSAGE = re.compile(
    rf"(?:\[Errno |os error )(?:{'|'.join(map(str, _DISK))})\b|{'|'.join(os.strerror(n) for n in _DISK)}"
)
_PROBE_BYTES = 1 << 20
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

KILLED = 128
"""A program that ends because a signal has killed one of its processes has this exit status plus the signal's number.

Its log ends with a line that says which process it was.
"""

STORAGE = "storage"
"""Kind of a disk failure."""
HUNG = "hung"
"""Kind of a run without progress, before the phase in which it hangs; its program failed, unless it was stopped."""
NAMED = {"StaleSampler": "stale_sampler"}
"""Exceptions whose name alone is the kind of failure: the numbers in the message and the place in the code vary."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a program failed.

    Attributes:
        reason: the last line of the traceback, for users; of a ``ParibusError`` its message alone.
        signature: the kind of failure: the reason without what varies between equal failures (numbers, addresses), and
            with the place in the code; :data:`STORAGE` if the disk is the cause, and a kind of :data:`NAMED`.
    """

    reason: str
    signature: str


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            return storable(file.read().decode(errors="replace"))
    except OSError:
        return ""


def last_line(log: Path) -> str:
    """Return the last line of a log with a printed character, without credentials; empty if there is none."""
    text = next((line.strip() for line in reversed(_end_of(log).splitlines()) if line.strip()), "")
    return printable(text)[:_LONGEST]


def failure_in(log: Path, exit_code: int) -> Failure:
    """Return the failure that the end of a runner's log shows.

    If there is no traceback (a full disk takes none), the disk's state decides, then the exit code.
    """
    text = _end_of(log)
    lines = text[text.rfind(_START) :].splitlines() if _START in text else []
    frames = [m for m in map(_FRAME.match, lines) if m]
    message = next((line for line in lines[1:] if line and not line[0].isspace()), "")
    if not message or not frames:
        if (trouble := disk_trouble(log.parent)) is not None:
            return trouble
        reason = describe_exit(exit_code)
        return Failure(reason=reason, signature=reason)
    if _DISK_MESSAGE.search(message):
        return storage_failure(_OURS.sub("", message), log.parent)
    reason = (_OURS.sub("", message) or message)[:_LONGEST]
    for name, kind in NAMED.items():
        if re.search(rf"\b{name}: ", message):  # also where the error of one of several processes is handed on
            return Failure(reason=reason, signature=kind)
    place = f"{Path(frames[-1]['file']).name}:{frames[-1]['function']}"
    stable = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", message)
    return Failure(reason=reason, signature=f"{stable[:_LONGEST]} ({place})")


def storable(text: str) -> str:
    """Return a text without credentials, and without what databases reject: NUL, and unpaired surrogates."""
    return mask(text.replace("\0", "\ufffd").encode(errors="replace").decode())


def disk_trouble(folder: Path) -> Failure | None:
    """Try to write a megabyte into a folder; return the failure, or ``None`` on success."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return disk_failure(error, folder)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def disk_failure(error: OSError, folder: Path) -> Failure | None:
    """Return the disk failure behind an error; ``None`` if the error has another cause."""
    return storage_failure(f"OSError: {error}", folder) if error.errno in _DISK else None


def storage_failure(message: str, folder: Path) -> Failure:
    """Return a disk failure whose reason says what to do."""
    shown = message if str(folder) in message else f"{message} ({folder})"
    remedy = f"Make room on the disk of {socket.gethostname()} or repair it; `paribus doctor` checks it"
    return Failure(reason=f"{shown[:_LONGEST]}. {remedy}", signature=STORAGE)


def from_outside(exit_code: int | None) -> bool:
    """Return whether an end is a failure of the infrastructure: killed by a signal from outside, or lost.

    Args:
        exit_code: negative for a signal, above :data:`KILLED` for one that has killed a process of the program;
            ``None`` if no exit status is known.
    """
    return exit_code is None or -exit_code in _FROM_OUTSIDE or exit_code - KILLED in _FROM_OUTSIDE


def describe_exit(exit_code: int, log: Path | None = None) -> str:
    """Describe how a process ended; its ``log`` names the process of a program that a signal has killed."""
    if log is not None and exit_code > KILLED and (line := last_line(log)):
        return line
    if exit_code >= 0:
        return f"the runner ended with exit status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"the runner was killed by {name}"
