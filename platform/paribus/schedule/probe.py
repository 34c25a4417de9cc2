"""Asks something that may hang: ``python -m paribus.schedule.probe mlflow HOME`` or ``... engine NAME FOLDER``.

In a process of its own, so that whatever it starts or waits for can be ended. It prints one JSON line: ``{"value": v}``
or ``{"error": text}``.
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

from paribus.engines.base import EngineSettings, load_engine
from paribus.engines.process import signal_group
from paribus.track.mlflow import MlflowMirror, tracking_uri


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a probe found: a value, or in one sentence what was wrong."""

    value: Any = None
    error: str = ""


class Probe:
    """A question that has been asked."""

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
        """Wait for the answer, for a limited time; then nothing that the question started is left."""
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
            return Answer(error=f"the question ended with exit status {self._process.returncode}")


def main(arguments: Sequence[str]) -> int:
    """Answer one question."""
    what, subject, *rest = arguments
    try:
        with redirect_stdout(sys.stderr):
            value = mlflow_latency(Path(subject)) if what == "mlflow" else engine_slots(subject, Path(rest[0]))
        print(json.dumps({"value": value}))  # noqa: T201 - this is the answer
    except Exception as error:  # whatever a foreign library raises is the answer
        lines = str(error).splitlines() or [""]
        print(json.dumps({"error": f"{type(error).__name__}: {lines[0]}"}))  # noqa: T201
    return 0


def mlflow_latency(home: Path) -> float:
    """Return the seconds that one write and one read take in MLflow."""
    return MlflowMirror(tracking_uri(home), home).latency()


def engine_slots(name: str, folder: Path) -> str:
    """Return what an engine is and how many runs it could have at a time, after it has been reached.

    Nothing is started: the engine is asked for a job that nobody has submitted.
    """
    engine = load_engine(name)(EngineSettings(runner="native", folder=folder))
    try:
        engine.find("paribus-doctor")
        count = engine.slots()
        return f"{count} run{'' if count == 1 else 's'} at a time{f', {engine.about}' if engine.about else ''}"
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
