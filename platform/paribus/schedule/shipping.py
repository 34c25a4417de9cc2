"""Keeps one shipper process going, and lets it finish at the end."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paribus.errors import RunFolderError
from paribus.schedule.shipper import DRAIN_S, STATUS
from paribus.track.folder import read_json

LOG = "shipper.log"
_BACKOFF_MAX_S = 60.0


def mlflow_is_installed() -> bool:
    """Return whether there is an MLflow to mirror to, without importing it."""
    return importlib.util.find_spec("mlflow") is not None


class ShipperProcess:
    """A shipper that is started again when it dies; trouble with MLflow never reaches the runs."""

    def __init__(self, home: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._start_at = 0.0

    def ensure(self) -> None:
        """Start the shipper if none is running; after a death a little later each time."""
        if self._process is not None and self._process.poll() is None:
            return
        now = self._clock()
        if self._process is not None:
            self._forget()
            self._start_at = now + min(2.0 ** (self._starts - 1), _BACKOFF_MAX_S)
        if now < self._start_at:
            return
        (self._home / STATUS).unlink(missing_ok=True)
        with (self._home / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paribus.schedule.shipper", str(self._home)],
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends: then the shipper ends, too
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._starts += 1

    def drain(self, wait: Callable[[], None]) -> str:
        """Let the shipper ship what is left, for a limited time.

        Args:
            wait: called between two looks.

        Returns:
            What is wrong, in one sentence; empty if everything was shipped.
        """
        self._start_at = 0.0
        self.ensure()
        process = self._process
        if process is None or process.stdin is None:
            return "the shipper could not be started"
        with suppress(OSError):
            process.stdin.close()
        until = self._clock() + DRAIN_S + 30.0
        while process.poll() is None and self._clock() < until:
            wait()
        if process.poll() == 0:
            return ""
        try:
            trouble = read_json(self._home / STATUS)["trouble"]
        except (RunFolderError, KeyError):
            trouble = ""
        return f"MLflow does not have everything yet{f' ({trouble})' if trouble else ''}: see {self._home / LOG}"

    def close(self) -> None:
        """End the shipper at once; what is left is shipped the next time."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait()
            if self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()
            self._process = None
