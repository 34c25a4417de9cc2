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

from paribus.engines import process as processes
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
elif ends.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, ends))
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


@pytest.mark.parametrize(("ends", "status"), [("0", 0), ("3", 3), ("SIGKILL", -9), ("SIGTERM", -15)])
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


AT_A_LINE = """
import os, signal, sys
from paribus.engines import keeper

count = int(sys.argv[1])

def asked(frame, event, argument):
    global count
    if "status" in frame.f_locals and event == "line":
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGTERM)
    return asked

sys.settrace(lambda frame, event, argument: asked if frame.f_code.co_name == "keep" else None)
status = keeper.keep(os.getppid(), sys.argv[2:])
sys.settrace(None)
sys.exit(status)
"""


@pytest.mark.parametrize("count", range(1, 7))
def test_nothing_outlives_a_keeper_that_is_asked_while_it_ends(place: Path, count: int) -> None:
    """SIGTERM at any line from the end of the program on, also while the keeper ends what is left."""
    command = [sys.executable, "-c", AT_A_LINE, str(count), sys.executable, "-c", LEAVES, str(place), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.wait(PATIENCE_S) in (0, 128 + signal.SIGTERM)
        assert process.stderr is not None
        alive = left(place)
        for pid in alive:
            os.kill(int(pid), signal.SIGKILL)
        assert (alive, len(list(place.iterdir())), process.stderr.read()) == ([], 2, "")


def test_the_program_can_be_asked_to_end() -> None:
    """What the keeper does not want to be interrupted by is not held back from the program."""
    held = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))"
    done = subprocess.run(kept(sys.executable, "-c", held), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_tree_that_does_not_end_in_time_loses_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a disk cannot be killed; the root, which could start more, is."""
    monkeypatch.setattr(processes, "_descendants", lambda root: {2**22 + 1})
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            assert not end_tree(Identity.of(process.pid), wait_s=0.05)
            assert process.wait(10) == -signal.SIGKILL
        finally:
            process.kill()
