"""A run that hangs: it is found, its processes say where they are, and it ends as hung, with the phase and the step."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from paribus.attempt.runner_process import ForkedRunner
from paribus.attempt.supervisor import Pace, Supervisor
from paribus.attempt.watchdog import STACKS, Watchdog
from paribus.contract import PHASES, Evaluate, Job, Timeouts
from paribus.failures import HUNG
from paribus.recipe.factors import Schedule
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.phases import HEAD, Phases, read_signs, stacks

QUICK = Pace(tick_s=0.02, grace_s=0.5, retry_s=0.02)

RUNNER = '''
import ctypes, json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from paribus.contract import RunnerBase
from paribus.run_folder.phases import Phases

class Hanging(RunnerBase):
    name = "hanging"

    def run(self, folder):
        with Phases.open(folder, 0) as phases:
            phases.enter("reward", 7)
            HOW

def sleeps_for_ever(phases):
    while True:
        time.sleep(1000)

def holds_the_interpreter(phases):
    """Wait in C for a lock that is taken, without giving Python's own lock back."""
    lock = ctypes.create_string_buffer(256)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_init(lock, None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)

def is_stopped(phases):
    os.kill(os.getpid(), signal.SIGSTOP)
    sleeps_for_ever(phases)

def leaves_a_child(phases):
    phases.enter("update", 7)  # which has time
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (Path(os.environ["CHILD"])).write_text(str(child.pid))
    phases.enter("reward", 7)
    sleeps_for_ever(phases)

def is_slow(phases):
    until = time.monotonic() + 12
    while time.monotonic() < until:
        time.sleep(0.05)
        phases.progress()
    raise ValueError("slow, and not hung")
'''


class Server:
    """Answers requests, and remembers them."""

    def __init__(self):
        self.requests = []

    def __call__(self, request):
        """Answer a request."""
        self.requests.append(request)
        return {"ok": True, "lease_s": 60.0, "cancel": False}


@pytest.fixture
def supervise(tmp_path, monkeypatch):
    """Return a function that supervises a run that hangs in some way, and returns its folder and the report."""

    def hanging(how, limit=2.0):
        site = tmp_path / "hanging_site"
        site.mkdir()
        (site / "hanging_runner.py").write_text(RUNNER.replace("HOW", f"{how}(phases)") + "\nRUNNER = Hanging()\n")
        about = site / "hanging-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1\n")
        (about / "entry_points.txt").write_text("[paribus.runners]\nhanging = hanging_runner:RUNNER\n")
        monkeypatch.syspath_prepend(str(site))
        folder = RunFolder(tmp_path / "runs" / "r" / "a1")
        folder.path.mkdir(parents=True)
        job = Job(
            run="f" * 64, study="s", arm="arm", runner="hanging", seed=0, token=1,
            recipe=Recipe(schedule=Schedule(steps=6)), evaluate=Evaluate(every=3, problems=10, samples=2),
            cache=str(tmp_path / "cache"), timeouts=Timeouts(reward=limit),
        )  # fmt: skip
        folder.job.write_text(job.model_dump_json())
        server = Server()
        assert Supervisor(folder, 7, server, pace=QUICK).supervise(ForkedRunner) == 0
        return folder, server.requests[-1]

    return hanging


def test_a_reward_that_never_returns_ends_the_run_with_its_stack(supervise):
    """The report names phase, step and limit; the stacks name the function; it is a failure of the program."""
    folder, report = supervise("sleeps_for_ever")
    assert (report["do"], report["kind"], report["signature"]) == ("fail", "program", f"{HUNG} in reward")
    assert report["reason"].startswith("hung: the run shows no progress in reward of step 7 for ")
    assert "the limit is 2 s (`timeouts.reward`)" in report["reason"]
    text = (folder.path / STACKS).read_text()
    assert str(folder.path / STACKS) in report["reason"]
    assert "in sleeps_for_ever" in text
    assert read_json(folder.outcome)["reason"] == report["reason"]


def test_a_thread_that_holds_the_interpreter_in_c_is_found_all_the_same(supervise):
    """The stack is written by a handler that needs no lock of Python's."""
    folder, report = supervise("holds_the_interpreter")
    assert report["signature"] == "hung in reward"
    assert "in holds_the_interpreter" in (folder.path / STACKS).read_text()


def test_a_stopped_process_is_a_failure_from_outside(supervise):
    """It is continued so that it can write its stack, and killed; the run is tried again as after a lost machine."""
    folder, report = supervise("is_stopped")
    assert (report["kind"], report["signature"]) == ("infrastructure", "")
    assert "it was stopped by a signal" in report["reason"]
    assert "in is_stopped" in (folder.path / STACKS).read_text()


def test_what_a_hung_run_has_started_is_ended_too(supervise, tmp_path, monkeypatch):
    """A child in a session of its own is adopted and killed before the end is reported."""
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    supervise("leaves_a_child")
    pid = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_a_slow_run_is_not_hung(supervise):
    """Signs of progress within a phase count: it takes more than twice its limit, and ends by its own error."""
    folder, report = supervise("is_slow", limit=5.0)
    assert report["reason"] == "ValueError: slow, and not hung"
    assert not (folder.path / STACKS).exists()
    assert not (folder.path / "phases").exists()  # nothing is left of it


def sign(folder, rank, **values):
    """Write what a process is doing, as another process would."""
    found = {"phase": "update", "step": 3, "pid": os.getpid(), "count": 1, "waiting": False, **values}
    path = folder / "phases" / str(rank)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(json.dumps(found).encode().ljust(HEAD - 1) + b"\n")


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self):
        """Return the time."""
        return self.now


def watched(folder, seconds, clock, dog):
    """Return the first hang that is found in so many seconds, looking once a second."""
    for _ in range(seconds):
        clock.now += 1.0
        if (hang := dog.look()) is not None:
            return hang
    return None


def test_the_one_that_others_wait_for_is_named(tmp_path):
    """A process that waits is no culprit while another one is silent."""
    clock = Clock()
    dog = Watchdog(tmp_path, Timeouts(update=30.0), clock)
    sign(tmp_path, 0, waiting=True)
    sign(tmp_path, 1)
    assert watched(tmp_path, 29, clock, dog) is None
    hang = watched(tmp_path, 5, clock, dog)
    assert hang.reason.startswith("hung: process 1 of 2 shows no progress in update of step 3 for ")
    assert hang.reason.endswith("process 0 of 2 waits for it")
    assert not hang.outside


def test_processes_that_all_wait_hang_too(tmp_path):
    """Then none of them is the one to blame."""
    clock = Clock()
    dog = Watchdog(tmp_path, Timeouts(update=30.0), clock)
    sign(tmp_path, 0, waiting=True)
    sign(tmp_path, 1, waiting=True)
    assert watched(tmp_path, 40, clock, dog).reason.endswith("all its processes wait for each other")


def test_a_waiting_process_is_silent_as_long_as_another_works(tmp_path):
    """One process that generates for an hour keeps the others waiting, and none hangs."""
    clock = Clock()
    dog = Watchdog(tmp_path, Timeouts(update=30.0), clock)
    sign(tmp_path, 0, waiting=True)
    for count in range(100):
        sign(tmp_path, 1, count=count)
        assert watched(tmp_path, 10, clock, dog) is None


def test_time_that_nobody_looked_does_not_count(tmp_path):
    """A machine that slept for a day wakes with a run that is as alive as before."""
    clock = Clock()
    dog = Watchdog(tmp_path, Timeouts(update=30.0), clock)
    sign(tmp_path, 0)
    assert watched(tmp_path, 5, clock, dog) is None
    clock.now += 86400.0
    assert dog.look() is None
    assert watched(tmp_path, 40, clock, dog) is not None


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff" * HEAD, b"[1]".ljust(HEAD), b'{"phase": "lunch"}'.ljust(HEAD)])
def test_a_damaged_sign_is_no_sign(tmp_path, damage):
    """Any bytes may be there: they are not read, and nothing is hung for them."""
    (tmp_path / "phases").mkdir()
    (tmp_path / "phases" / "0").write_bytes(damage)
    (tmp_path / "phases" / "notes").write_bytes(b"x")
    assert read_signs(tmp_path) == {}
    clock = Clock()
    assert watched(tmp_path, 100, clock, Watchdog(tmp_path, Timeouts(start=1.0), clock)) is None


def test_phases_follow_each_other_in_the_file(tmp_path):
    """A phase within another one gives it back; the file is one line until stacks are asked for."""
    with Phases.open(tmp_path, 3) as phases:
        assert read_signs(tmp_path)[3].phase == "start"
        phases.enter("rollout", 5)
        with phases.within("reward"):
            assert (read_signs(tmp_path)[3].phase, read_signs(tmp_path)[3].step) == ("reward", 5)
        found = read_signs(tmp_path)[3]
        assert (found.phase, found.step, found.pid, found.waiting) == ("rollout", 5, os.getpid(), False)
        assert (tmp_path / "phases" / "3").stat().st_size == HEAD
        os.kill(os.getpid(), signal.SIGUSR2)
        assert "test_phases_follow_each_other_in_the_file" in stacks(tmp_path, 3)
        assert read_signs(tmp_path)[3] == found
    assert not (tmp_path / "phases").exists()


def test_a_sign_costs_next_to_nothing(tmp_path):
    """Ten thousand signs of progress write a few times, because a forward pass of a tiny model takes a millisecond."""
    with Phases.open(tmp_path, 0) as phases:
        first, start = read_signs(tmp_path)[0].count, time.monotonic()
        for _ in range(10_000):
            phases.progress()
        passed = time.monotonic() - start
        assert read_signs(tmp_path)[0].count - first <= 2 + passed / 0.4


def test_every_phase_has_a_limit():
    """A phase without one would be watched by nobody."""
    assert set(PHASES) == set(Timeouts.model_fields)
    assert all(Timeouts().of(phase) > 600 for phase in PHASES)


def test_several_threads_are_in_the_stacks(tmp_path):
    """All threads are written, as the one that holds a lock is seldom the one that waits."""
    begun, done = threading.Event(), threading.Event()

    def holds():
        begun.set()
        done.wait()

    with Phases.open(tmp_path, 0):
        thread = threading.Thread(target=holds)
        thread.start()
        begun.wait()
        os.kill(os.getpid(), signal.SIGUSR2)
        written = stacks(tmp_path, 0)
        assert "in holds" in written
        assert "in test_several_threads_are_in_the_stacks" in written
        done.set()
        thread.join()
