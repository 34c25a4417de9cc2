"""A check with a time limit: ``python -m paribus.audit.timed_check mlflow HOME`` or ``... engine NAME FOLDER``.

It runs in a process of its own, so that it can be killed with everything that it started. It prints one JSON line:
``{"value": v}`` or ``{"error": text}``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.contract import Resources
from paribus.engines.base import EngineSettings, load_engine
from paribus.engines.process import signal_group
from paribus.masking import describe
from paribus.mlflow_sync.client import MlflowWriter, tracking_uri
from paribus.text import plural


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The outcome of a check: a value, or an error in one sentence."""

    value: Any = None
    error: str = ""


class TimedCheck:
    """A check that runs in the background from its construction on."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", __name__, *arguments]
        quiet = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def answer(self, timeout_s: float) -> Answer:
        """Wait up to ``timeout_s`` seconds for the answer; kill the process and everything that it started."""
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Answer(error=f"no answer in {timeout_s:.0f} s")
        finally:
            signal_group(self._process.pid, signal.SIGKILL)
            self._process.communicate()
        try:
            return Answer(**json.loads(output.splitlines()[-1]))
        except (ValueError, IndexError, TypeError):
            return Answer(error=f"the check ended with exit status {self._process.returncode}")


def main(arguments: Sequence[str]) -> int:
    """Run one check."""
    what, subject, *rest = arguments
    try:
        with redirect_stdout(sys.stderr):
            value: Any = mlflow_state(Path(subject)) if what == "mlflow" else engine_slots(subject, Path(rest[0]))
        print(json.dumps({"value": value}))  # noqa: T201 - the answer
    except Exception as error:  # any exception of a library is an answer
        print(json.dumps({"error": describe(error)}))  # noqa: T201
    return 0


def mlflow_state(home: Path) -> dict[str, Any]:
    """Return the seconds that one write and one read take in MLflow, and the runs with doubled points."""
    writer = MlflowWriter(tracking_uri(home), home)
    return {"seconds": writer.latency(), "doubled": writer.doubled()}


def engine_slots(name: str, folder: Path) -> str:
    """Contact an engine; return how many runs it can run at a time, and where.

    Nothing is started: the engine looks for a job that does not exist.
    """
    engine = load_engine(name)(EngineSettings(runner="native", folder=folder))
    try:
        engine.find("paribus-doctor")
        count = engine.slots()
        about = engine.about(Resources())
        return f"{plural(count, 'run')} at a time{f', {about}' if about else ''}"
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
