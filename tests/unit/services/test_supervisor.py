"""Services that die, hang and leave processes: what the supervisor does, in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.site import until

PROGRAM = """
import sys, time
from pathlib import Path
from paribus.errors import ServiceError
from paribus.services import supervisor
from paribus.services.supervisor import Service, Supervisor

folder, ends = Path(sys.argv[1]), sys.argv[2]
supervisor.FIRST_PAUSE_S = 0.1
supervisor._STOP_S = 0.5

SERVICE = '''
import os, signal, subprocess, sys, time
name, folder, ends = sys.argv[1:]
with open(f"{folder}/{name}.starts", "a") as starts:
    starts.write(f"{os.getpid()}\\\\n")
print("hello", flush=True)
if ends == "long line":
    print("x" * 40000, flush=True)
    print("after it", flush=True)
if ends == "at once":
    sys.exit("out of order")
if ends == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", folder])  # in its group
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", folder], start_new_session=True)
open(f"{folder}/{name}.ready", "w").close()
time.sleep(600)
'''

def check(name):
    if not (folder / f"{name}.ready").exists():
        raise ServiceError("not yet")

services = [
    Service(
        name=name, command=[sys.executable, "-c", SERVICE, name, str(folder), ends], environment={},
        address=f"address of {name}", check=lambda name=name: check(name), last=name == "first",
        prints=name == "second",
    )
    for name in ("first", "second")
]
def say(line):
    with open(folder / "said", "a") as said:
        said.write(line + "\\n")
Supervisor(services, folder / "logs", say).run(lambda: say("all work"))
say("over")
"""


@pytest.fixture
def started(tmp_path):
    """A function that starts a supervisor of two services; what is left at the end is killed."""
    processes = []

    def start(ends="never"):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), ends], start_new_session=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
    for pid in left(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def left(folder):
    """Return the processes that name the folder, without this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            state = (entry.parent / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and str(folder).encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
    return found


def said(folder):
    """Return the lines of the supervisor."""
    with suppress(FileNotFoundError):
        return (folder / "said").read_text().splitlines()
    return []


def starts(folder, name):
    """Return the process ids of the starts of a service."""
    with suppress(FileNotFoundError):
        return [int(line) for line in (folder / f"{name}.starts").read_text().split()]
    return []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_services_and_all_that_they_left(started, tmp_path, number):
    """Also what has moved to another session."""
    process = started()
    until(lambda: "all work" in said(tmp_path))
    assert len(left(tmp_path)) == 1 + 2 * 3
    process.send_signal(number)
    assert process.wait(60) == 0
    assert left(tmp_path) == []
    assert said(tmp_path)[-1] == "over"
    assert "second: hello" in said(tmp_path)
    assert "first: hello" not in said(tmp_path)


def test_a_killed_service_is_started_again_and_its_group_is_ended(started, tmp_path):
    """The other one goes on undisturbed."""
    started()
    until(lambda: "all work" in said(tmp_path))
    before = set(left(tmp_path))
    (victim,) = starts(tmp_path, "second")
    (tmp_path / "second.ready").unlink()
    group = [p for p in before if p != victim and os.getpgid(p) == victim]
    assert len(group) == 1
    os.kill(victim, signal.SIGKILL)
    until(lambda: (tmp_path / "second.ready").exists() and len(starts(tmp_path, "second")) == 2)
    until(lambda: [line for line in said(tmp_path) if line.startswith("second: works")][1:])
    assert not set(group) & set(left(tmp_path))
    assert len(starts(tmp_path, "first")) == 1
    (line,) = [line for line in said(tmp_path) if "killed" in line]
    assert line.startswith("second: was killed by SIGKILL: hello. It starts again in 0 s; its log is ")
    assert (tmp_path / "logs" / "second.log.1").exists()


def test_a_very_long_line_does_not_end_the_output(started, tmp_path):
    """A tensor that is printed, or a progress bar without line breaks."""
    started("long line")
    until(lambda: "second: after it" in said(tmp_path))
    assert "second: hello" in said(tmp_path)


def test_the_pauses_between_restarts_grow(started, tmp_path):
    """A service that can't start takes no core, and what it last printed is shown."""
    process = started("at once")
    until(lambda: len(starts(tmp_path, "first")) >= 4)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    lines = [line for line in said(tmp_path) if line.startswith("first: ended with exit status 1: out of order")]
    assert len(lines) >= 3
    assert "all work" not in said(tmp_path)
    assert left(tmp_path) == []


def test_services_that_do_not_hear_are_killed(started, tmp_path):
    """After some seconds, without another signal."""
    process = started("deaf")
    until(lambda: "all work" in said(tmp_path))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert left(tmp_path) == []


def test_the_services_stop_if_the_supervisor_is_killed(started, tmp_path):
    """They get SIGTERM from the kernel, and so a scheduler its time for checkpoints."""
    process = started()
    until(lambda: "all work" in said(tmp_path))
    services = starts(tmp_path, "first") + starts(tmp_path, "second")
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while set(services) & set(left(tmp_path)):
        assert time.monotonic() < end
        time.sleep(0.05)
