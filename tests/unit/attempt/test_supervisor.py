"""The supervisor: whatever its runner does, the end is told truthfully, and a lost lease ends the runner."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from paribus.attempt.runner_process import ForkedRunner
from paribus.attempt.supervisor import EXIT_LOST, Pace, Supervisor
from paribus.contract import Evaluate, Job
from paribus.engines.process import Identity
from paribus.failures import failure_in
from paribus.recipe.factors import Schedule
from paribus.recipe.recipe import Recipe
from paribus.rpc import client
from paribus.rpc.client import PATIENCE_S
from paribus.run_folder.folder import RunFolder, read_json

STEPS = 6
QUICK = Pace(tick_s=0.01, grace_s=0.5, retry_s=0.02)
PATIENT = Pace(tick_s=0.01, grace_s=600.0, retry_s=0.02)
SOON = 1 / 6000
"""A share of a long lease that is over at once."""


class FakeServer:
    """Answers requests, and remembers them."""

    def __init__(self, lease_s=60.0):
        self.lease_s = lease_s
        self.requests = []
        self.answers = {}

    def __call__(self, request):
        """Answer a request; an answer may be an exception."""
        self.requests.append(request)
        answer = self.answers.get(request["do"], {"ok": True, "lease_s": self.lease_s, "cancel": False})
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def last(self):
        """The report of the end."""
        return self.requests[-1]


@pytest.fixture
def server():
    """An server."""
    return FakeServer()


@pytest.fixture
def folder(tmp_path):
    """An attempt folder with a job for the runner `fake`."""
    made = RunFolder(tmp_path / "runs" / "r" / "a1")
    made.path.mkdir(parents=True)
    job = Job(
        run="f" * 64,
        study="s",
        arm="arm",
        runner="fake",
        seed=0,
        token=1,
        recipe=Recipe(schedule=Schedule(steps=STEPS)),
        evaluate=Evaluate(every=3, problems=10, samples=2),
        cache=str(tmp_path / "cache"),
        stop_on=("nan",),
    )
    made.job.write_text(job.model_dump_json())
    return made


@pytest.fixture
def fake(monkeypatch):
    """Order how the fake runner behaves."""

    def order(do=None, at=3, step_s=0.01):
        rules = [{"do": do, "at": at}] if do else []
        monkeypatch.setenv("PARIBUS_FAKE", json.dumps({"step_s": step_s, "rules": rules}))

    order()
    return order


def lengthen(folder):
    """Give the run so many steps that a test has minutes to stop it."""
    job = json.loads(folder.job.read_text())
    job["recipe"]["schedule"]["steps"] = 6000
    folder.job.write_text(json.dumps(job))


def supervise(folder, server, **keywords):
    """Supervise an attempt to its end."""
    return Supervisor(folder, 7, server, **{"pace": QUICK, **keywords}).supervise(ForkedRunner)


def test_a_good_run_is_finished_with_its_result(folder, server, fake):
    """Start, the result as the runner wrote it, and the same request in outcome.json."""
    assert supervise(folder, server) == 0
    assert [r["do"] for r in server.requests] == ["start", "finish"]
    assert server.last["payload"] == read_json(folder.result)
    assert (server.last["run"], server.last["token"], server.last["stopped_early"]) == (7, 1, False)
    assert read_json(folder.outcome) == server.last
    assert {line.step for line in folder.read_metrics()} == set(range(STEPS + 1))


def test_the_attempt_file_names_the_processes(folder, server, fake):
    """A scheduler that comes later can tell the supervisor and the runner from other processes."""
    supervise(folder, server)
    here = read_json(folder.attempt)
    assert here["token"] == 1
    assert Identity.read(here["supervisor"]) == Identity.of(os.getpid())
    assert not Identity.read(here["runner"]).alive()
    page = (Path(__file__).parents[3] / "docs" / "run_folder.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| `attempt.json` | supervisor |"))
    assert set(re.findall(r"`(\w+)`", row)) == {*here, *here["supervisor"]}


def test_a_scheduler_that_cannot_be_reached_is_told_in_the_folder(folder, server, fake):
    """Nothing is started; the reason lies where the scheduler will find it, and the machine is named."""
    now = [0.0]

    def refuse():
        now[0] += 0.04
        return ConnectionRefusedError("Connection refused")

    server.answers["start"] = refuse
    assert supervise(folder, server, pace=Pace(retry_s=0.01, patience_s=0.1), clock=lambda: now[0]) == 1
    assert {r["do"] for r in server.requests} == {"start"}
    assert len(server.requests) > 1
    outcome = read_json(folder.outcome)
    assert (outcome["do"], outcome["kind"], outcome["token"]) == ("fail", "infrastructure", 1)
    assert outcome["reason"] == f"{socket.gethostname()} could not reach the scheduler: Connection refused"
    assert not folder.metrics.exists()


def test_a_crash_is_a_failure_of_the_program_with_a_signature(folder, server, fake):
    """The message goes to people; in the signature numbers do not count."""
    fake("crash")
    assert supervise(folder, server) == 0
    assert (server.last["do"], server.last["kind"]) == ("fail", "program")
    assert server.last["reason"].startswith("ValueError: made to fail in process ")
    assert server.last["signature"] == "ValueError: made to fail in process # (fake_runner.py:_misbehave)"


def test_what_no_database_takes_is_left_out_of_a_failure(tmp_path):
    """A program may print anything: NUL is no text of PostgreSQL, and what is no UTF-8 is none at all."""
    log = tmp_path / "stdout.log"
    log.write_bytes(b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: \x00\xff\n')
    failure = failure_in(log, 1)
    assert failure.reason == "ValueError: \ufffd\ufffd"
    assert "\0" not in failure.signature


@pytest.mark.parametrize(
    ("printed", "reason", "signature"),
    [
        ("paribus.errors.RunnerError: it has 0 GPUs", "it has 0 GPUs", "paribus.errors.RunnerError: it has # GPUs"),
        ("paribus.errors.RunnerError: process 1 of 2 failed: paribus.errors.StaleSampler: step 3 is old",
         "process 1 of 2 failed: step 3 is old", "stale_sampler"),
        ("paribus.errors.RunFolderError: a1: No space left on device", "a1: No space left on device (", "storage"),
        ("paribus.errors.RunnerError: ", "paribus.errors.RunnerError: ", "paribus.errors.RunnerError: "),
        ("torch.OutOfMemoryError: 3 GiB", "torch.OutOfMemoryError: 3 GiB", "torch.OutOfMemoryError: # GiB"),
    ],
)  # fmt: skip
def test_a_sentence_of_paribus_is_a_reason_without_the_name_of_its_class(tmp_path, printed, reason, signature):
    """People read the sentence, also where one process hands it on; an error of others keeps the name of its class."""
    log = tmp_path / "stdout.log"
    log.write_text(f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{printed}\n')
    failure = failure_in(log, 1)
    assert failure.reason.startswith(reason)
    assert failure.signature.startswith(signature)


@pytest.mark.parametrize("do", ["eio", "erofs"])
def test_a_disk_that_fails_is_no_failure_of_the_program(folder, server, fake, do):
    """The reason names the disk's own words and what to do."""
    fake(do)
    supervise(folder, server)
    assert (server.last["do"], server.last["kind"], server.last["signature"]) == ("fail", "storage", "storage")
    assert re.search(r"OSError: \[Errno \d+\] .*: 'checkpoint' .*Make room on the disk", server.last["reason"])


def test_exit_0_without_a_result_is_a_failure(folder, server, fake):
    """A program that ends well has written what it found."""
    fake("exit")
    supervise(folder, server)
    assert (server.last["do"], server.last["kind"]) == ("fail", "program")
    assert "result.json" in server.last["reason"]


class Written:
    """A runner that has written its result and ended well."""

    identity = Identity.of(os.getpid())

    def __init__(self, folder, result):
        folder.result.write_text(result)

    def run(self, tick, interval):
        """End at once."""
        return 0


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ('{"status": "succeeded", "loss": NaN}', "not finite"),
        ('{"status": "failed", "error": "CUDA error"}', "its status is 'failed', not succeeded or stopped_early"),
        ('{"status": null}', "its status is None"),
        ('{"status": ["succeeded"]}', "its status is ['succeeded']"),
        ("[" * 100_000, "result.json:1: not readable: nested more than 64 deep"),
    ],
)
def test_a_result_that_breaks_the_contract_is_a_failure_of_the_program(folder, server, result, told):
    """It is told, once, and never taken for a success; nothing of it is silently left out."""
    supervisor = Supervisor(folder, 7, server, pace=QUICK)
    assert supervisor.supervise(lambda *_: Written(folder, result)) == 0
    assert (server.last["do"], server.last["kind"]) == ("fail", "program")
    assert server.last["reason"].startswith("result.json cannot be used: ")
    assert told in server.last["reason"]
    assert read_json(folder.outcome) == server.last


def test_a_runner_that_is_killed_is_a_failure_of_the_infrastructure(folder, server, fake):
    """SIGKILL comes from outside: a person, or the kernel that is out of memory."""
    fake("kill")
    supervise(folder, server)
    assert (server.last["do"], server.last["kind"]) == ("fail", "infrastructure")
    assert "SIGKILL" in server.last["reason"]


def test_not_a_number_stops_the_run_if_the_study_says_so(folder, server, fake):
    """The run has an honest end: stopped early, with the finding."""
    fake("nan", step_s=0.05)
    supervise(folder, server)
    assert (server.last["do"], server.last["stopped_early"]) == ("finish", True)
    assert server.last["payload"]["finding"]["step_onset"] == 3
    assert read_json(folder.result)["status"] == "stopped_early"


def test_a_critical_finding_stops_the_run_if_the_study_says_so(folder, server, fake):
    """Any detector: the run has an honest end with finding and remedies, and its folder the verdict."""
    job = json.loads(folder.job.read_text())
    folder.job.write_text(json.dumps({**job, "stop_on": ["data_bug"]}))
    fake("impossible", step_s=0.2)
    supervise(folder, server)
    assert (server.last["do"], server.last["stopped_early"]) == ("finish", True)
    assert server.last["payload"]["reason"].startswith("data_bug: reward/correct_frac is 1.5")
    assert read_json(folder.health)["detector"] == "data_bug"


def test_a_line_that_is_no_metric_line_stops_the_run(folder, server, fake):
    """A runner that breaks the contract is not believed."""
    fake("garbage", step_s=0.05)
    supervise(folder, server)
    assert (server.last["do"], server.last["kind"]) == ("fail", "program")
    assert "not a metric line" in server.last["reason"]


def test_a_run_without_progress_is_stopped_if_the_study_says_so(folder, server, fake):
    """After ten minutes without a line the runner is killed and the attempt has failed."""
    fake("deaf")
    server.lease_s = 1e6  # the quick clock below must not end the lease
    job = json.loads(folder.job.read_text())
    folder.job.write_text(json.dumps({**job, "stop_on": ["dead_run"]}))
    begun = time.monotonic()
    supervise(folder, server, clock=lambda: (time.monotonic() - begun) * 2000)
    assert (server.last["do"], server.last["signature"]) == ("fail", "dead_run")


def test_a_lost_lease_kills_the_runner_at_once(folder, server, fake):
    """Another attempt holds the run: nothing is reported, and the runner is gone before the supervisor."""
    fake("deaf")
    server.lease_s = 600.0
    server.answers["renew"] = {"ok": False, "lost": True, "error": "stale"}
    assert supervise(folder, server, pace=replace(QUICK, heartbeat_share=SOON)) == EXIT_LOST
    assert server.last["do"] == "renew"
    assert not Identity.read(read_json(folder.attempt)["runner"]).alive()
    assert read_json(folder.outcome)["do"] == "lost"


def test_a_lease_that_cannot_be_renewed_kills_the_runner_before_it_is_over(folder, server, fake, monkeypatch):
    """With the scheduler unreachable the runner is killed within the lease, and the run is given back."""
    fake("deaf")
    server.lease_s = 3.0
    server.answers["renew"] = ConnectionRefusedError()
    now, killed, kill, tick = [0.0], [], ForkedRunner.kill, Supervisor._tick

    def ticked(supervisor):
        tick(supervisor)
        now[0] += 0.0 if killed else 0.1  # however long the processes take to end, the lease is not over

    monkeypatch.setattr(Supervisor, "_tick", ticked)
    monkeypatch.setattr(ForkedRunner, "kill", lambda child: (killed.append(now[0]), kill(child)))
    assert supervise(folder, server, clock=lambda: now[0]) == 0
    assert "renew" in {r["do"] for r in server.requests}
    assert 2.4 < killed[0] < 3.0
    outcome = read_json(folder.outcome)
    assert (outcome["do"], outcome["reason"]) == ("release", "the lease could not be renewed in time")
    assert server.last == outcome


class Ticking:
    """A runner that hears nothing, on a clock that its ticks and the waits for an server move."""

    identity = Identity.of(os.getpid())

    def __init__(self, now):
        self.now, self.killed = now, None

    def kill(self):
        """Note when."""
        self.killed = self.now[0]

    def run(self, tick, interval):
        """Tick until it is killed."""
        while self.killed is None:
            tick()
            self.now[0] += interval
        return -9


@pytest.mark.parametrize("silent_from", [9.0, 10.1, 44.9, 47.0, 54.9])
def test_a_server_that_no_longer_answers_delays_no_end_beyond_the_lease(folder, silent_from):
    """Each heartbeat waits as long as one may, the last one begins just before the margin; an answer may come late."""
    now, sent = [0.0], []

    def send(request):
        sent.append(now[0])
        if request["do"] != "start" and now[0] >= silent_from:
            now[0] += PATIENCE_S
            raise TimeoutError
        granted.append(now[0])
        now[0] += PATIENCE_S - 0.1
        return {"ok": True, "lease_s": 60.0, "cancel": False}

    granted, child = [], Ticking(now)
    Supervisor(folder, 7, send, clock=lambda: now[0]).supervise(lambda *_: child)
    assert child.killed < granted[-1] + 60.0


class Away:
    """A scheduler that answers only some of the requests: those from ``first`` to ``last``, by their number."""

    def __init__(self, now, first, last):
        self.now, self.answered, self.asked, self.taken = now, range(first, last), 0, []

    def __call__(self, request):
        """Answer, or be away."""
        self.asked += 1
        if self.asked not in self.answered:
            raise FileNotFoundError("server.json")
        self.taken.append(request)
        return {"ok": True, "lease_s": 60.0, "cancel": False}


class Training(Ticking):
    """A runner that trains for an hour."""

    def __init__(self, now, folder):
        super().__init__(now)
        self.folder = folder

    def ask_to_stop(self):
        """Note when, and end as if a checkpoint had been written."""
        self.killed = self.now[0]

    def run(self, tick, interval):
        """Tick for an hour, unless somebody ends it."""
        while self.killed is None and self.now[0] < 3600.0:
            tick()
            self.now[0] += 1.0
        if self.killed is None:
            self.folder.result.write_text('{"status": "succeeded"}')
        return 0 if self.killed is None else 75


def alone(folder, answered, patience_s=inf):
    """Supervise an hour of training with a scheduler that is there for some requests; return what came of it."""
    now = [0.0]
    server, runner = Away(now, *answered), Training(now, folder)
    pace = Pace(alone_s=0.0)
    made = Supervisor(folder, 7, server, pace=pace, patience_s=patience_s, clock=lambda: now[0])
    return made.supervise(lambda *_: runner), server, runner


def test_an_attempt_that_may_goes_on_without_a_scheduler_and_leaves_its_result_in_the_folder(folder):
    """Its scheduler answered the start and was never seen again: an hour later the result is there, under its token."""
    status, server, _ = alone(folder, (1, 2))
    assert status == 1
    assert [r["do"] for r in server.taken] == ["start"]
    outcome = read_json(folder.outcome)
    assert (outcome["do"], outcome["token"], outcome["payload"]) == ("finish", 1, {"status": "succeeded"})
    assert "seconds" not in outcome


def test_an_attempt_that_begins_without_a_scheduler_says_later_how_long_ago(folder):
    """The next scheduler answers from the twentieth request on: it learns of the start, heartbeats and the end."""
    status, server, _ = alone(folder, (20, 10**6))
    assert status == 0
    assert [r["do"] for r in server.taken][:2] == ["start", "renew"]
    assert server.taken[0]["ago_s"] > 10.0
    assert server.taken[-1]["do"] == "finish"


def test_an_attempt_that_reached_no_scheduler_at_all_leaves_how_long_it_lasted(folder):
    """Whoever finds the end in the folder can charge for it."""
    status, _, _ = alone(folder, (0, 0))
    assert status == 1
    assert read_json(folder.outcome)["seconds"] == pytest.approx(3600.0)


def test_an_attempt_that_lost_its_run_while_it_was_alone_ends(folder):
    """The file in the folder says it where the scheduler can't; before the start, nothing is started."""
    folder.revoked.touch()
    status, _, runner = alone(folder, (1, 2))
    assert status == EXIT_LOST
    assert runner.killed < 120.0
    folder.attempt.unlink()
    status, _, runner = alone(folder, (0, 0))
    assert (status, runner.now[0]) == (EXIT_LOST, 0.0)


def test_a_limited_patience_leaves_time_for_a_checkpoint(folder):
    """Ten minutes: the runner is asked to stop, not killed, so that all has ended before they are over."""
    status, _, runner = alone(folder, (1, 2), patience_s=600.0)
    assert status == 1
    assert 550.0 < runner.killed < 580.0
    assert read_json(folder.outcome)["do"] == "release"


def test_a_connection_that_falls_silent_costs_the_patience_once(tmp_path, monkeypatch):
    """However many words are waited for: after each of them the rest of the time is left, not all of it again."""
    now, over = [0.0], threading.Event()
    monkeypatch.setattr(client, "PATIENCE_S", 60.0)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"host": "127.0.0.1", "port": server.getsockname()[1], "key": "00"}
        (tmp_path / "server.json").write_text(json.dumps(place))

        def greet_late():
            connection, _ = server.accept()
            with connection:
                now[0] += client.PATIENCE_S - 0.3
                connection.sendall(b"nonce\n")
                over.wait(300)

        thread = threading.Thread(target=greet_late)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            client.call(tmp_path / "server.json", {})
        assert time.monotonic() - begun < client.PATIENCE_S
        over.set()
        thread.join()


def test_a_run_that_was_lost_before_the_start_starts_no_runner(folder, server, fake):
    """No process of a runner is named, and no file is written by one."""
    server.answers["start"] = {"ok": False, "lost": True, "error": "stale"}
    assert supervise(folder, server) == EXIT_LOST
    assert set(read_json(folder.attempt)) == {"token", "supervisor"}
    assert not folder.log.exists()


def test_a_second_supervisor_of_an_attempt_starts_nothing(folder, server, fake):
    """A job that was started twice by mistake has one token; the second copy asks for nothing and changes nothing."""
    assert supervise(folder, server) == 0
    before = {p: p.read_bytes() for p in folder.path.iterdir() if p.is_file()}
    server.requests.clear()
    assert supervise(folder, server) == EXIT_LOST
    assert server.requests == []
    assert before == {p: p.read_bytes() for p in folder.path.iterdir() if p.is_file()}


def test_cancelling_lets_the_runner_end_and_says_so(folder, server, fake):
    """A heartbeat brings the request."""
    fake(step_s=0.05)
    lengthen(folder)
    server.lease_s = 600.0
    server.answers["renew"] = lambda: {"ok": True, "lease_s": 600.0, "cancel": folder.metrics.exists()}
    supervise(folder, server, pace=replace(PATIENT, heartbeat_share=SOON))
    assert server.last["do"] == "cancelled"
    assert (folder.checkpoints / "index.json").exists()


def ignores_sigterm(pid):
    """Return whether a process has said so to the kernel."""
    ignored = Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) & 1 << signal.SIGTERM - 1)


@pytest.mark.parametrize("deaf", [False, True])
def test_sigterm_gives_the_run_back(folder, server, fake, deaf):
    """The runner writes a checkpoint; one that does not hear is killed after the grace; both are only interrupted."""
    fake("deaf" if deaf else None, at=1, step_s=0.05)
    lengthen(folder)
    supervisor = Supervisor(folder, 7, server, pace=QUICK if deaf else PATIENT)

    def stop_when_it_trains():
        while not folder.metrics.exists() or "runner" not in (here := read_json(folder.attempt)):
            time.sleep(0.01)
        while deaf and not ignores_sigterm(here["runner"]["pid"]):
            time.sleep(0.01)
        supervisor.ask_to_stop()

    threading.Thread(target=stop_when_it_trains).start()
    assert supervisor.supervise(ForkedRunner) == 0
    assert (server.last["do"], server.last["reason"]) == ("release", "asked to stop")
    assert (folder.checkpoints / "index.json").exists() != deaf


def test_the_report_is_sent_until_it_is_taken(folder, server, fake):
    """An server that is away for a moment loses nothing."""
    calls = iter([ConnectionRefusedError(), ConnectionRefusedError(), None])
    answer = server.__call__

    def flaky(request):
        if request["do"] == "finish" and (error := next(calls)) is not None:
            raise error
        return answer(request)

    assert supervise(folder, flaky) == 0
    assert server.last["do"] == "finish"


def test_a_supervisor_loads_nothing_heavy():
    """It is one process a run, and it must start at once."""
    code = "import sys, paribus.attempt.supervisor; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"sqlalchemy", "numpy", "torch", "mlflow", "scipy", "alembic", "rich"} & set(shown)


def test_a_killed_supervisor_takes_its_runner_along(folder, tmp_path, fake):
    """After kill -9 of the supervisor no runner is left."""
    fake("deaf")
    code = (
        "import sys; from paribus.attempt.supervisor import *\n"
        "server = lambda request: {'ok': True, 'lease_s': 60.0, 'cancel': False}\n"
        "Supervisor(RunFolder(Path(sys.argv[1])), 7, server).supervise(ForkedRunner)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder.path)])
    end = time.monotonic() + 300
    while not (folder.attempt.exists() and folder.metrics.exists()):
        assert time.monotonic() < end
        time.sleep(0.01)
    runner = Identity.read(read_json(folder.attempt)["runner"])
    assert runner.alive()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while runner.alive():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_runner_that_asks_to_be_queued_again_is_told_with_its_step(folder, server, fake):
    """The store can see whether it comes further; one that is stopped from outside is not counted."""
    fake("requeue")
    assert supervise(folder, server) == 0
    assert (server.last["do"], server.last["step"]) == ("release", 2)
    assert server.last["wait_s"] > 0
    assert "after step 2" in server.last["reason"]
