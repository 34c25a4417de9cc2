"""Runs a study as `paribus run` does: in a process of its own, whose lines appear as they are printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from paribus.errors import ParibusError

INTERRUPTED = 130
"""Exit status of `paribus run` after Ctrl-C."""

_ENDED = (0, 1)
"""Exit statuses after which there are results; 1: a run failed, or the budget or a pause ended the study."""

_ERROR = re.compile(r"error (P\d{3}):\s?(.*)", re.DOTALL)
_KILLED_AFTER_S = 30.0
_LAST_LINES = 20
_CHUNK = 1 << 16
_PAUSE_S = 0.1

# The program dies with the notebook's kernel, as if it had been stopped: it ends its runs, which write a checkpoint.
_BEGIN = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(130)
os.execv(sys.executable, [sys.executable, "-P", "-m", "paribus", *sys.argv[2:]])
"""


def run_command(arguments: Sequence[str], say: Callable[[str], None]) -> None:
    """Run `paribus` with these arguments until it ends, and pass on each line that it prints.

    Ctrl-C, or the interrupt of a notebook, stops it as in a terminal: its runs write a checkpoint. A second one kills
    the runs. No process is left either way.

    Args:
        arguments: from the command on.
        say: takes each line without its end.

    Raises:
        ParibusError: the command has refused, with its message.
        KeyboardInterrupt: it was interrupted, after it has ended.
    """
    with tempfile.TemporaryFile() as output:  # a pipe would break with the kernel, and the command with it
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,  # an interrupt of the kernel's group must reach it once, from here
        )
        try:
            lines, interrupted = _follow(process, output.fileno(), say)
        finally:
            _end(process)
    if interrupted or process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    _refuse(arguments, process.returncode, lines)


def _follow(process: subprocess.Popen[bytes], output: int, say: Callable[[str], None]) -> tuple[list[str], int]:
    """Pass on the lines up to the end; return the last ones, from an error message on, and how often it was stopped."""
    last: list[str] = []
    interrupts = offset = 0
    rest = b""
    failed = ended = False
    while True:
        try:
            while data := os.pread(output, _CHUNK, offset):
                offset, rest = offset + len(data), rest + data
            while rest and (b"\n" in rest or ended):
                line, _, rest = rest.partition(b"\n")
                text = line.decode("utf-8", "replace")
                failed = failed or _ERROR.match(text) is not None
                last = [*last, text] if failed else [*last, text][-_LAST_LINES:]
                if not failed:
                    say(text)
            if ended:
                return last, interrupts
            ended = _ends(process)
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts <= 2 and process.poll() is None:  # a third signal would leave the runs
                process.send_signal(signal.SIGINT)


def _ends(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a moment; return whether the process has ended."""
    try:
        process.wait(_PAUSE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, if what printed its lines has failed."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_KILLED_AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _refuse(arguments: Sequence[str], status: int, lines: Sequence[str]) -> None:
    """Raise the error that the command has printed; one of its own if it ended in another way."""
    begin = next((i for i, line in enumerate(lines) if _ERROR.match(line)), None)
    if begin is not None and (found := _ERROR.match("\n".join(lines[begin:]))):
        error = ParibusError(found[2].strip())
        error.code = found[1]
        raise error
    if status not in _ENDED:
        shown = "\n".join(lines)
        raise ParibusError(f"`paribus {arguments[0]}` ended with exit status {status}. Its last lines:\n{shown}")
