"""Both engines of one machine pass the conformance suite; the local one survives what happens to its server."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.contract import Need, Resources
from paribus.engines.base import EngineSettings, JobState, Status, load_engine, need_of
from paribus.engines.inline import InlineEngine
from paribus.engines.local import LocalEngine, visible_gpus
from paribus.errors import ParibusError, TooLarge
from paribus.testing.engine_suite import EngineTestCase, ended, gone, job, started, until


class TestInline(EngineTestCase):
    """The engine that runs jobs inside the calling process."""

    make = InlineEngine
    concurrent = False


class TestLocal(EngineTestCase):
    """The engine with slots, warm."""

    @staticmethod
    def make(settings):
        """Use a runner that is warm at once."""
        return LocalEngine(EngineSettings(runner="fake", folder=settings.folder, slots=settings.slots))


class TestLocalCold(EngineTestCase):
    """The engine with slots, where the runner cannot be imported ahead of time."""

    @staticmethod
    def make(settings):
        """Name a runner that does not exist, so that warming it fails."""
        return LocalEngine(EngineSettings(runner="missing", folder=settings.folder, slots=settings.slots))


@pytest.fixture
def local(tmp_path):
    """A local engine with one slot."""
    engine = LocalEngine(EngineSettings(runner="fake", folder=tmp_path / "engine", slots=1))
    yield engine
    engine.close()


def test_a_killed_server_ends_its_jobs_and_is_started_again(local, tmp_path):
    """After kill -9 of the warm server its jobs are gone and told as ended, and the next job runs."""
    local.submit(job("deaf", tmp_path / "pid"), "first")
    pid = started(local, "first", tmp_path / "pid")
    os.kill(parent_of(pid), signal.SIGKILL)
    assert ended(local, "first").exit_code == -signal.SIGKILL
    until(lambda: gone(pid))
    local.submit(job("exit", 5), "second")
    assert ended(local, "second").exit_code == 5


def test_an_engine_without_gangs_refuses_several_nodes(local):
    """Also one of others, which knows nothing of them: a run never gets less than its study declares."""
    with pytest.raises(TooLarge, match=r"asks for 16 GPUs on 2 nodes; the engine `local` gives a run one node\. R"):
        need_of(local, Resources(gpus=16, nodes=2))
    assert need_of(local, Resources(cpus=1)).nodes == 1


def test_of_a_job_that_has_ended_no_more_is_kept_than_its_end(local):
    """A study may have a hundred thousand; who submits it again, looks for it or asks is told what it was told."""
    spec = job("exit", 5)
    kept = weakref.ref(spec)
    local.submit(spec, "first")
    del spec
    assert kept() is not None
    assert ended(local, "first").exit_code == 5
    gc.collect()
    assert kept() is None
    assert local.submit(job("exit", 6), "first") == local.find("first") == "first"
    assert local.poll(["first"])["first"] == Status(state=JobState.ENDED, exit_code=5)


@pytest.mark.parametrize(("runner", "refused"), [("fake", "fork_server"), ("missing", "launch")])
def test_a_job_waits_while_the_machine_refuses_a_process(tmp_path, monkeypatch, runner, refused):
    """Warm or cold: no error ends what asks, the user reads why, and the job starts when there is room."""
    real, refusing = subprocess.Popen, [True]

    def start(command, **options):
        if refusing and f"paribus.engines.{refused}" in command:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real(command, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    engine = LocalEngine(EngineSettings(runner=runner, folder=tmp_path / "engine", slots=2))
    try:
        assert engine.submit(job("exit", 5), "one") == "one"
        until(lambda: engine.poll(["one"]) is not None and engine.trouble != "")
        assert engine.poll(["one"])["one"].state is JobState.PENDING
        assert "Resource temporarily unavailable" in engine.trouble
        assert engine.capacity() == 0
        refusing.clear()
        assert ended(engine, "one").exit_code == 5
        assert engine.trouble == ""
        assert engine.capacity() == 2
    finally:
        engine.close()


FORK = """
import errno, os
real = os.fork

def fork():
    if os.path.exists({refuse!r}):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return real()

os.fork = fork
"""


def test_a_fork_that_the_machine_refuses_ends_no_other_job(tmp_path, monkeypatch):
    """The server and its jobs go on; the new job waits, and can be cancelled meanwhile."""
    refuse, site = tmp_path / "refuse", tmp_path / "refusing"
    site.mkdir()
    (site / "sitecustomize.py").write_text(FORK.format(refuse=str(refuse)))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    engine = LocalEngine(EngineSettings(runner="fake", folder=tmp_path / "engine", slots=3))
    try:
        engine.submit(job("sleep", tmp_path / "pid"), "first")
        pid = started(engine, "first", tmp_path / "pid")
        refuse.touch()
        for name in ("second", "third"):
            engine.submit(job("exit", 5), name)
        until(lambda: engine.poll(["second"]) is not None and engine.trouble != "")
        engine.cancel("third", 60.0)
        assert ended(engine, "third").exit_code == -signal.SIGTERM
        states = {name: status.state for name, status in engine.poll(["first", "second"]).items()}
        assert states == {"first": JobState.RUNNING, "second": JobState.PENDING}
        assert engine.capacity() == 0
        refuse.unlink()
        assert ended(engine, "second").exit_code == 5
        assert not gone(pid)
        assert engine.trouble == ""
    finally:
        engine.close()


def parent_of(pid):
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def forked(tmp_path):
    """Wait for a job that has a child in a session of its own; return the process ids of both."""
    files = tmp_path / "pid", tmp_path / "other"
    until(lambda: all(f.exists() and f.read_text() != "" for f in files))
    return tuple(int(f.read_text()) for f in files)


def test_what_a_killed_job_leaves_is_gone_before_its_slot_is_free(local, tmp_path):
    """A process that has moved to a session of its own would hold the memory that the next job gets."""
    local.submit(job("fork", tmp_path / "pid", tmp_path / "other"), "first")
    pid, other = forked(tmp_path)
    assert os.getsid(other) == other
    os.kill(pid, signal.SIGKILL)
    until(lambda: local.capacity() == 1)
    assert gone(pid)
    assert gone(other)


@pytest.mark.parametrize("server_too", [False, True])
def test_nothing_survives_a_killed_owner(tmp_path, server_too):
    """After kill -9 of the process that made the engine its jobs and what they started end, or the next one ends it."""
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from paribus.engines.base import EngineSettings
        from paribus.engines.local import LocalEngine, visible_gpus
        from paribus.testing.engine_suite import job
        engine = LocalEngine(EngineSettings(runner="fake", folder=Path({str(tmp_path)!r}), slots=1))
        engine.submit(job("fork", {str(tmp_path / "pid")!r}, {str(tmp_path / "other")!r}), "left")
        time.sleep(60)
    """)
    owner = subprocess.Popen([sys.executable, "-c", code])
    child, grandchild = forked(tmp_path)
    server = parent_of(child)
    if server_too:
        os.kill(server, signal.SIGKILL)
    owner.kill()
    owner.wait()
    until(lambda: gone(child) and gone(server))
    if server_too:
        looking, working = (LocalEngine(EngineSettings(runner="fake", folder=tmp_path, slots=1)) for _ in range(2))
        looking.close()
        assert not gone(grandchild)
        working.poll(())
        working.close()
    until(lambda: gone(grandchild))


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Put an `nvidia-smi` on the path that tells of three GPUs; return the file with its lines."""
    told = tmp_path / "gpus.csv"
    told.write_text("0, GPU-a, 81559, 512\n1, GPU-b, 81559, 0\n2, GPU-c, [N/A], [N/A]\n")
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {told}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return told


@pytest.mark.parametrize(
    ("chosen", "names"), [(None, "abc"), ("2,0", "ca"), ("GPU-b", "b"), ("", ""), ("-1", ""), ("7", "7")]
)
def test_gpus_are_found_by_uuid(gpus, monkeypatch, chosen, names):
    """Those that `CUDA_VISIBLE_DEVICES` leaves, in its order; what nvidia-smi does not know is kept as written."""
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    found = visible_gpus()
    assert [gpu.name for gpu in found] == [n if n == "7" else f"GPU-{n}" for n in names]
    assert {gpu.name: (round(gpu.memory), gpu.used) for gpu in found}.get("GPU-a", (80, 0.5)) == (80, 0.5)


def test_a_machine_whose_nvidia_smi_fails_has_no_gpus(gpus):
    """`paribus doctor` says what is wrong."""
    (gpus.parent / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus() == ()


def test_a_byte_of_nvidia_smi_that_is_not_utf_8_costs_no_gpu(gpus):
    """The other fields of the line are read."""
    gpus.write_bytes(b"0, GPU-a, 81559, \xff\n1, GPU-b, 81559, 0\n")
    assert [(gpu.name, gpu.used) for gpu in visible_gpus()] == [("GPU-a", 0.0), ("GPU-b", 0.0)]


@pytest.mark.parametrize("runner", ["fake", "missing"])
def test_a_job_sees_exactly_the_gpus_that_it_holds(gpus, tmp_path, runner):
    """Warm or cold, one after the other from one server: none sees what another held, one without GPUs sees none."""
    engine = LocalEngine(EngineSettings(runner=runner, folder=tmp_path, slots=2))
    try:
        for number, held in enumerate([("GPU-b", "GPU-a"), (), ("GPU-c",)]):
            told = tmp_path / f"told{number}"
            engine.submit(replace(job("env", told), need=Need(gpus=float(len(held))), gpus=held), f"tell{number}")
            assert ended(engine, f"tell{number}").exit_code == 0
            assert json.loads(told.read_text())["CUDA_VISIBLE_DEVICES"] == ",".join(held)
    finally:
        engine.close()


def test_a_job_uses_as_many_threads_as_it_holds_cores(local, tmp_path, monkeypatch):
    """Also where the server was started for a job with others."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    for threads in (2, 3, 2):
        told = tmp_path / f"told{threads}"
        local.submit(replace(job("env", told), need=Need(cpus=1.0, threads=threads)), f"tell{threads}")
        ended(local, f"tell{threads}")
        assert json.loads(told.read_text())["OMP_NUM_THREADS"] == str(threads)


@pytest.mark.parametrize(
    ("slots", "resources", "need"),
    [
        (None, {}, Need(gpus=1.0)),
        (6, {}, Need(gpus=0.5)),
        (2, {}, Need(gpus=1.0)),
        (None, {"gpus": 0.25, "cpus": 1}, Need(gpus=0.25, cpus=1.0, threads=1)),
        (None, {"gpus": 0}, Need(cpus=1.0, threads=1)),
        (None, {"gpus": 3}, Need(gpus=3.0)),
        (None, {"gpus": 4}, "each run, in every arm, asks for 4 GPUs; this machine has 3 GPUs and "),
        (None, {"cpus": 1000}, "asks for 1,000 CPU cores"),
    ],
)
def test_what_a_run_holds_on_this_machine(gpus, tmp_path, slots, resources, need):
    """What the study declares, else a GPU, shared by more slots; what never fits is told with what there is."""
    engine = LocalEngine(EngineSettings(runner="fake", folder=tmp_path, slots=slots))
    if isinstance(need, Need):
        assert engine.need(Resources(**resources)) == need
    else:
        with pytest.raises(TooLarge, match=need) as caught:
            engine.need(Resources(**resources))
        assert caught.value.exit_code == 2


def test_a_plan_of_an_earlier_version_that_declared_gpu_memory_gets_a_whole_gpu():
    """Plans in a store keep what was once allowed; new studies can't declare it."""
    assert Resources.model_validate_json('{"gpus": null, "gpu_memory_gib": 20.0, "cpus": 2}').about() == (
        "1 GPU, 2 CPU cores"
    )
    assert Resources.model_validate_json('{"gpus": 0.5, "gpu_memory_gib": null}') == Resources(gpus=0.5)
    with pytest.raises(ValueError, match="gpu_memory_gib"):
        Resources.model_validate({"gpu_memory_gib": 20.0})


def test_without_gpus_a_run_holds_a_core_or_its_share(local, tmp_path, monkeypatch):
    """Where more slots are asked for than there are cores, they share them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cores = local.devices()[-1].amount
    assert local.need(Resources()) == Need(cpus=1.0, threads=1)
    many = LocalEngine(EngineSettings(runner="fake", folder=tmp_path, slots=round(4 * cores)))
    assert many.need(Resources()) == Need(cpus=0.25, threads=1)


def test_a_job_is_pending_until_it_runs(local, tmp_path):
    """A job that was submitted is known at once."""
    local.submit(job("sleep", tmp_path / "pid"), "one")
    assert local.poll(["one"])["one"].state in (JobState.PENDING, JobState.RUNNING)
    until(lambda: local.poll(["one"])["one"].state is JobState.RUNNING)


def test_engines_are_found_by_name():
    """An unknown engine is told with the nearest name."""
    assert load_engine("local") is LocalEngine
    with pytest.raises(ParibusError, match=r"no engine `lokal`.*Did you mean `local`.*inline, local"):
        load_engine("lokal")
