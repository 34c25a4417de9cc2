"""The Ray engine on a real cluster of three nodes, two of them with two fake GPUs each."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.contract import Resources
from paribus.engines.base import EngineSettings, JobState
from paribus.engines.process import proc_stat
from paribus.engines.ray.engine import RayEngine
from paribus.errors import EngineError, TooLarge
from paribus.testing.engine_suite import EngineTestCase, ended, gone, job, started, until

pytestmark = pytest.mark.filterwarnings("default")  # Ray has some of its own


class TestRay(EngineTestCase):
    """The conformance suite."""

    @pytest.fixture
    def engine(self, make):
        """An engine with two slots."""
        return make(slots=2)


class TestRayJobs(EngineTestCase):
    """The conformance suite, each job a Ray Job."""

    @pytest.fixture
    def engine(self, make):
        """An engine with two slots."""
        return make(slots=2, launch="job")


@pytest.fixture(scope="module")
def free(ray_cluster):
    """Return how many GPUs nobody holds, by a driver of its own."""
    code = textwrap.dedent(f"""
        import sys, ray
        ray.init(address={ray_cluster.address!r}, log_to_driver=False, logging_level="ERROR")
        for _ in sys.stdin:
            print(ray.available_resources().get("GPU", 0), flush=True)
    """)
    environment = {**os.environ, **ray_cluster.environment}
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, **pipe) as process:

        def ask():
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield ask


@pytest.fixture
def make(ray, tmp_path):
    """Make engines whose jobs get a second's grace; all are closed at the end."""
    made = []

    def build(folder="engine", slots=None, **more):
        options = tmp_path / f"options-{len(list(tmp_path.iterdir()))}.yaml"
        options.write_text(json.dumps({"ray": {"address": ray, "grace": 1, **more}}))
        made.append(RayEngine(EngineSettings(runner="fake", folder=tmp_path / folder, slots=slots, options=options)))
        return made[-1]

    yield build
    for one in reversed(made):
        one.close()


def test_a_job_that_the_last_process_submitted_is_found_by_name(make, ray, tmp_path):
    """After kill -9 of the process that submitted it a job goes on, and submitting it again starts nothing."""
    options = tmp_path / "engines.yaml"
    options.write_text(json.dumps({"ray": {"address": ray}}))
    code = textwrap.dedent(f"""
        import os, signal, time
        from pathlib import Path
        from paribus.engines.base import EngineSettings
        from paribus.engines.ray.engine import RayEngine
        from paribus.testing.engine_suite import job, started
        settings = dict(runner="fake", folder=Path({str(tmp_path / "engine")!r}), options=Path({str(options)!r}))
        engine = RayEngine(EngineSettings(**settings))
        engine.submit(job("sleep", {str(tmp_path / "pid")!r}), "mine")
        started(engine, "mine", Path({str(tmp_path / "pid")!r}))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=os.environ)
    assert killed.returncode == -9
    second = make()
    pid = int((tmp_path / "pid").read_text())
    assert second.find("mine") == second.submit(job("touch", tmp_path / "file"), "mine")
    until(lambda: second.poll(["mine"])["mine"].state is JobState.RUNNING)
    assert not gone(pid)
    second.cancel("mine", 60.0)
    assert ended(second, "mine").exit_code == 7
    second.close()
    third = make()
    third.submit(job("touch", tmp_path / "file"), "mine")
    assert third.poll(["mine"])["mine"].exit_code == 7
    assert not (tmp_path / "file").exists()


def test_two_home_folders_do_not_take_each_others_jobs(make):
    """The same run in two stores has one name in both, and two in Ray."""
    here = make("here")
    here.submit(job("exit", 3), "same")
    assert ended(here, "same").exit_code == 3
    here.close()
    there = make("there")
    assert there.find("same") is None
    there.submit(job("exit", 4), "same")
    assert ended(there, "same").exit_code == 4


def test_jobs_on_gpus_are_pinned_and_what_does_not_fit_waits(make, tmp_path, free):
    """Four jobs fill four GPUs, each sees one; the fifth waits, can be taken back, and all is given back at the end."""
    engine = make(cpus=0.5, jobs=5)
    need = engine.need(Resources(gpus=1))
    for i in range(5):
        engine.submit(replace(job("sleep", tmp_path / f"pid{i}"), need=need), f"sleep{i}")
    pids = [started(engine, f"sleep{i}", tmp_path / f"pid{i}") for i in range(4)]
    seen = [dict(e.partition("=")[::2] for e in _environment(pid)) for pid in pids]
    assert sorted(v["CUDA_VISIBLE_DEVICES"] for v in seen) == ["0", "0", "1", "1"]
    assert engine.poll(["sleep4"])["sleep4"].state is JobState.PENDING
    engine.cancel("sleep4", 30.0)
    assert ended(engine, "sleep4").exit_code is None
    for i in range(4):
        engine.cancel(f"sleep{i}", 30.0)
    assert {ended(engine, f"sleep{i}").exit_code for i in range(4)} == {7}
    until(lambda: free() == 4)
    assert not (tmp_path / "pid4").exists()


def _environment(pid):
    return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")


def test_a_job_without_gpus_sees_none_and_uses_one_thread(make, tmp_path, monkeypatch):
    """Numbers do not depend on the engine; Ray's own variables, its token among them, do not reach the job's file."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("MINE", "is carried")
    engine = make()
    engine.submit(job("env", tmp_path / "told"), "tell")
    assert ended(engine, "tell").exit_code == 0
    told = json.loads((tmp_path / "told").read_text())
    assert (told["CUDA_VISIBLE_DEVICES"], told["OMP_NUM_THREADS"], told["PARIBUS_GRACE_S"]) == ("", "1", "1")
    assert told["MINE"] == "is carried"
    assert not [k for k in told if k.startswith("RAY_")]


def test_half_a_gpu_each(make, tmp_path):
    """Two runs share a GPU where each asks for a half."""
    engine = make(gpus=0.5, cpus=0.1)
    assert engine.slots() == engine.capacity() == 8
    assert engine.capacity(engine.need(Resources(gpus=0.25))) == 16
    assert engine.about(Resources()) == "Ray: 0.1 CPU, 0.5 GPU per run, up to 8 at a time"


def parent(pid, generations):
    """Return the process that many generations above."""
    for _ in range(generations):
        pid = int(proc_stat(pid)[1])
    return pid


@pytest.mark.parametrize("above", [1, 2], ids=["the program", "the actor"])
def test_kill_9_of_a_jobs_process_or_actor_leaves_no_process(make, tmp_path, free, above):
    """What has left its session and its environment ends, too, and the GPU is free again."""
    engine = make(gpus=1)
    engine.submit(job("hide", tmp_path / "pid", tmp_path / "hidden"), "hide")
    pid = started(engine, "hide", tmp_path / "pid")
    hidden = int((tmp_path / "hidden").read_text())
    os.kill(pid if above == 1 else parent(pid, 2), signal.SIGKILL)
    status = ended(engine, "hide")
    assert status.exit_code == (-9 if above == 1 else None)
    assert status.reason or above == 1
    until(lambda: gone(pid) and gone(hidden))
    until(lambda: free() == 4)


def test_a_grandchild_that_leaves_its_session_does_not_outlive_the_actor(make, tmp_path):
    """Ray would give the GPU away while such a process holds it."""
    engine = make(gpus=1)
    engine.submit(job("fork", tmp_path / "pid", tmp_path / "grandchild"), "fork")
    pid = started(engine, "fork", tmp_path / "pid")
    until(lambda: (tmp_path / "grandchild").exists() and (tmp_path / "grandchild").read_text() != "")
    grandchild = int((tmp_path / "grandchild").read_text())
    assert os.getsid(grandchild) == grandchild
    engine.cancel("fork", 0.0)
    assert ended(engine, "fork").exit_code == -9
    until(lambda: gone(pid) and gone(grandchild))


def test_a_grace_is_never_shorter_than_the_options_say(make, tmp_path):
    """A checkpoint of a large model takes longer than the scheduler's patience."""
    engine = make(grace=30)
    engine.submit(job("deaf", tmp_path / "pid"), "deaf")
    started(engine, "deaf", tmp_path / "pid")
    engine.cancel("deaf", 0.1)
    time.sleep(1.0)
    assert engine.poll(["deaf"])["deaf"].state is JobState.RUNNING
    engine.cancel("deaf", 0.0)
    assert ended(engine, "deaf").exit_code == -9


def test_a_ray_program_gets_its_workers_and_they_end_with_it(make, tmp_path, free):
    """It joins the cluster with the token of its Ray Job; what it took is given back, ended gently or by force."""
    engine = make(launch="job", cpus=0.5)
    need = engine.need(Resources(gpus=2))
    assert engine.capacity(need) == 2
    for name, grace, code in (("gently", 30.0, 7), ("by force", 0.0, -9)):
        pid, gpus = tmp_path / f"pid {name}", tmp_path / f"gpus {name}"
        engine.submit(replace(job("ray", pid, gpus), need=need), name.replace(" ", "-"))
        process = started(engine, name.replace(" ", "-"), pid)
        assert set(gpus.read_text().split()) <= {"0", "1"}
        until(lambda: free() == 2)
        engine.cancel(name.replace(" ", "-"), grace)
        assert ended(engine, name.replace(" ", "-")).exit_code == code
        until(lambda process=process: gone(process))
        until(lambda: free() == 4)


def test_a_ray_program_may_be_larger_than_a_node(make):
    """It spreads over the nodes; more than all of them have is refused."""
    engine = make(launch="job")
    assert engine.need(Resources(gpus=3)).gpus == 3.0
    with pytest.raises(TooLarge, match="the Ray cluster has not that"):
        engine.need(Resources(gpus=5))


@pytest.mark.parametrize("above", [2, 3], ids=["the entrypoint", "Ray's actor"])
def test_kill_9_above_a_ray_job_leaves_no_process_and_is_told(make, tmp_path, above):
    """The program dies with the entrypoint that keeps it, or with Ray's own process, and the end has a reason."""
    engine = make(launch="job")
    engine.submit(job("hide", tmp_path / "pid", tmp_path / "hidden"), "hide")
    pid = started(engine, "hide", tmp_path / "pid")
    hidden = int((tmp_path / "hidden").read_text())
    os.kill(parent(pid, above), signal.SIGKILL)
    status = ended(engine, "hide")
    assert status.exit_code is None
    assert status.reason
    until(lambda: gone(pid) and gone(hidden))
    assert not list((tmp_path / "engine" / "ray").glob("*.order")), "the environment does not stay on the disk"


def test_a_run_that_no_node_can_hold_is_told(make):
    """Ray would wait forever without a word."""
    with pytest.raises(TooLarge, match=r"asks for 1 CPU, 3 GPU; .* The nodes have: .*2 CPU, 2 GPU"):
        make().need(Resources(gpus=3))


def test_where_the_cluster_grows_nothing_is_too_large(make):
    """Who says how many jobs it may get knows that nodes will come."""
    assert make(jobs=2).need(Resources(gpus=3)).gpus == 3.0


def test_a_cluster_that_is_not_there_is_told_soon(make, monkeypatch):
    """No minutes of silence, no traceback."""
    with pytest.raises(EngineError, match=r"cannot join the Ray cluster `127.0.0.1:1`: .*refused"):
        make(address="127.0.0.1:1")


def test_a_wrong_token_is_told(ray, tmp_path, fake_runner):
    """Without the head's token nobody starts anything; the user is told what to compare."""
    options = tmp_path / "engines.yaml"
    options.write_text(json.dumps({"ray": {"address": ray}}))
    code = textwrap.dedent(f"""
        from pathlib import Path
        from paribus.engines.base import EngineSettings
        from paribus.engines.ray.engine import RayEngine
        from paribus.errors import EngineError
        try:
            RayEngine(EngineSettings(runner="fake", folder=Path({str(tmp_path)!r}), options=Path({str(options)!r})))
        except EngineError as error:
            print(error)
    """)
    environment = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "cannot join the Ray cluster" in said.stdout
    assert "the token" in said.stdout


def test_what_has_ended_is_not_kept(make):
    """Of an ended job only its status is known: a study may have a hundred thousand."""
    engine = make(slots=2)
    for i in range(3):
        engine.submit(job("exit", i), f"job{i}")
        assert ended(engine, f"job{i}").exit_code == i
    assert not engine._jobs.live
    assert [s.exit_code for s in engine.poll(["job0", "job1", "job2"]).values()] == [0, 1, 2]
