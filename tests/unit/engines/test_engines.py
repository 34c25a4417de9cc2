"""Both engines of one machine pass the conformance suite; the local one survives what happens to its server."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paribus.engines.base import EngineSettings, JobState, load_engine
from paribus.engines.inline import InlineEngine
from paribus.engines.local import LocalEngine
from paribus.errors import ParibusError
from paribus.testing.engine_suite import EngineSuite, ended, gone, job, started, until


class TestInline(EngineSuite):
    """The engine that runs jobs inside the calling process."""

    make = InlineEngine
    concurrent = False


class TestLocal(EngineSuite):
    """The engine with slots, warm."""

    @staticmethod
    def make(settings):
        """Use a runner that is warm at once."""
        return LocalEngine(EngineSettings(runner="fake", folder=settings.folder, slots=settings.slots))


class TestLocalCold(EngineSuite):
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
        from paribus.engines.local import LocalEngine
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
        LocalEngine(EngineSettings(runner="fake", folder=tmp_path, slots=1)).close()
        assert gone(grandchild)
    until(lambda: gone(grandchild))


def test_jobs_on_gpus_are_pinned_to_one_each(tmp_path, monkeypatch):
    """With GPUs there is a slot for each, and a job sees the one of its slot."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    engine = LocalEngine(EngineSettings(runner="fake", folder=tmp_path))
    try:
        assert (engine.slots(), engine.gpus_per_run) == (2, 1.0)
        assert [engine._pinned(i)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["4", "6"]
    finally:
        engine.close()


def test_without_gpus_the_ledger_counts_none(local):
    """A CPU core is no GPU."""
    assert local.gpus_per_run == 0.0


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
