"""What is started on a machine that a cluster chose, below a keeper that leads its group; no cluster is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.engines.launch import Order, read_number, run_order, signal_order
from paribus.engines.process import Identity
from paribus.testing.engine_suite import gone, until


@pytest.fixture
def order(tmp_path: Path) -> Callable[..., Order]:
    """Make the order of a job of the conformance suite."""

    def make(*arguments: str) -> Order:
        return Order(
            module="paribus.testing.engine_suite",
            arguments=arguments,
            environment=dict(os.environ),
            cwd=str(tmp_path),
            log=str(tmp_path / "log"),
            note=str(tmp_path / "note"),
        )

    return make


def written(file: Path) -> int:
    """Wait until there is a process id in a file, and return it."""
    until(lambda: file.exists() and file.read_text() != "")
    return int(file.read_text())


def test_signals_to_the_group_are_for_the_program(order: Callable[..., Order], tmp_path: Path) -> None:
    """The keeper outlives SIGTERM and SIGUSR1, which the program answers, and ends what the program has left."""
    found: list[Identity | None] = []
    waiting = order("hide", str(tmp_path / "pid"), str(tmp_path / "hidden"))
    thread = threading.Thread(target=run_order, args=(waiting, {}, found.append))
    thread.start()
    written(tmp_path / "pid")
    keeper = found[0]
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGUSR1)
    os.kill(keeper.pid, signal.SIGTERM)
    thread.join(0.5)
    assert keeper.alive()
    signal_order(keeper, signal.SIGTERM)
    thread.join(60)
    assert read_number(tmp_path / "note") == 7
    assert gone(int((tmp_path / "hidden").read_text()))


@pytest.mark.parametrize("kind", ["deaf", "fork", "hide"])
def test_a_kill_ends_all_of_an_order(order: Callable[..., Order], tmp_path: Path, kind: str) -> None:
    """What has left session, parent and environment, too; the status is in the note only afterwards."""
    found: list[Identity | None] = []
    waiting = order(kind, str(tmp_path / "pid"), *([] if kind == "deaf" else [str(tmp_path / "other")]))
    thread = threading.Thread(target=run_order, args=(waiting, {}, found.append))
    thread.start()
    pid = written(tmp_path / "pid")
    assert found[0] is not None
    signal_order(found[0], signal.SIGKILL)
    thread.join(60)
    assert read_number(tmp_path / "note") == -signal.SIGKILL
    assert gone(pid)
    assert kind == "deaf" or gone(int((tmp_path / "other").read_text()))


def test_an_order_ends_with_the_process_that_runs_it(order: Callable[..., Order], tmp_path: Path) -> None:
    """Ray kills its own processes by force; what is hidden from it ends, too."""
    waiting = order("hide", str(tmp_path / "pid"), str(tmp_path / "hidden"))
    code = "import sys; from paribus.engines.launch import *; run_order(eval(sys.argv[1]), {}, lambda _: None)"
    with subprocess.Popen([sys.executable, "-c", code, repr(waiting)]) as runs:
        pid, hidden = written(tmp_path / "pid"), written(tmp_path / "hidden")
        runs.kill()
    until(lambda: gone(pid) and gone(hidden))


def test_a_program_that_is_not_there_is_told_and_noted(
    order: Callable[..., Order], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says what is missing, and nothing gets a signal."""
    found: list[Identity | None] = []
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    run_order(order("exit", "0"), {}, found.append)
    assert found == [None]
    assert read_number(tmp_path / "note") == 127
    assert "nothing" in (tmp_path / "log").read_text()
