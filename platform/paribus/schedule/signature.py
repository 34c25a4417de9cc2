"""What a failure is called, so that equal failures are seen to be equal."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

_TAIL = 1 << 16
_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a program failed.

    Attributes:
        reason: the last line of the traceback, for people.
        signature: the same without what varies between equal failures (numbers, addresses), and with the place.
    """

    reason: str
    signature: str


def failure_in(log: Path, exit_code: int) -> Failure:
    """Return what the end of a runner's log says about its failure; without a traceback, what the exit code says."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        text = ""
    lines = text[text.rfind(_START) :].splitlines() if _START in text else []
    frames = [m for m in map(_FRAME.match, lines) if m]
    message = next((line for line in lines[1:] if line and not line[0].isspace()), "")
    if not message or not frames:
        reason = describe_exit(exit_code)
        return Failure(reason=reason, signature=reason)
    place = f"{Path(frames[-1]['file']).name}:{frames[-1]['function']}"
    stable = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", message)
    return Failure(reason=message[:_LONGEST], signature=f"{stable[:_LONGEST]} ({place})")


def describe_exit(exit_code: int) -> str:
    """Return a process's end in words."""
    if exit_code >= 0:
        return f"the runner ended with exit status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"the runner was ended by {name}"
