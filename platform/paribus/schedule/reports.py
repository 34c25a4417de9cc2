"""Has reports written, each by a process of its own: what they need is heavy, and runs must not wait for them."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

LOG = "report.log"
"""File of the home folder with what the newest report has printed."""


class Reports:
    """Writes one report after the other.

    Args:
        home: home folder.
        folder: where each study gets a folder.
        say: takes one line for people.
    """

    def __init__(self, home: Path, folder: Path, say: Callable[[str], None]) -> None:
        self._home = home
        self._folder = folder
        self._say = say
        self._asked = deque[str]()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def asked(self) -> frozenset[str]:
        """The studies whose reports are not written yet."""
        return frozenset(self._asked)

    def ask(self, study: str) -> None:
        """Ask for the report of a study."""
        self._asked.append(study)

    def turn(self) -> int:
        """Start what was asked for, and tell what was written; return how many are left."""
        if self._process is not None and self._process.poll() is not None:
            self._tell(self._asked.popleft(), self._process.returncode)
            self._process = None
        if self._process is None and self._asked:
            name = self._asked[0]
            command = [sys.executable, "-m", "paribus", "report", name, "--home", str(self._home)]
            with (self._home / LOG).open("wb") as log:
                self._process = subprocess.Popen(
                    [*command, "--out", str(self._folder / name)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal reaches only the scheduler
                )
        return len(self._asked)

    def close(self) -> None:
        """End what is being written; `paribus report` writes it at any time."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _tell(self, study: str, status: int) -> None:
        if status == 0:
            self._say(f"{study}: report in {self._folder / study}")
            return
        said = (self._home / LOG).read_text(errors="replace").strip().splitlines()
        self._say(f"{study}: no report: {said[-1] if said else f'exit status {status}'}")
