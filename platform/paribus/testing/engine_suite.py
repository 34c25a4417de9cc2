"""The conformance suite for engines: subclass :class:`EngineTestCase`, set ``make``, and let pytest run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from paribus.engines.base import Engine, EngineSettings, JobState, Spec, Status

PATIENCE_S = 240.0


def job(*arguments: object) -> Spec:
    """Return a job of the suite."""
    return Spec(module=__name__, arguments=tuple(map(str, arguments)))


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail if it takes minutes."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the engine did not get there within minutes"
        time.sleep(0.02)


def started(engine: Engine, name: str, pid: Path) -> int:
    """Wait until a sleeping job has written its process id, and return it."""
    until(lambda: engine.poll([name]) is not None and pid.exists() and pid.read_text() != "")
    return int(pid.read_text())


def ended(engine: Engine, name: str) -> Status:
    """Wait for the end of a job and return its status."""
    until(lambda: engine.poll([name])[name].state is JobState.ENDED)
    return engine.poll([name])[name]


def gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


class EngineTestCase:
    """What every engine must do.

    Attributes:
        make: constructs the engine; usually its class.
        concurrent: set it to false if jobs run inside ``submit``.
    """

    make: Callable[[EngineSettings], Engine]
    concurrent = True

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        """An engine with two slots, closed at the end."""
        made = type(self).make(EngineSettings(runner="native", folder=tmp_path / "engine", slots=2))
        yield made
        made.close()

    def test_a_job_gets_its_arguments_and_returns_its_exit_code(self, engine: Engine, tmp_path: Path) -> None:
        """Each job's ``main`` is called with its arguments, and its return value is the exit code."""
        engine.submit(job("touch", tmp_path / "file", "b c"), "first")
        assert ended(engine, "first").exit_code == 0
        assert (tmp_path / "file").read_text().startswith(f"touch {tmp_path / 'file'} b c")
        engine.submit(job("exit", 3), "second")
        assert ended(engine, "second").exit_code == 3

    def test_a_name_is_started_once(self, engine: Engine, tmp_path: Path) -> None:
        """Submitting a name again starts nothing, before and after the job's end."""
        identities = {engine.submit(job("touch", tmp_path / "file"), "once") for _ in range(2)}
        ended(engine, "once")
        identities.add(engine.submit(job("touch", tmp_path / "file"), "once"))
        ended(engine, "once")
        assert (tmp_path / "file").read_text().count("\n") == 1
        assert identities == {engine.find("once")}

    def test_an_unknown_name_is_unknown_and_not_failed(self, engine: Engine) -> None:
        """A job that the engine never heard of has no known end."""
        assert engine.find("never") is None
        assert engine.poll(["never"]) == {"never": Status(state=JobState.UNKNOWN)}
        engine.cancel("never", 0.0)

    def test_a_job_that_raises_has_failed(self, engine: Engine) -> None:
        """An exception ends the job, not the engine."""
        engine.submit(job("fail"), "bad")
        assert ended(engine, "bad").exit_code not in (0, None)
        engine.submit(job("exit", 0), "good")
        assert ended(engine, "good").exit_code == 0

    def test_capacity_is_what_the_slots_leave(self, engine: Engine, tmp_path: Path) -> None:
        """A job takes a slot until it has ended."""
        assert engine.capacity() == engine.slots()
        engine.submit(job("sleep", tmp_path / "pid") if self.concurrent else job("exit", 0), "one")
        assert engine.capacity() == engine.slots() - self.concurrent
        engine.cancel("one", 0.0)
        ended(engine, "one")
        assert engine.capacity() == engine.slots()

    def test_cancel_asks_first_and_then_uses_force(self, engine: Engine, tmp_path: Path) -> None:
        """SIGTERM lets a job end by itself; a job that ignores it is killed when the grace is over."""
        if not self.concurrent:
            pytest.skip("jobs run inside submit and cannot be cancelled")
        for kind, grace, code in (("sleep", 60.0, 7), ("deaf", 0.2, -signal.SIGKILL)):
            engine.submit(job(kind, tmp_path / kind), kind)
            pid = started(engine, kind, tmp_path / kind)
            engine.cancel(kind, grace)
            assert ended(engine, kind).exit_code == code
            assert gone(pid)

    def test_closing_leaves_no_process(self, engine: Engine, tmp_path: Path) -> None:
        """No job survives its engine."""
        if not self.concurrent:
            pytest.skip("jobs run inside submit: none is left")
        engine.submit(job("deaf", tmp_path / "pid"), "left")
        pid = started(engine, "left", tmp_path / "pid")
        engine.close()
        until(lambda: gone(pid))


# ---- the jobs ----------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Do one thing: the jobs of the suite, and of the engines' other tests.

    ``touch FILE`` adds a line with the arguments; ``exit N`` returns N; ``fail`` raises; ``sleep FILE`` writes
    its process id, sleeps ten minutes, and exits with 7 on SIGTERM; ``deaf FILE`` does not hear SIGTERM; ``fork FILE
    OTHER`` sleeps, and so does a child in a session of its own, whose process id is in OTHER; ``hide FILE OTHER`` is
    the same with a grandchild that has lost its parent and has nothing in its environment; ``env FILE`` writes its
    environment as JSON; ``ray FILE OTHER`` is a Ray program that sleeps: it lets two of its workers hold a GPU each,
    whose names are in OTHER.
    """
    match arguments[0]:
        case "touch":
            with Path(arguments[1]).open("a") as file:
                file.write(" ".join(arguments) + "\n")
        case "env":
            Path(arguments[1]).write_text(json.dumps(dict(os.environ)))
        case "exit":
            return int(arguments[1])
        case "fail":
            raise ValueError("a job of the conformance suite fails on purpose")
        case "fork":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            Path(arguments[2]).write_text(str(child.pid))
            return main(["sleep", arguments[1]])
        case "ray":
            workers = _ray_workers(Path(arguments[2]))
            return main(["sleep", arguments[1]]) if workers else 1
        case "hide":
            hidden = (
                f"import os, time; os.fork() and os._exit(0); open({arguments[2]!r}, 'w').write(str(os.getpid())); "
            )
            command = [sys.executable, "-c", f"{hidden} time.sleep(600)"]
            subprocess.Popen(command, start_new_session=True, env={}).wait()
            until(lambda: Path(arguments[2]).exists() and Path(arguments[2]).read_text() != "")  # before its own id
            return main(["sleep", arguments[1]])
        case "sleep" | "deaf":
            signal.signal(signal.SIGTERM, _exit if arguments[0] == "sleep" else signal.SIG_IGN)
            Path(arguments[1]).write_text(str(os.getpid()))
            for _ in range(6000):
                time.sleep(0.1)
    return 0


def _ray_workers(file: Path) -> list[object]:
    import ray

    ray.init(logging_level="ERROR", log_to_driver=False)
    workers = [ray.remote(num_gpus=1, num_cpus=0)(_Worker).remote() for _ in range(2)]
    file.write_text(" ".join(ray.get([w.gpu.remote() for w in workers])))
    return workers


class _Worker:
    def gpu(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def _exit(*_: object) -> None:
    os._exit(7)
