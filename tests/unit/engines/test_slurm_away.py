"""The Slurm engine where Slurm does not answer, or does not take a job; no Slurm is needed."""

import threading
import time
from pathlib import Path

import pytest

from paribus.contract import Need
from paribus.engines import controller
from paribus.engines.base import EngineSettings, JobState, Spec
from paribus.engines.controller import Away, Controller
from paribus.engines.slurm import commands as slurm_commands
from paribus.engines.slurm import engine as slurm
from paribus.engines.slurm.commands import Refused
from paribus.engines.slurm.engine import SlurmEngine
from paribus.errors import EngineError

SAME_FOR_ALL = "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size ...)"
LARGE = Spec(module="m", arguments=(), need=Need(cpus=64.0))
SMALL = Spec(module="m", arguments=(), need=Need(cpus=1.0))


class Cluster:
    """Slurm's commands: a test says which of them fails how; ``calls`` are the first words of each."""

    def __init__(self):
        self.jobs = []
        self.calls = []
        self.trouble = {}
        self.hangs = {}

    def call(self, command, *arguments):
        """Answer, or fail."""
        self.calls.append(command)
        if command in self.hangs:
            self.hangs[command].wait()
        if command in self.trouble:
            raise self.trouble[command]
        if command == "squeue":
            return "\n".join(["", "words of the site", *self.jobs])
        if command == "sbatch":
            lines = Path(arguments[1]).read_text().splitlines()
            (name,) = (line.partition("=")[2] for line in lines if line.startswith("#SBATCH --job-name="))
            self.jobs.append(f"{7:<24}{'RUNNING':<24}{0:<16}{'None':<64}{name:<160}")
        return ""


@pytest.fixture
def cluster(monkeypatch):
    """A fake Slurm, asked again at once."""
    cluster = Cluster()
    monkeypatch.setattr(slurm_commands.shutil, "which", lambda name: name)
    monkeypatch.setattr(slurm_commands, "_call", cluster.call)
    monkeypatch.setattr(slurm, "RETRY_S", 0.0)
    monkeypatch.setattr(controller, "_PROBE_S", 60.0)
    return cluster


@pytest.fixture
def engine(cluster, tmp_path):
    """An engine with 50 slots that looks at each poll."""
    file = tmp_path / "engines.yaml"
    file.write_text("slurm: {poll: 0.1}")
    engine = SlurmEngine(EngineSettings(runner="fake", folder=tmp_path, options=file))
    engine._options = engine._options.model_copy(update={"poll": 0.0})
    engine._controller = Controller(wait_s=60.0, retry_s=0.0)
    return engine


def test_a_refusal_of_a_job_that_was_put_off_is_the_end_of_that_job_only(cluster, engine):
    """Polling goes on, says the reason, and serves the others."""
    engine.submit(SMALL, "first")
    cluster.trouble["sbatch"] = Away("connection refused")
    engine.submit(SMALL, "second")
    cluster.trouble["sbatch"] = Refused("Invalid account")
    states = engine.poll(["first", "second"])
    assert (states["first"].state, states["second"].state) == (JobState.RUNNING, JobState.ENDED)
    assert "Invalid account" in states["second"].reason
    assert engine.capacity() == 49
    with pytest.raises(EngineError, match="Invalid account"):
        engine.submit(SMALL, "third")


def test_a_command_that_cannot_be_started_is_no_answer(monkeypatch, tmp_path):
    """A file system that is away for a moment must not end the scheduler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Away, match="squeue could not be started"):
        slurm_commands._call("squeue")


@pytest.mark.parametrize(
    ("named", "crowded"),
    [
        ("AssocMaxSubmitJobLimit; ", True),
        ("QOSMaxSubmitJobPerUserLimit; ", True),
        ("QOSMaxCpuPerJobLimit; ", False),
        ("", True),
    ],
)
def test_only_a_limit_on_the_number_of_jobs_is_waited_for(cluster, engine, named, crowded):
    """Slurm has one sentence for all limits, and names the one it means before it; others are never met by waiting."""
    engine.submit(SMALL, "first")
    cluster.trouble["sbatch"] = Refused(named + SAME_FOR_ALL)
    if crowded:
        engine.submit(LARGE, "large")
        assert engine.poll(["large"])["large"].state is JobState.PENDING
    else:
        with pytest.raises(EngineError, match=named.rstrip("; ")):
            engine.submit(LARGE, "large")


def test_a_job_that_is_too_many_does_not_stop_those_of_other_studies(cluster, engine):
    """What holds as much has to wait; what holds less may be taken, and is asked for."""
    engine.submit(SMALL, "first")
    cluster.trouble["sbatch"] = Refused(SAME_FOR_ALL)
    engine.submit(LARGE, "large")
    assert (engine.capacity(LARGE.need), engine.capacity(), engine.capacity(SMALL.need)) == (0, 0, 48)


def test_a_time_limit_that_the_partition_does_not_allow_is_refused(cluster, engine):
    """It has the word limit in it, and no job's end makes room for it."""
    engine.submit(SMALL, "first")
    cluster.trouble["sbatch"] = Refused("Requested time limit is invalid (missing or exceeds some limit)")
    with pytest.raises(EngineError, match="time limit"):
        engine.submit(SMALL, "long")


def test_after_a_question_without_an_answer_none_is_asked_for_a_while(cluster, engine, monkeypatch):
    """Each command may take half a minute; the scheduler must have turns, to hold leases and to hear Ctrl-C."""
    engine.submit(SMALL, "first")
    engine._controller = Controller(wait_s=60.0, retry_s=3600.0)
    for command in ("sbatch", "squeue", "scancel"):
        cluster.trouble[command] = Away(f"{command}: no reply in 30 s")
    cluster.calls.clear()
    names = [f"job{i}" for i in range(8)]
    for name in names:
        engine.submit(SMALL, name)
    states = engine.poll(names)
    engine.cancel("first", 30.0)
    assert engine.capacity() == 0
    assert cluster.calls == ["sbatch"]
    assert {s.state for s in states.values()} == {JobState.PENDING}
    assert engine.trouble == "Slurm does not answer (sbatch: no reply in 30 s)."
    engine.close()
    assert cluster.calls == ["sbatch", "scancel"]


def test_what_could_not_be_asked_is_asked_when_slurm_is_back_and_once(cluster, engine):
    """Jobs are sent after one look; a SIGTERM that never left is sent late, but no second one, which means by force."""
    engine.submit(SMALL, "first")
    engine.poll(["first"])
    cluster.trouble = {"sbatch": Away("connection refused"), "scancel": Away("connection refused")}
    engine.submit(SMALL, "second")
    engine.submit(SMALL, "third")
    engine.cancel("first", 30.0)
    cluster.trouble.clear()
    cluster.calls.clear()
    engine.poll([])
    assert cluster.calls == ["squeue", "scancel", "scancel", "sbatch", "sbatch"]
    cluster.calls.clear()
    states = engine.poll(["first", "second", "third"])
    assert {s.state for s in states.values()} == {JobState.RUNNING}
    assert cluster.calls == ["squeue"]


def test_a_controller_that_is_away_at_the_first_submission_does_not_refuse(cluster, engine):
    """The job is sent after the first look that has an answer."""
    cluster.trouble["squeue"] = Away("connection refused")
    engine.submit(SMALL, "first")
    assert engine.poll(["first"])["first"].state is JobState.PENDING
    assert "connection refused" in engine.trouble
    assert "sbatch" not in cluster.calls
    cluster.trouble.clear()
    engine.poll(["first"])
    assert engine.poll(["first"])["first"].state is JobState.RUNNING
    assert engine.trouble == ""


def test_a_command_that_hangs_does_not_hold_the_scheduler(cluster, engine):
    """The user sees it soon, exit statuses count meanwhile, and the answer is used when it comes, however late."""
    for name in ("first", "second"):
        engine.submit(SMALL, name)
    engine.poll([])
    go_on = threading.Event()
    answer, cluster.hangs = cluster.jobs[:1], {"squeue": go_on}
    engine._controller._wait_s = 0.2
    began = time.monotonic()
    assert engine.poll(["first"])["first"].state is JobState.RUNNING
    assert engine.trouble == "Slurm does not answer (squeue: no reply in 0 s)."
    cluster.calls.clear()
    for _ in range(20):
        engine.poll(["first"])
    engine.submit(SMALL, "third")
    engine.cancel("first", 30.0)
    assert cluster.calls == []
    assert time.monotonic() - began < 30.0, "that of the time limits"
    (engine._place.folder / f"{engine._job('second')}.exit").write_text("3\n")
    engine._next_notes = 0.0
    assert engine.poll(["second"])["second"].exit_code == 3
    cluster.jobs = answer
    engine._controller._wait_s = 60.0
    go_on.set()
    deadline = time.monotonic() + 300.0
    while engine.trouble and time.monotonic() < deadline:
        engine.poll([])
    assert engine.trouble == ""
    engine.poll([])
    assert engine.poll(["third"])["third"].state is JobState.RUNNING
    assert cluster.calls.count("sbatch") == 1
