"""Uploads W&B files with `wandb sync`, if ``WANDB_MODE`` is ``online`` and ``WANDB_API_KEY`` is set.

One process at a time, which gets the key by the environment. The mark that `wandb sync` leaves beside a file says that
it was uploaded; it goes when the file changes. A file that is uploaded again replaces what was there.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from paribus.masking import mask
from paribus.mlflow_sync.wandb_files import FOLDER, SYNCED, WANTED

TIMEOUT_S = 600.0
"""Seconds after which an upload is ended and tried again."""

_BACKOFF_MAX_S = 300.0
_log = logging.getLogger("paribus.mlflow_sync")


def is_online() -> bool:
    """Return whether files are uploaded: only with the mode ``online`` and a key."""
    return os.environ.get("WANDB_MODE") == "online" and bool(os.environ.get("WANDB_API_KEY"))


class Uploads:
    """The uploads of a home folder.

    Args:
        home: home folder.
        clock: seconds.
    """

    def __init__(self, home: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = home / FOLDER
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._file = Path()
        self._until = self._again = 0.0
        self._failures = self._began_with = 0
        self.trouble = ""

    def turn(self) -> int:
        """Start an upload if there is something to upload, and none is running; return how many are left."""
        if self._process is not None and self._process.poll() is None:
            if self._clock() > self._until:
                self._process.kill()
            return self._left()
        if self._process is not None:
            self._end(self._process.wait())
        if self._clock() >= self._again and (file := next(self._waiting(), None)) is not None:
            self._start(file)
        return self._left()

    def close(self) -> None:
        """Kill the process; the next one uploads the file again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _left(self) -> int:
        return sum(1 for _ in self._waiting()) + (self._process is not None)

    def _waiting(self) -> Iterator[Path]:
        """Yield the files of runs that have ended or have an alert and that are not uploaded as they are now."""
        for file in sorted(self._folder.glob("offline-run-*/run-*.wandb")):
            running = self._process is not None and file == self._file
            if not running and file.with_suffix(WANTED).exists() and not file.with_suffix(SYNCED).exists():
                yield file

    def _start(self, file: Path) -> None:
        self._file, self._until = file, self._clock() + TIMEOUT_S
        self._began_with = _changed_at(file)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wandb", "sync", "--no-include-online", str(file.parent.resolve())],
            cwd=self._folder.parent,  # where W&B writes its own log
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def _end(self, status: int) -> None:
        """Take the result of an upload into account; `wandb sync` exits with 0 if it could not upload, too."""
        self._process = None
        if self._output is not None:
            self._output.seek(0)
            said = self._output.read().decode(errors="replace").strip().splitlines()
            self._output.close()
        if _changed_at(self._file) != self._began_with:  # the run went on meanwhile: the mark is that of the older file
            self._file.with_suffix(SYNCED).unlink(missing_ok=True)
        if self._file.with_suffix(SYNCED).exists():
            self._failures, self.trouble = 0, ""
            return
        self.trouble = mask(said[-1] if said else f"wandb sync: exit status {status}")
        _log.warning("upload of %s: %s", self._file, self.trouble)
        self._again = self._clock() + min(2.0**self._failures, _BACKOFF_MAX_S)
        self._failures += 1


def _changed_at(file: Path) -> int:
    """Return when a file changed last, in nanoseconds; -1 if it is gone."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return -1
