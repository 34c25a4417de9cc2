"""Report jobs: a scheduler lets processes of their own write reports, as they import much and take long."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

LOG = "report.log"
"""File of the home folder with the output of the newest report job."""


class ReportJobs:
    """Writes one report after the other.

    Args:
        home: home folder.
        folder: where each study gets a folder.
        say: prints one line for the user.
    """

    def __init__(self, home: Path, folder: Path, say: Callable[[str], None]) -> None:
        self._home = home
        self._folder = folder
        self._say = say
        self._asked = deque[str]()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def asked(self) -> frozenset[str]:
        """The studies whose reports aren't written yet."""
        return frozenset(self._asked)

    def ask(self, study: str) -> None:
        """Ask for the report of a study."""
        self._asked.append(study)

    def turn(self) -> int:
        """Start the next report if none is being written; return how many are left."""
        if self._process is not None and self._process.poll() is not None:
            self._announce(self._asked.popleft(), self._process.returncode)
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
        """Kill the job that runs; `paribus report` can write its report at any time."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _announce(self, study: str, status: int) -> None:
        if status == 0:
            self._say(f"{study}: report in {self._folder / study}")
            return
        output = (self._home / LOG).read_text(errors="replace").strip().splitlines()
        self._say(f"{study}: no report: {output[-1] if output else f'exit status {status}'}")
