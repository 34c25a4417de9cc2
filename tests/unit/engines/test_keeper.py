"""A keeper ends all that a program leaves behind: when it ends, when the parent ends, and when it is asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.engines.process import Identity, end_tree, kept

PATIENCE_S = 60
LEAVES = """
import os, signal, subprocess, sys, time
folder, ends = sys.argv[1:]
child = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(600)"
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", child, folder], env={}, start_new_session=True)
        os._exit(0)
while len(os.listdir(folder)) < 2:
    time.sleep(0.01)
print("ready", flush=True)
if ends == "sleeps":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
elif ends == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(ends))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the processes that are left behind note their ids."""
    (tmp_path / "started").mkdir()
    return tmp_path / "started"


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def left(folder: Path) -> list[str]:
    """Return which of the processes live, as process ids."""
    return [path.name for path in folder.iterdir() if Identity.of(int(path.name)).start]


def started(folder: Path, ends: str) -> subprocess.Popen[str]:
    """Start the program below a keeper, and wait until it has left two processes behind."""
    command = kept(sys.executable, "-c", LEAVES, str(folder), ends)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("ends", "status"), [("0", 0), ("3", 3), ("killed", -signal.SIGKILL)])
def test_nothing_outlives_the_program(place: Path, ends: str, status: int) -> None:
    """The exit status is the program's, also after a signal."""
    with started(place, ends) as process:
        assert process.wait(PATIENCE_S) == status
    assert len(list(place.iterdir())) == 2
    assert not left(place)


@pytest.mark.parametrize("how", ["asked", "killed", "killed while it is stopped"])
def test_nothing_outlives_an_end_from_outside(place: Path, how: str) -> None:
    """SIGTERM to the keeper, which the program doesn't get; and a kill of the whole tree."""
    with started(place, "sleeps") as process:
        keeper = Identity.of(process.pid)
        if how == "asked":
            process.terminate()
        else:
            if how != "killed":
                os.kill(process.pid, signal.SIGSTOP)
            assert end_tree(keeper)
            assert not left(place)
        process.wait(PATIENCE_S)
    assert not left(place)
    assert end_tree(keeper)


def test_nothing_outlives_the_parent(place: Path) -> None:
    """Even if that is killed, so that it can't end anything itself."""
    program = (
        "import subprocess, sys, time; from paribus.engines.process import kept; "
        f"subprocess.Popen(kept(sys.executable, '-c', {LEAVES!r}, {str(place)!r}, 'sleeps')); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
    until(lambda: not left(place))
