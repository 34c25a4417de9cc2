"""`paribus run --engine slurm` on a real cluster: a study runs unchanged, and nothing is lost or doubled."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from paribus.store.reader import Reader
from paribus.track.folder import RunFolder, read_json

STEPS = 12
STUDY = f"""
study: faked
question: Does it run?
runner: fake
base:
  preset: grpo
  set: {{schedule.steps: {STEPS}, kl: {{kind: "off"}}}}
tricks:
  token_level: {{aggregation: token_batch}}
designs:
  solo: {{kind: add_one}}
seeds: {{n: 2}}
evaluate: {{every: 6, problems: 20, samples: 2}}
"""
PATIENCE_S = 120.0


class Site:
    """A folder with a study and options, and the command that runs it."""

    def __init__(self, path):
        self.path = path
        self.home = path / "home"
        self.home.mkdir()
        (path / "study.yaml").write_text(STUDY)
        self.options()

    def options(self, **more):
        """Write the options."""
        values = {"memory": "200M", "gpus": 1, "poll": 0.3, "grace": 10, "host": "127.0.0.1", **more}
        (self.home / "engines.yaml").write_text(json.dumps({"slurm": values}))

    def start(self, *arguments, home="home", step_s=0.02):
        """Start `paribus run` in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "paribus", "run", "study.yaml", "--no-report", "--home", home, *arguments],
            cwd=self.path,
            env={**os.environ, "PARIBUS_FAKE": json.dumps({"step_s": step_s})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments, **keywords):
        """Run `paribus run` to its end; return its exit status and output."""
        process = self.start(*arguments, **keywords)
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output

    def look(self, what):
        """Return what a function of the reader and the study gives."""
        with Reader.look(self.home) as reader:
            return what(reader, reader.study("faked"))

    def attempts(self):
        """Return the attempts in the store."""
        return self.look(lambda reader, study: reader.attempts_of(study.id))

    def training(self):
        """Return the folders of the attempts that have trained some steps and are not at their end."""
        folders = [RunFolder(p) for p in sorted(self.home.glob("runs/*/a*"))]
        return [f for f in folders if not f.outcome.exists() and 3 <= len(list(f.read_metrics())) <= STEPS - 4]

    def check(self):
        """Every run has succeeded with one result, and its record has each step once."""
        runs = self.look(lambda reader, study: reader.runs_of(study.id))
        assert {str(r.state) for r in runs} == {"SUCCEEDED"}
        with closing(sqlite3.connect(self.home / "paribus.db")) as store:
            assert store.execute("SELECT COUNT(*), COUNT(DISTINCT run_id) FROM result").fetchone() == (4, 4)
        for run in runs:
            steps = [line.step for line in RunFolder.of(self.home, run.fingerprint, run.token).read_metrics()]
            assert steps == list(range(STEPS + 1))
        assert jobs("--states=PENDING,RUNNING,SUSPENDED") == []


def jobs(*arguments):
    """Return the names of the jobs in Slurm."""
    command = ["squeue", "--noheader", "--format=%j", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def until(condition):
    """Wait until a condition gives something, and return it."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.05)
    return found


@pytest.fixture
def site(slurm, tmp_path):
    """A site on the cluster; what a test leaves in the queue is taken out."""
    yield Site(tmp_path)
    subprocess.run(["scancel", "--signal=KILL", f"--user={os.getuid()}"], check=False)
    subprocess.run(["scancel", f"--user={os.getuid()}"], check=False)


def numbers(home):
    """Return the numbers of all evaluations by run."""
    found = {}
    for folder in home.glob("runs/*/a*"):
        evaluations = RunFolder(folder).read_evaluations()
        found[folder.parent.name] = [(e.step, e.correct, e.tokens) for e in evaluations]
    return found


def test_a_study_gives_the_same_numbers_on_slurm_as_on_this_machine(site):
    """Nothing in the study says where it runs; each run is one job, and what jobs ask for is said."""
    status, output = site.run("--engine", "slurm")
    assert status == 0, output
    assert "Slurm: partition default, 1 GPU, 1 CPU, 200M, default time a run" in output
    site.check()
    assert [(a.engine, a.gpus, a.outcome) for a in site.attempts()] == [("slurm", 1.0, "succeed")] * 4
    assert not (site.home / "office.json").exists()
    status, output = site.run("--engine", "local", "--slots", "2", home="there")
    assert status == 0, output
    assert numbers(site.home) == numbers(site.path / "there")
    assert len(numbers(site.home)) == 4


def test_kill_9_of_the_scheduler_and_the_next_one_finds_what_runs_and_what_waits(site):
    """Jobs run and wait while nobody watches; the same command goes on with all of them."""
    site.options(gpus=2)
    process = site.start("--engine", "slurm", step_s=0.3)
    until(lambda: len(site.training()) == 2 and len(jobs("--states=PENDING")) == 2)
    before = {a.submit_name for a in site.attempts()}
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    status, output = site.run("--engine", "slurm", step_s=0.3)
    assert status == 0, output
    assert output.count("still there") == 4
    site.check()
    assert {a.submit_name for a in site.attempts()} == before


def test_ctrl_c_writes_checkpoints_and_takes_waiting_jobs_back(site):
    """Nothing is left in the queue, and the same command goes on from the checkpoints."""
    site.options(gpus=2)
    process = site.start("--engine", "slurm", step_s=0.2)
    folders = until(lambda: len(site.training()) == 2 and len(jobs("--states=PENDING")) == 2 and site.training())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert jobs("--states=PENDING,RUNNING") == []
    assert all((f.checkpoint / "state.json").exists() for f in folders)
    status, output = site.run("--engine", "slurm")
    assert status == 0, output
    site.check()


@pytest.mark.parametrize("how", ["end of its time", "scancel", "kill -9"])
def test_a_job_that_ends_before_its_run_is_made_good(site, how):
    """The run goes on in another job under a new token; only what nobody asked for is counted against it."""
    process = site.start("--engine", "slurm", step_s=0.2)
    folder = until(lambda: site.training())[0]
    short = folder.path.parent.name
    name = next(j for j in jobs() if short in j)
    match how:
        case "kill -9":
            os.kill(read_json(folder.attempt)["supervisor"]["pid"], signal.SIGKILL)
        case "scancel":
            subprocess.run(["scancel", f"--name={name}"], check=True)
        case _:  # what `--signal=B:TERM` does
            subprocess.run(["scancel", "--batch", "--signal=TERM", f"--name={name}"], check=True)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    site.check()
    mine = {a.token: a for a in site.attempts() if a.fingerprint.startswith(short)}
    assert {t: a.outcome for t, a in mine.items()} == {1: "retry" if how == "kill -9" else "release", 2: "succeed"}
    if how == "kill -9":
        assert mine[1].reason == "the supervisor ended without a report (FAILED)"


def test_a_partition_that_does_not_exist_is_told_before_anything_is_tried(site):
    """One sentence with Slurm's own message, no traceback, nothing counted."""
    site.options(partition="gpu")
    status, output = site.run("--engine", "slurm")
    assert status == 1
    assert "error P600: Slurm refuses a job of this study: " in output
    assert "invalid partition specified: gpu" in output
    assert "Traceback" not in output
    assert site.attempts() == ()


def test_nodes_that_cannot_reach_this_machine_are_told(site):
    """The reason in the status names the node, the address and what went wrong."""
    process = site.start("--engine", "slurm")
    office = site.home / "office.json"
    until(office.exists)
    office.write_text(json.dumps({**json.loads(office.read_text()), "port": 1}))
    failed = until(lambda: [a for a in site.attempts() if a.outcome == "retry"])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert "could not reach the scheduler" in failed[0].reason
