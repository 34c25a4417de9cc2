"""Keeps one sync process running, and lets it finish at the end."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paribus.errors import RunFolderError
from paribus.mlflow_sync.client import tracking_uri
from paribus.mlflow_sync.offsets import dead_letters, refused_groups
from paribus.mlflow_sync.sync import DRAIN_S, REPLACED, STATUS
from paribus.run_folder.folder import read_json
from paribus.text import plural

LOG = "mlflow_sync.log"
_BACKOFF_MAX_S = 60.0
_LAST_STARTS = 3
_SHOWN, _REASON = 5, 200


def mlflow_is_installed() -> bool:
    """Return whether MLflow is installed, without importing it."""
    return importlib.util.find_spec("mlflow") is not None


def refused_text(names: Sequence[str]) -> str:
    """Return a sentence about metric names that MLflow refuses."""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"MLflow refuses the metric names {shown}: their points are in the run folders only"


class SyncProcess:
    """A sync process that is restarted when it dies; trouble with MLflow never reaches the runs."""

    def __init__(self, home: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._start_at = 0.0

    def ensure(self) -> None:
        """Start the process unless it is running; wait longer after each death."""
        if self._process is not None and self._process.poll() is None:
            return
        now = self._clock()
        if self._process is not None:
            self._forget()
            self._start_at = now + min(2.0 ** min(self._starts - 1, 10), _BACKOFF_MAX_S)
        if now < self._start_at:
            return
        try:
            self._process = self._start()
        except OSError:  # no room for another process or file: runs train on, and it is tried again
            self._start_at = now + _BACKOFF_MAX_S
        self._starts += 1

    def _start(self) -> subprocess.Popen[bytes]:
        (self._home / STATUS).unlink(missing_ok=True)
        with (self._home / LOG).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "paribus.mlflow_sync.sync", str(self._home)],
                stdin=subprocess.PIPE,  # closes when this process ends for any reason; then the sync process ends, too
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def drain(self, wait: Callable[[], None]) -> str:
        """Let the process upload what is left, for a limited time.

        Args:
            wait: called between two checks.

        Returns:
            What is wrong, in one sentence; empty if everything was uploaded.
        """
        until = self._clock() + DRAIN_S + 30.0
        status = None
        for _ in range(_LAST_STARTS):
            status = self._end(wait, until)
            killed = status is not None and status < 0
            if not killed and status != REPLACED:
                break
        try:
            known = read_json(self._home / STATUS)
            trouble, refused = str(known["trouble"]), [str(name) for name in known["refused"]]
        except (RunFolderError, KeyError, TypeError):
            trouble, refused = "", []
        if status != 0:
            return f"not everything is copied yet{f' ({trouble})' if trouble else ''}: see {self._home / LOG}"
        if dead := dead_letters(self._home, tracking_uri(self._home)):
            return (
                f"MLflow refuses {plural(len(dead), 'run')} ({next(iter(dead.values()))[:_REASON]}): see "
                "`paribus doctor`"
            )
        if groups := refused_groups(self._home, tracking_uri(self._home)):
            name, reason = next(iter(groups.items()))
            return f"MLflow refuses to group runs ({name}: {reason[:_REASON]}): see `paribus doctor`"
        return refused_text(refused) if refused else ""

    def _end(self, wait: Callable[[], None], until: float) -> int | None:
        """Close the process's input and wait; return its exit status, ``None`` if it does not end."""
        if self._process is not None and self._process.poll() is not None:
            self._forget()  # else the next one would not start before its pause is over
        self._start_at = 0.0
        self.ensure()
        process = self._process
        if process is None or process.stdin is None:
            return None
        with suppress(OSError):
            process.stdin.close()
        while process.poll() is None and self._clock() < until:
            wait()
        return process.poll()

    def close(self) -> None:
        """Kill the process; the next one uploads what is left."""
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
