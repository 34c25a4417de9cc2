"""podman's service, which Docker Compose talks to: where it stands still it is started again, once for each command."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ANSWER_S = 120.0
"""Seconds in which the service must answer what costs it nothing, also on a busy machine."""

LOOK_S = 10.0
"""Seconds between two looks whether it does."""


class PodmanService:
    """The service, started.

    Args:
        file: its socket.
        command: what starts it.
        environment: its variables.
        answer_s: seconds in which it must answer.
        look_s: seconds between two looks.
    """

    def __init__(
        self, file: Path, command: Sequence[str], environment: Mapping[str, str], *,
        answer_s: float = ANSWER_S, look_s: float = LOOK_S,
    ) -> None:  # fmt: skip
        self._file, self._command, self._environment = file, command, environment
        self._answer_s, self._look_s = answer_s, look_s
        self._start()

    def call(self, work: Callable[[], str]) -> str:
        """Return what a command gives that talks to the service.

        If the service gives no answer meanwhile, it is killed, which ends the command; both are started once more.

        Raises:
            AssertionError: the command fails, though the service answers.
        """
        over, stood_still = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.wait(self._look_s):
                if not self.answers() and not over.is_set():
                    stood_still.set()
                    self._process.kill()
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            said = work()
        except AssertionError:
            if not stood_still.is_set():
                raise
        finally:
            over.set()
            watching.join()
        if not stood_still.is_set():
            return said
        print(f"compose: podman's service gave no answer for {self._answer_s:.0f} s, and was killed and started again")
        self.stop()
        self._start()
        return work()

    def answers(self) -> bool:
        """Return whether the service answers in time."""
        with socket.socket(socket.AF_UNIX) as asked, suppress(OSError):
            asked.settimeout(self._answer_s)
            asked.connect(str(self._file))
            asked.sendall(b"GET /_ping HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n")
            return asked.recv(64).startswith(b"HTTP/1.1 200")
        return False

    def stop(self) -> None:
        """End the service by force; its containers stay."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        self._file.unlink(missing_ok=True)
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=quiet, stderr=quiet)
        end = time.monotonic() + 10 * self._answer_s
        while not self.answers():
            assert time.monotonic() < end, "podman's service did not start"
            time.sleep(0.1)
