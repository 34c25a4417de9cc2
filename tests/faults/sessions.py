"""What `paribus run` does, without its command line and MLflow, in a process that can be killed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paribus.engines.base import Engine, EngineSettings
from paribus.engines.local import LocalEngine
from paribus.rpc import handler as desk
from paribus.scheduler import active_attempts, serve
from paribus.scheduler.serve import Settings, run_study
from paribus.study.plan import Plan


class Quiet:
    """A display that shows nothing."""

    def say(self, line: str) -> None:
        """Say nothing."""

    def show(self, view: object) -> None:
        """Show nothing."""


class HastyEngine(LocalEngine):
    """A local engine with our warm server."""

    def _popen(self, command: list[str], environment: Mapping[str, str], *fds: int) -> subprocess.Popen[bytes]:
        return super()._popen(
            [part.replace("paribus.engines.fork_server", "faults.fork_server") for part in command], environment, *fds
        )


class FarEngine(LocalEngine):
    """A local engine whose jobs cannot be killed, as if they ran on a machine that is cut off."""

    def cancel(self, name: str, grace: float) -> None:
        """Send nothing: nobody hears."""


def work(
    home: Path,
    plan: Plan,
    slots: int | None,
    prepare: Callable[[], None] = lambda: None,
    engine: Callable[[EngineSettings], Engine] = LocalEngine,
) -> None:
    """Bring a study to its end.

    Args:
        home: home folder.
        plan: the study.
        slots: runs at a time.
        prepare: changes this process before.
        engine: where the runs train.
    """
    serve.mlflow_is_installed = lambda: False  # type: ignore[attr-defined]
    serve.load_engine = lambda _: engine  # type: ignore[attr-defined]
    tempfile.tempdir = str(home.parent)  # what a killed scheduler leaves behind goes with the world
    prepare()
    run_study(plan, Settings(home=home, slots=slots), Quiet())


def far_away(notes: Path) -> None:
    """Let no one kill the attempts of this process's scheduler, and note every request of theirs with its answer."""
    serve.load_engine = lambda _: FarEngine  # type: ignore[attr-defined]
    active_attempts._kill_processes = lambda _: True  # type: ignore[attr-defined]
    answer_to = desk.answer_to

    def noting(store: Any, request: dict[str, Any]) -> dict[str, Any]:
        begun = time.time()
        answer = answer_to(store, request)
        with notes.open("a") as file:
            line = {"at": begun, "do": request["do"], "run": request["run"], "token": request["token"]}
            file.write(json.dumps({**line, "ok": answer["ok"]}) + "\n")
        return answer

    desk.answer_to = noting  # type: ignore[attr-defined]
