"""The process that copies to MLflow, as the scheduler keeps it: what it says at the end of a study."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from paribus.mlflow_sync import process as module
from paribus.mlflow_sync.process import SyncProcess
from paribus.mlflow_sync.sync import STATUS

PROGRAM = """
import json, os, pathlib, signal, sys
home = pathlib.Path(sys.argv[1])
starts = len(list(home.glob("start*")))
(home / f"start{starts}").touch()
if starts < int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
(home / "STATUS").write_text(json.dumps({"trouble": "", "refused": []}))
""".replace("STATUS", STATUS)


@pytest.mark.parametrize(("kills", "said"), [(0, ""), (2, ""), (9, "not everything is copied yet")])
def test_a_process_that_is_killed_at_the_end_has_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, said: str
) -> None:
    """Twice; after that the user reads that something is left, which the same command copies."""
    real = subprocess.Popen

    def started(command: list[str], **options: object) -> object:
        return real([sys.executable, "-c", PROGRAM, command[-1], str(kills)], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(module.subprocess, "Popen", started)
    made = SyncProcess(tmp_path)
    made.ensure()
    found = made.drain(lambda: time.sleep(0.01))
    made.close()
    assert found.startswith(said) if said else found == ""
    assert len(list(tmp_path.glob("start*"))) == min(kills, 2) + 1


def test_a_process_that_cannot_be_started_is_tried_again_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without room for another process ends no training; nor do thousands of deaths."""
    now, starts = [0.0], list[int]()

    def started(*_: object, **__: object) -> object:
        starts.append(1)
        if len(starts) % 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return SimpleNamespace(stdin=None, poll=lambda: 1, wait=lambda: 1)

    monkeypatch.setattr(module.subprocess, "Popen", started)
    made = SyncProcess(tmp_path, clock=lambda: now[0])
    for _ in range(4000):
        made.ensure()
        now[0] += 61.0
    assert len(starts) > 2000
