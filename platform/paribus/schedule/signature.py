"""What a failure is called, so that equal failures are seen to be equal; and whether the disk is to blame."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TAIL = 1 << 16
_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_LONGEST = 300
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
# as Python, and as libraries in other languages, write them
_DISK_TOLD = re.compile(
    rf"(?:\[Errno |os error )(?:{'|'.join(map(str, _DISK))})\b|{'|'.join(os.strerror(n) for n in _DISK)}"
)
_PROBE_BYTES = 1 << 20

STORAGE = "storage"
"""Signature of a failure of the disk."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a program failed.

    Attributes:
        reason: the last line of the traceback, for people.
        signature: the same without what varies between equal failures (numbers, addresses), and with the place;
            :data:`STORAGE` if the disk is to blame.
    """

    reason: str
    signature: str


def failure_in(log: Path, exit_code: int) -> Failure:
    """Return what the end of a runner's log says about its failure.

    Without a traceback, which a full disk does not take, what the disk says counts, then the exit code.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = storable(file.read().decode(errors="replace"))
    except OSError:
        text = ""
    lines = text[text.rfind(_START) :].splitlines() if _START in text else []
    frames = [m for m in map(_FRAME.match, lines) if m]
    message = next((line for line in lines[1:] if line and not line[0].isspace()), "")
    if not message or not frames:
        if (trouble := disk_trouble(log.parent)) is not None:
            return trouble
        reason = describe_exit(exit_code)
        return Failure(reason=reason, signature=reason)
    if _DISK_TOLD.search(message):
        return storage_failure(message, log.parent)
    place = f"{Path(frames[-1]['file']).name}:{frames[-1]['function']}"
    stable = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", message)
    return Failure(reason=message[:_LONGEST], signature=f"{stable[:_LONGEST]} ({place})")


def storable(text: str) -> str:
    """Return a text without what a database does not take: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def disk_trouble(folder: Path) -> Failure | None:
    """Return why a folder takes no file of a megabyte; ``None`` if it does."""
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
    """Return the failure of a disk that an error tells of; ``None`` if it tells of something else."""
    return storage_failure(f"OSError: {error}", folder) if error.errno in _DISK else None


def storage_failure(message: str, folder: Path) -> Failure:
    """Return the failure of a disk, with what to do."""
    shown = message if str(folder) in message else f"{message} ({folder})"
    remedy = f"Make room, or mend the disk of {socket.gethostname()}: `paribus doctor` looks"
    return Failure(reason=f"{shown[:_LONGEST]}. {remedy}", signature=STORAGE)


def describe_exit(exit_code: int) -> str:
    """Return a process's end in words."""
    if exit_code >= 0:
        return f"the runner ended with exit status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"the runner was ended by {name}"
