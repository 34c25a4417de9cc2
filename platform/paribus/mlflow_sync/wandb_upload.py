"""Uploads W&B files with `wandb sync`, if ``WANDB_MODE`` is ``online`` and ``WANDB_API_KEY`` is set.

One process at a time, which gets the key by the environment and ends with this one. It reads a copy: a run that trains
on meanwhile changes nothing of what is sent, and the mark that `wandb sync` leaves beside the copy says whether it was
sent. A file that is uploaded again replaces what was there. A file that cannot be uploaded waits by itself; the others
go on.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paribus.engines.keeper import STOPPED
from paribus.engines.process import kept
from paribus.masking import describe, mask
from paribus.mlflow_sync.wandb_files import FOLDER, SYNCED, WANTED

TIMEOUT_S = 600.0
"""Seconds after which an upload is ended and tried again."""

COPIES = ".uploading"
"""Folder of the copy that is being sent, in that of the files; each upload has one of its own in it."""

_ENDED = STOPPED, -signal.SIGTERM
_BACKOFF_MAX_S = 300.0
_log = logging.getLogger("paribus.mlflow_sync")


def is_online() -> bool:
    """Return whether files are uploaded: only with the mode ``online`` and a key."""
    return os.environ.get("WANDB_MODE") == "online" and bool(os.environ.get("WANDB_API_KEY"))


@dataclass(frozen=True)
class _Failed:
    """A file that could not be uploaded: how often, when it is tried again, and what `wandb sync` said."""

    count: int
    again: float
    said: str


@dataclass(frozen=True)
class _Upload:
    """An upload that runs: the file, its state when it was copied, the copy, and when it is ended."""

    file: Path
    state: tuple[int, int]
    wanted: tuple[int, int]
    copy: Path
    until: float
    process: subprocess.Popen[bytes]
    output: IO[bytes]


class Uploads:
    """The uploads of a home folder.

    Args:
        home: home folder.
        clock: seconds.
    """

    def __init__(self, home: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = home / FOLDER
        self._clock = clock
        self._running: _Upload | None = None
        self._failed: dict[Path, _Failed] = {}

    @property
    def trouble(self) -> str:
        """Why the first of the files that could not be uploaded could not; empty: there is none."""
        return next((f"{file.name}: {failed.said}" for file, failed in sorted(self._failed.items())), "")

    def turn(self) -> int:
        """Start an upload if there is something to upload, and none is running; return how many are left."""
        upload = self._running
        if upload is not None:
            if upload.process.poll() is None:
                if self._clock() > upload.until:
                    upload.process.terminate()
                return len(self._waiting()) + 1
            self._end(upload)
        waiting = self._waiting()
        self._failed = {file: failed for file, failed in self._failed.items() if file in waiting}
        ready = [file for file in waiting if self._due(file) <= self._clock()]
        if ready:
            self._start(min(ready, key=self._due))
        return len(self._waiting()) + (self._running is not None)

    def close(self) -> None:
        """End the process; the next one uploads the file again."""
        if self._running is not None:
            self._running.process.terminate()
            self._running.process.wait()
            self._running.output.close()
            self._forget()

    def _due(self, file: Path) -> float:
        """Return when a file may be uploaded: at once, or after its last failure."""
        failed = self._failed.get(file)
        return failed.again if failed else float("-inf")

    def _waiting(self) -> list[Path]:
        """Return the files of runs that have ended or have an alert and that are not uploaded as they are now."""
        running = self._running.file if self._running else None
        files = sorted(self._folder.glob("offline-run-*/run-*.wandb"))
        marks = ((file, file.with_suffix(WANTED).exists(), file.with_suffix(SYNCED).exists()) for file in files)
        return [file for file, wanted, synced in marks if file != running and wanted and not synced]

    def _start(self, file: Path) -> None:
        state, wanted = _state(file), _state(file.with_suffix(WANTED))
        try:
            shutil.rmtree(self._folder / COPIES, ignore_errors=True)
            (self._folder / COPIES).mkdir(parents=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self._folder / COPIES)) / file.parent.name
            folder.mkdir()
            shutil.copyfile(file, folder / file.name)
        except OSError as error:
            self._fail(file, describe(error))
            return
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end or close
        process = subprocess.Popen(
            kept(sys.executable, "-m", "wandb", "sync", "--no-include-online", str(folder.resolve())),
            cwd=self._folder.parent,  # where W&B writes its own log
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        until = self._clock() + TIMEOUT_S
        self._running = _Upload(file, state, wanted, folder / file.name, until, process, output)

    def _end(self, upload: _Upload) -> None:
        """Take the result of an upload into account; `wandb sync` exits with 0 if it could not upload, too."""
        status = upload.process.wait()
        upload.output.seek(0)
        said = upload.output.read().decode(errors="replace").strip().splitlines()
        upload.output.close()
        sent = upload.copy.with_suffix(SYNCED).exists()
        self._forget()
        if not sent:
            how = f"no end within {TIMEOUT_S:.0f} s" if status in _ENDED else f"exit status {status}"
            self._fail(upload.file, said[-1] if said else f"wandb sync: {how}")
            return
        self._failed.pop(upload.file, None)
        mark = upload.file.with_suffix(WANTED)
        if _state(upload.file) == upload.state:
            upload.file.with_suffix(SYNCED).touch()
        if _state(mark) == upload.wanted:  # else it has ended or got an alert meanwhile
            mark.unlink(missing_ok=True)

    def _forget(self) -> None:
        self._running = None
        shutil.rmtree(self._folder / COPIES, ignore_errors=True)

    def _fail(self, file: Path, said: str) -> None:
        count = self._failed[file].count if file in self._failed else 0
        again = self._clock() + min(2.0 ** min(count, 10), _BACKOFF_MAX_S)
        self._failed[file] = _Failed(count + 1, again, mask(said))
        _log.warning("upload of %s: %s", file, mask(said))


def _state(file: Path) -> tuple[int, int]:
    """Return when a file changed last, in nanoseconds, and its size; -1 if it is gone."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return -1, -1
    return found.st_mtime_ns, found.st_size
