"""The Slurm engine on a real cluster of two nodes with fake GPUs."""

import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.contract import Resources
from paribus.engines.base import EngineSettings, JobState
from paribus.engines.slurm.engine import SlurmEngine
from paribus.errors import EngineError, TooLarge
from paribus.testing.engine_suite import EngineTestCase, ended, job, started, until


class TestSlurm(EngineTestCase):
    """The conformance suite."""

    @pytest.fixture
    def engine(self, make):
        """An engine with two slots."""
        return make(slots=2)


@pytest.fixture
def make(slurm, tmp_path):
    """Make engines whose jobs get a second's grace; all are closed at the end."""
    made = []

    def build(folder="engine", slots=None, **more):
        values = {"memory": "200M", "poll": 0.2, "grace": 1, **more}
        options = tmp_path / f"options-{len(made)}.yaml"
        options.write_text(json.dumps({"slurm": values}))
        made.append(SlurmEngine(EngineSettings(runner="fake", folder=tmp_path / folder, slots=slots, options=options)))
        return made[-1]

    yield build
    for one in made:
        one.close()


def jobs_of(engine, name):
    """Return the ids of the jobs in Slurm that have an engine's name for a job."""
    command = ["squeue", "--noheader", "--states=all", f"--name={name}.{engine._suffix}", "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_job_that_the_last_process_submitted_is_found_by_name(make, tmp_path):
    """After kill -9 between sbatch and the note of it, nothing is submitted twice, not even when the job has ended."""
    code = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from paribus.engines.slurm import engine as slurm
        from paribus.engines.base import EngineSettings
        from paribus.testing.engine_suite import job
        def submit(self, script, submit=slurm.Slurm.submit):
            submit(self, script)
            os.kill(os.getpid(), signal.SIGKILL)
        slurm.Slurm.submit = submit
        options = Path({str(tmp_path / "options.yaml")!r})
        options.write_text("slurm: {{memory: 200M}}")
        folder = Path({str(tmp_path / "engine")!r})
        engine = slurm.SlurmEngine(EngineSettings(runner="fake", folder=folder, options=options))
        engine.submit(job("sleep", {str(tmp_path / "pid")!r}), "mine")
    """)
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -9
    second = make()
    assert second.find("mine") == second.submit(job("sleep", tmp_path / "pid"), "mine")
    started(second, "mine", tmp_path / "pid")
    assert len(jobs_of(second, "mine")) == 1
    second.cancel("mine", 60.0)
    assert ended(second, "mine").exit_code == 7
    third = make()
    third.submit(job("touch", tmp_path / "file"), "mine")
    assert third.poll(["mine"])["mine"].state is JobState.ENDED
    assert not (tmp_path / "file").exists()


def test_a_job_that_slurm_has_forgotten_is_known_by_its_exit_status(make, tmp_path):
    """Clusters forget jobs soon; what a job returned lies beside its script."""
    first = make()
    first.submit(job("exit", 3), "old")
    ended(first, "old")
    until(lambda: jobs_of(first, "old") == [])
    second = make()
    assert second.find("old") is not None
    assert second.poll(["old"])["old"].exit_code == 3


def test_two_home_folders_do_not_take_each_others_jobs(make, tmp_path):
    """The same run in two stores has one name in both, and two in Slurm."""
    here, there = make("here"), make("there")
    here.submit(job("exit", 3), "same")
    assert there.find("same") is None
    there.submit(job("exit", 4), "same")
    assert (ended(here, "same").exit_code, ended(there, "same").exit_code) == (3, 4)


def test_a_submission_without_an_answer_is_looked_for_and_not_repeated(make, tmp_path, monkeypatch):
    """The command says that it cannot reach the controller, although the job was taken: it is there once."""
    real = subprocess.run(["which", "sbatch"], capture_output=True, text=True, check=True).stdout.strip()
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{real} \"$@\"\necho 'sbatch: error: Unable to contact slurm controller' >&2\nexit 1\n")
    fake.chmod(0o755)
    engine = make()
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{fake.parent}:{path}")
    engine.submit(job("exit", 5), "once")
    assert engine.poll(["once"])["once"].state is not JobState.UNKNOWN
    assert engine.capacity() == 0 or ended(engine, "once")
    monkeypatch.setenv("PATH", path)
    assert ended(engine, "once").exit_code == 5
    assert len(jobs_of(engine, "once")) == 1


def test_while_slurm_is_away_jobs_wait_and_the_state_known_last_counts(make, tmp_path, monkeypatch):
    """Without a controller nothing is lost: what ran is still said to run, what could not be sent is sent later."""
    monkeypatch.setattr("paribus.engines.slurm.engine.RETRY_S", 0.5)
    engine = make()
    engine.submit(job("sleep", tmp_path / "pid"), "first")
    started(engine, "first", tmp_path / "pid")
    until(lambda: engine.poll(["first"])["first"].state is JobState.RUNNING)
    conf = os.environ["SLURM_CONF"]
    nowhere = tmp_path / "nowhere.conf"
    nowhere.write_text("\n".join(
        "SlurmctldPort=1" if line.startswith("SlurmctldPort") else line for line in Path(conf).read_text().splitlines()
    ) + "\nMessageTimeout=2\nSlurmctldTimeout=2\n")  # fmt: skip
    monkeypatch.setenv("SLURM_CONF", str(nowhere))
    engine.submit(job("exit", 4), "second")
    states = engine.poll(["first", "second"])
    assert (states["first"].state, states["second"].state) == (JobState.RUNNING, JobState.PENDING)
    assert engine.trouble.startswith("Slurm does not answer (sbatch: ")
    assert engine.capacity() == 0
    monkeypatch.setenv("SLURM_CONF", conf)
    assert ended(engine, "second").exit_code == 4
    engine.cancel("first", 60.0)
    assert ended(engine, "first").exit_code == 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "nope"}, r"invalid partition specified: nope.*`slurm` in .*options-0.yaml"),
        ({"gpus": 5}, "Requested node configuration is not available"),
        ({"memory": "9T"}, "Memory specification can not be satisfied"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_own_words(make, options, said):
    """The job was not taken; the user reads why, and where to change it."""
    engine = make(**options)
    with pytest.raises(EngineError, match=said):
        engine.submit(job("exit", 0), "bad")
    assert engine.poll(["bad"])["bad"].state in (JobState.UNKNOWN, JobState.ENDED)  # Slurm lists some as failed
    assert engine.capacity() == engine.slots()


def test_a_waiting_job_says_why_and_can_be_taken_back(make, tmp_path):
    """A job that is held never runs; cancelled, it has ended without an exit code."""
    engine = make(extra=["--hold"])
    engine.submit(job("touch", tmp_path / "file"), "held")
    until(lambda: engine.poll(["held"])["held"].reason == "JobHeldUser")
    engine.cancel("held", 30.0)
    status = ended(engine, "held")
    assert (status.exit_code, status.reason) == (None, "CANCELLED")
    assert not (tmp_path / "file").exists()


def test_jobs_on_gpus_are_spread_over_the_nodes_and_see_their_own(make, tmp_path):
    """Four jobs with one of four GPUs each run at once; two a node, each pinned to its own."""
    engine = make()
    need = engine.need(Resources(gpus=0.5))
    assert need.gpus == 1.0
    for i in range(4):
        engine.submit(replace(job("sleep", tmp_path / f"pid{i}"), need=need), f"sleep{i}")
    pids = [started(engine, f"sleep{i}", tmp_path / f"pid{i}") for i in range(4)]
    seen = [Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0") for pid in pids]
    places = {(dict(e.partition("=")[::2] for e in v)[k]) for v in seen for k in ("SLURMD_NODENAME",)}
    assert places == {"n1", "n2"}
    pinned = [tuple(sorted(e for e in v if e.startswith(("CUDA_VISIBLE", "SLURMD_NODENAME=")))) for v in seen]
    assert len(set(pinned)) == 4


def test_what_no_node_has_is_refused(make):
    """Slurm's own list of nodes tells, before anything is submitted."""
    with pytest.raises(TooLarge, match="no node of the cluster has that: there are nodes with 2 GPUs and 2 CPU cores"):
        make().need(Resources(gpus=3))
    assert make().need(Resources(gpus=2, cpus=2)).gpus == 2.0


def test_a_job_without_gpus_sees_none_and_uses_one_thread(make, tmp_path, monkeypatch):
    """Numbers do not depend on the engine."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    engine = make()
    engine.submit(job("env", tmp_path / "told"), "tell")
    assert ended(engine, "tell").exit_code == 0
    told = json.loads((tmp_path / "told").read_text())
    assert (told["CUDA_VISIBLE_DEVICES"], told["OMP_NUM_THREADS"], told["PARIBUS_GRACE_S"]) == ("", "1", "1")


def test_names_that_mean_something_to_the_shell_and_to_slurm_are_only_names(make, tmp_path, monkeypatch):
    """Folders with quotes, blanks, %, # and $ hold script, log and exit status."""
    odd = tmp_path / 'it\'s "odd" %j #1 $HOME'
    odd.mkdir()
    monkeypatch.chdir(odd)
    engine = make(odd / "engine")
    engine.submit(job("touch", "here"), "odd")
    assert ended(engine, "odd").exit_code == 0
    assert (odd / "here").exists()
    files = {p.suffix for p in (odd / "engine" / "slurm").iterdir()}
    assert files == {".sh", ".log", ".exit"}


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
