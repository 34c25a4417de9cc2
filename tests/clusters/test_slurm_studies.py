"""`paribus run --engine slurm` on a real cluster: what only Slurm does."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.phases import read_signs

ON_TWO_NODES = """
study: pair
base:
  preset: grpo
  set:
    model: tiny
    task: search
    schedule: {steps: 30, prompts_per_step: 8, group_size: 4, minibatches: 1, epochs: 1, max_new_tokens: 20}
tricks:
  clip_higher: {clip.high: 0.28}
designs: {solo: {kind: add_one}}
seeds: {n: 1}
evaluate: {every: 30, problems: 16, primary: eval/heldout/avg_at_1, checkpoint: final}
runner: {kind: native, processes: 2}
resources: {gpus: 0, nodes: 2}
"""
"""Two runs of the native runner, each with a process on each node."""


def evaluations(home):
    """Return what each run has measured, by its arm."""
    found = {}
    for folder in map(RunFolder, home.glob("runs/*/a*")):
        if folder.result.exists():
            found[read_json(folder.job)["arm"]] = [(e.step, e.correct, e.tokens) for e in folder.read_evaluations()]
    return found


def test_a_run_on_two_nodes_outlives_a_process_that_is_killed_on_the_second(slurm_site):
    """All of its processes end, it is tried again, and its numbers are those of two processes on one machine."""
    slurm_site.options(gpus=0, memory="900M")
    file = slurm_site.path / "pair.yaml"
    file.write_text(ON_TWO_NODES)
    command = ("run", "pair.yaml", "--no-report", "--home")
    process = slurm_site.begin(*command, "home", "--engine", "slurm")

    def trained():
        for folder in slurm_site.home.glob("runs/*/a1"):
            signs = read_signs(folder)
            if len(signs) == 2 and min(sign.step for sign in signs.values()) > 1:
                return [sign for _, sign in sorted(signs.items())]
        return None

    signs = slurm_site.until(lambda: trained() or process.poll() is not None)
    assert isinstance(signs, list), slurm_site.ended(process)
    first, second = signs
    assert (first.elsewhere, second.elsewhere) == (False, True)
    os.kill(second.pid, signal.SIGKILL)
    status, output = slurm_site.ended(process)
    assert status == 0, output
    assert "2 CPU on 2 nodes" in output
    attempts = sorted((a.token, a.outcome) for a in slurm_site.attempts("pair"))
    assert attempts == [(1, "retry"), (1, "succeed"), (2, "succeed")], output
    assert not any(Path(f"/proc/{sign.pid}").exists() for sign in (first, second))
    shutil.copytree(slurm_site.home / "cache", slurm_site.path / "there" / "cache")  # the model need not be made again
    file.write_text(ON_TWO_NODES.replace(", nodes: 2", ""))
    status, output = slurm_site.ended(slurm_site.begin(*command, "there", "--engine", "local"))
    assert status == 0, output
    assert evaluations(slurm_site.home) == evaluations(slurm_site.path / "there")
    assert len(evaluations(slurm_site.home)) == 2


def is_first(folder):
    """Return whether an attempt is at the base with the first seed."""
    job = read_json(folder.job)
    return (job["arm"], job["seed"]) == ("base", 0)


@pytest.mark.parametrize("how", ["end of its time", "scancel"])
def test_a_job_that_slurm_ends_before_its_run_is_made_good(slurm_site, how):
    """The run goes on in another job under a new token, and nothing is counted against it."""
    process = slurm_site.start(rules=[slurm_site.held(arm="base", seed=0)])
    folder = slurm_site.until(lambda: [f for f in slurm_site.training() if is_first(f)])[0]
    short = folder.path.parent.name
    name = next(j for j in slurm_site.jobs() if short in j)
    match how:
        case "scancel":
            subprocess.run(["scancel", f"--name={name}"], check=True)
        case _:  # what `--signal=B:TERM` does
            subprocess.run(["scancel", "--batch", "--signal=TERM", f"--name={name}"], check=True)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    slurm_site.check()
    mine = {a.token: a for a in slurm_site.attempts() if a.fingerprint.startswith(short)}
    assert {t: a.outcome for t, a in mine.items()} == {1: "release", 2: "succeed"}


def test_a_partition_that_does_not_exist_is_told_before_anything_is_tried(slurm_site):
    """One sentence with Slurm's own message, no traceback, nothing counted."""
    slurm_site.options(partition="gpu")
    status, output = slurm_site.run()
    assert status == 1
    assert "error P600: Slurm refuses a job of this study: " in output
    assert "invalid partition specified: gpu" in output
    assert "Traceback" not in output
    assert slurm_site.attempts() == ()


def test_nodes_that_cannot_reach_this_machine_are_told(slurm_site):
    """The runs train all the same: their results are taken from their folders, and each is told."""
    slurm_site.options(extra=["--begin=now+20"])  # no job reads the file before it is spoiled
    process = slurm_site.start()
    server = slurm_site.home / "server.json"
    slurm_site.until(server.exists)
    server.write_text(json.dumps({**json.loads(server.read_text()), "port": 1}))
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert output.count("its end was found in its folder; it had reached no scheduler") == 4
    slurm_site.check()


def test_a_job_that_is_cancelled_in_the_queue_is_submitted_again(slurm_site):
    """Nothing is counted; five such jobs would otherwise make the run fail."""
    slurm_site.options(gpus=2)
    process = slurm_site.start(rules=[slurm_site.held()])
    attempts = slurm_site.until(lambda: len(slurm_site.training()) == 2 and slurm_site.attempts())
    waits = next(a for a in attempts if a.started_at is None)
    name = next(j for j in slurm_site.jobs() if j.startswith(waits.submit_name))
    subprocess.run(["scancel", f"--name={name}"], check=True)
    slurm_site.release()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    slurm_site.check()
    mine = {a.token: a for a in slurm_site.attempts() if a.run_id == waits.run_id}
    assert {t: a.outcome for t, a in mine.items()} == {1: "release", 2: "succeed"}
    assert all(r.infrastructure_failures == 0 for r in slurm_site.runs())
