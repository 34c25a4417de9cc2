"""Real clusters of several nodes on this machine, for as long as they are needed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

SLURM = Path(__file__).with_name("slurm_cluster.py")
RAY = Path(__file__).with_name("ray_cluster.py")
MISSING = 3
"""Exit status of both scripts where what they need is not installed."""

_END_S = 60.0


class NotInstalled(Exception):
    """There can be no such cluster here; the message says what is missing."""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Path]:
    """Yield the configuration of a Slurm cluster of two nodes that lies in ``folder``, which is made.

    Raises:
        NotInstalled: Slurm is missing.
    """
    up = subprocess.run([sys.executable, SLURM, "up", folder], capture_output=True, text=True, check=False)
    if up.returncode == MISSING:
        raise NotInstalled(f"{up.stdout.strip()} (`make test-clusters` installs it)")
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        yield folder / "slurm.conf"
    finally:
        subprocess.run([sys.executable, SLURM, "down", folder], check=True)


class RayCluster:
    """A Ray cluster of three nodes, from its construction on.

    Attributes:
        address: ``host:port`` of its head.
        environment: what lets somebody join it.

    Raises:
        NotInstalled: Ray is missing.
    """

    def __init__(self) -> None:
        token = secrets.token_hex(32)
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
        folder = Path(tempfile.mkdtemp(prefix="paribus-ray-"))
        file, log = folder / "address", folder / "log"
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, RAY, file],
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        try:
            while not file.exists() and self._process.poll() is None:
                time.sleep(0.1)
            if self._process.poll() == MISSING:
                raise NotInstalled(f"{self._process.communicate()[0].strip()} (`make test-clusters` installs it)")
            assert file.exists(), log.read_text()
            self.address = file.read_text()
        finally:
            shutil.rmtree(folder)

    def does(self, order: str) -> bool:
        """Let the cluster do something to itself: ``raylet``, ``head``, ``hang`` or ``go on``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip() == "done"

    def stop(self) -> None:
        """End all of it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
