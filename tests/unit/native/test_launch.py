"""The processes of a run end together: by death, by an error, by SIGTERM, and when their parent is killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paribus.contract import Job, Options
from paribus.errors import ParibusError, RunnerError
from paribus.failures import describe_exit, from_outside
from paribus.recipe.recipe import Recipe
from paribus.scratch import prefix
from paribus_runners.native import launch as module
from paribus_runners.native import runner
from paribus_runners.native.launch import launch, processes_of, threads

JobFolder = Callable[..., Path]

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
from paribus.engines.process import die_with_parent
settings = json.loads(sys.argv[1])
die_with_parent(settings["parent"])
rank, folder = settings["rank"], Path(settings["folder"])
(folder / f"{rank}.environment").write_text(json.dumps(dict(os.environ)))
def stop(*_):
    (folder / f"{rank}.stopped").write_text("")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
(folder / f"{rank}.pid").write_text(str(os.getpid()))
def started(ranks):
    while not all((pid := folder / f"{r}.pid").exists() and pid.read_text() for r in range(ranks)):
        time.sleep(0.01)
if rank == 1:
    DO
time.sleep(1000)
"""
"""A process of a run that does one thing in place of training; ``started`` waits until so many have their handlers."""


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that lets the second process do something, and the others wait."""

    def doing(what: str) -> Path:
        file = tmp_path / "stand_in.py"
        file.write_text(STAND_IN.replace("DO", what))
        monkeypatch.setattr(module, "COMMAND", (sys.executable, str(file)))
        return tmp_path

    return doing


def _pids(folder: Path, count: int) -> list[int]:
    """Wait until the processes have started."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        with suppress(FileNotFoundError, ValueError):
            return [int((folder / f"{rank}.pid").read_text()) for rank in range(count)]
        time.sleep(0.05)
    raise AssertionError(list(folder.iterdir()))


def _gone(pids: list[int]) -> bool:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if not any(_lives(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that has ended stays a zombie where nobody asks for its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_fails_ends_the_run_with_its_reason(ranks: Callable[[str], Path]) -> None:
    """The message names it; the others are killed."""
    why = "(Path(settings['scratch']) / '1.error').write_text('ValueError: no'); sys.exit(1)"
    folder = ranks(f"started(3); {why}")
    with pytest.raises(RunnerError, match="process 1 of 3 failed: ValueError: no"):
        launch(folder, 3, cpu=True)
    assert _gone(_pids(folder, 3))


def test_a_process_that_is_killed_ends_the_run_as_a_failure_from_outside(
    ranks: Callable[[str], Path], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As if the run itself was killed, so that it is tried again; the reason names the process."""
    folder = ranks("started(2); os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(SystemExit) as ended:
        launch(folder, 2, cpu=True)
    assert _gone(_pids(folder, 2))
    assert ended.value.code == 128 + signal.SIGKILL
    assert from_outside(ended.value.code)
    log = tmp_path / "stdout.log"
    log.write_text(f"loading\n{capfd.readouterr().err}")
    assert describe_exit(ended.value.code, log) == "process 1 of 2 was killed by SIGKILL"


@pytest.mark.parametrize("code", [3, 128 + signal.SIGSEGV])
def test_other_ends_are_failures_of_the_program(code: int) -> None:
    """A crash is not tried again as if the machine was the cause."""
    assert not from_outside(code)


@pytest.mark.parametrize(("sent", "end"), [(signal.SIGTERM, SystemExit(75)), (signal.SIGINT, KeyboardInterrupt())])
def test_a_signal_to_their_parent_alone_stops_all_processes(
    ranks: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, end: BaseException
) -> None:
    """It ends once they have. Ctrl-C reaches it as an exception on the engine `inline`, and they ignore that signal."""
    folder, watched, look = ranks("pass"), threading.Event(), module._raise_failure

    def looked(*given: Any) -> None:
        watched.set()
        look(*given)

    def signalled() -> None:
        _pids(folder, 2)
        watched.wait(300)  # until then the parent may not know that the second one has started
        os.kill(os.getpid(), sent)

    monkeypatch.setattr(module, "_raise_failure", looked)
    sender = threading.Thread(target=signalled)
    sender.start()
    with pytest.raises(type(end)) as ended:
        launch(folder, 2, cpu=True)
    sender.join()
    assert ended.value.args == end.args
    assert (folder / "0.stopped").exists()
    assert (folder / "1.stopped").exists()


def test_one_process_that_was_stopped_stops_the_others(ranks: Callable[[str], Path]) -> None:
    """A signal that reached one of them alone stops the run."""
    folder = ranks("started(2); stop()")
    with pytest.raises(SystemExit) as ended:
        launch(folder, 2, cpu=True)
    assert ended.value.code == 75
    assert (folder / "0.stopped").exists()


def test_a_run_is_over_when_all_processes_are(ranks: Callable[[str], Path]) -> None:
    """The first one writes the result; that another was stopped when it had nothing left to do is no matter."""
    folder = ranks("sys.exit(0)")
    (folder / "stand_in.py").write_text((folder / "stand_in.py").read_text().replace("time.sleep(1000)", "sys.exit(0)"))
    (folder / "parts" / "step-000002-1").mkdir(parents=True)
    launch(folder, 2, cpu=True)
    assert not (folder / "parts").exists()  # of a checkpoint that the first one did not finish


def test_no_process_and_no_file_outlives_its_parent(
    ranks: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill -9` of the process that has started them: what it leaves is deleted by the next run, and nothing else."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    begin = prefix("meeting")
    (temporary / f"{begin}notes").write_text("of the user")
    others = {"paribus-run-x", "paribus-meeting-another_machine-x"}  # of an earlier version, and of another machine
    for name in others:
        (temporary / name).mkdir()
    folder = ranks("pass")
    program = (
        "import sys; from pathlib import Path; from paribus_runners.native import launch as module\n"
        f"module.COMMAND = {module.COMMAND!r}\n"
        f"module.launch(Path({str(folder)!r}), 2, cpu=True)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    pids = _pids(folder, 2)
    ranks("sys.exit(3)")
    with pytest.raises(RunnerError, match="exit status 3"):
        launch(folder, 2, cpu=True)
    assert len(list(temporary.iterdir())) == 4  # a run that lives keeps its folder
    parent.kill()
    parent.wait()
    assert _gone(pids)
    assert len(list(temporary.iterdir())) == 4
    with pytest.raises(RunnerError, match="exit status 3"):
        launch(folder, 2, cpu=True)
    assert {p.name for p in temporary.iterdir()} == {f"{begin}notes", *others}


@pytest.mark.parametrize("error", [errno.EBADF, errno.ENOSYS])
def test_a_file_system_without_locks_is_used_without_them(
    ranks: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """NFS refuses to lock a folder that is open for reading, Lustre may have no locks; nothing of others is deleted."""
    left = tmp_path / f"{prefix('meeting')}x"
    left.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def refuse(lock: int, how: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = ranks("sys.exit(3)")
    with pytest.raises(RunnerError, match="exit status 3"):
        launch(folder, 2, cpu=True)
    assert [p.name for p in tmp_path.glob("paribus-*")] == [left.name]


def test_threads_and_reward_workers_are_shared(ranks: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with several processes uses no more of a machine than one with one, and no GPU if it is for CPUs."""
    monkeypatch.setenv("PARIBUS_THREADS", "7")
    monkeypatch.setenv("PARIBUS_REWARD_WORKERS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    folder = ranks("sys.exit(1)")
    with pytest.raises(RunnerError, match="exit status 1"):
        launch(folder, 3, cpu=True)
    given = json.loads((folder / "1.environment").read_text())
    assert "PARIBUS_THREADS" not in given
    assert [given[x] for x in ("OMP_NUM_THREADS", "PARIBUS_REWARD_WORKERS", "CUDA_VISIBLE_DEVICES")] == ["2", "1", ""]


def test_threads_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where several processes share them."""
    monkeypatch.setenv("PARIBUS_THREADS", "many")
    with pytest.raises(ParibusError, match="set it to a number of threads"):
        threads()


@pytest.mark.parametrize(
    ("gpus", "wanted", "expected"),
    [
        (0.0, None, (1, False)), (0.5, None, (1, False)), (1.0, None, (1, False)), (4.0, None, (4, False)),
        (0.0, 3, (3, True)), (0.0, 1, (1, True)),
    ],
)  # fmt: skip
def test_a_run_has_a_process_for_each_gpu(
    recipe: Recipe, job_folder: JobFolder, gpus: float, wanted: int | None, expected: tuple[int, bool]
) -> None:
    """Parts of a GPU have one; on a CPU the study says how many."""
    own = {} if wanted is None else {"processes": wanted}
    job = Job.model_validate_json((job_folder(recipe, gpus=gpus, options=Options(own=own)) / "job.json").read_bytes())
    assert processes_of(job) == expected


def test_processes_for_a_cpu_are_refused_where_a_run_holds_gpus(recipe: Recipe, job_folder: JobFolder) -> None:
    """The message says what to do."""
    folder = job_folder(recipe, gpus=2.0, options=Options(own={"processes": 2}))
    with pytest.raises(ParibusError, match=r"set `resources: \{gpus: 0\}`"):
        processes_of(Job.model_validate_json((folder / "job.json").read_bytes()))


def test_a_plan_accepts_any_number_of_gpus_unless_processes_are_for_a_cpu(recipe: Recipe) -> None:
    """`processes` and GPUs exclude each other; a number below 1 or another key is refused."""
    assert runner.requirements(recipe, Options()).most_gpus is None
    assert runner.requirements(recipe, Options(own={"processes": 2})).most_gpus == 0
    assert runner.requirements(recipe, Options(own={"processes": 2})).least_cpus == 2
    assert runner.check_options(Options(own={"processes": 2})) == ()
    for wrong in ({"processes": 0}, {"processes": "2"}, {"proceses": 2}):
        assert len(runner.check_options(Options(own=wrong))) == 1
