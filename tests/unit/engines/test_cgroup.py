"""Control groups: where they may be made, and that nothing of a job survives in one, wherever it hides."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paribus.engines import cgroup
from paribus.engines.base import EngineSettings
from paribus.engines.local import LocalEngine
from paribus.testing.engine_suite import ended, gone, job, until

V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "30 29 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
HYBRID = f"{V1}40 29 0:40 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n"
INSIDE = "29 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    ("mounts", "own", "folder"),
    [
        (V2, "0::/user.slice/user-7.slice/app.scope\n", "/sys/fs/cgroup/user.slice/user-7.slice/app.scope"),
        (V2, "0::/\n", "/sys/fs/cgroup"),
        (HYBRID, "8:pids:/x\n0::/y\n", "/sys/fs/cgroup/unified/y"),
        (INSIDE, "0::/docker/abc/job\n", "/sys/fs/cgroup/job"),
        (INSIDE, "0::/other\n", None),
        (V2, "0::/../elsewhere\n", None),
        (V2, "8:pids:/x\n", None),
        ("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", "0::/\n", None),
    ],
)
def test_the_group_of_a_process_is_found_where_it_can_be_seen(mounts, own, folder):
    """Beside version 1, and where a container sees a part of the tree; what lies outside of it is not guessed."""
    assert cgroup.own_group(mounts, own) == (Path(folder) if folder else None)


@pytest.fixture
def allowed():
    """Skip where this user may make no groups."""
    group, why = cgroup.make(f"paribus-test-{os.getpid()}")
    if group is None:
        pytest.skip(f"control groups are not allowed here: {why}")
    cgroup.remove(group)
    return group.parent


def hidden(tmp_path):
    """Wait for a job that has hidden a process; return the process ids of both."""
    files = tmp_path / "pid", tmp_path / "other"
    until(lambda: all(f.exists() and f.read_text() != "" for f in files))
    return tuple(int(f.read_text()) for f in files)


def groups(allowed, pid):
    """Return the group of a process below the one that is allowed."""
    line = next(x for x in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if x.startswith("0::"))
    return Path(line[3:]).parts[-2:]


@pytest.mark.parametrize("runner", ["fake", "missing"])
def test_a_job_has_a_group_that_goes_with_it(allowed, tmp_path, runner):
    """Warm or cold, after kill -9 of the job: what it has hidden and its group are gone before its slot is free."""
    engine = LocalEngine(EngineSettings(runner=runner, folder=tmp_path / "engine", slots=1))
    try:
        engine.submit(job("hide", tmp_path / "pid", tmp_path / "other"), "first")
        until(lambda: engine.poll(["first"]) and (tmp_path / "pid").exists())
        pid, other = hidden(tmp_path)
        root, name = groups(allowed, other)
        assert name == "first"
        assert groups(allowed, pid) == (root, name)
        assert (allowed / root / name).is_dir()
        os.kill(pid, signal.SIGKILL)
        assert ended(engine, "first").exit_code == -signal.SIGKILL
        assert gone(other)
        assert not (allowed / root / name).exists()
    finally:
        engine.close()
    assert not (allowed / root).exists()


def test_a_hidden_process_does_not_survive_scheduler_and_server(allowed, tmp_path):
    """After kill -9 of both nobody is its parent and nothing marks it; the next engine ends it."""
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from paribus.engines.base import EngineSettings
        from paribus.engines.local import LocalEngine
        from paribus.testing.engine_suite import job
        engine = LocalEngine(EngineSettings(runner="fake", folder=Path({str(tmp_path)!r}), slots=1))
        engine.submit(job("hide", {str(tmp_path / "pid")!r}, {str(tmp_path / "other")!r}), "left")
        time.sleep(60)
    """)
    owner = subprocess.Popen([sys.executable, "-c", code])
    child, other = hidden(tmp_path)
    server = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    owner.kill()
    owner.wait()
    until(lambda: gone(child) and gone(server))
    assert not gone(other)
    root, _ = groups(allowed, other)
    engine = LocalEngine(EngineSettings(runner="fake", folder=tmp_path, slots=1))
    engine.poll(())
    assert gone(other)
    engine.close()
    assert not (allowed / root).exists()


def test_where_groups_are_not_allowed_jobs_run_without(tmp_path, monkeypatch):
    """As before: nothing is made, and a job ends as it ends."""
    monkeypatch.setattr(cgroup, "own_group", lambda mounts, own: None)
    assert cgroup.make("any") == (None, "no cgroup v2 is mounted")
    engine = LocalEngine(EngineSettings(runner="fake", folder=tmp_path, slots=1))
    try:
        engine.submit(job("exit", 5), "one")
        assert ended(engine, "one").exit_code == 5
        assert not (tmp_path / "cgroup").exists()
    finally:
        engine.close()


def test_a_group_with_groups_below_it_is_removed(allowed):
    """What a job has made in its own group goes with it."""
    group, _ = cgroup.make(f"paribus-nested-{os.getpid()}")
    (group / "a" / "b").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as process:
        (group / "a" / "b" / "cgroup.procs").write_text(str(process.pid))
        assert cgroup.end(group)
        assert process.wait() == -signal.SIGKILL
    assert not group.exists()


def test_a_mount_whose_name_is_not_utf8_stops_nothing(monkeypatch):
    """The kernel writes names as they are."""
    real, line = Path.read_bytes, b"99 1 8:1 / /media/caf\xe9 rw - ext4 /dev/sdb1 rw\n"

    def with_one_more(path):
        return (line if path.name == "mountinfo" else b"") + real(path)

    monkeypatch.setattr(Path, "read_bytes", with_one_more)
    _, why = cgroup.make("x")
    assert isinstance(why, str)
