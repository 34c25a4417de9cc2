"""`paribus run` on real clusters: a study runs unchanged on each, and nothing is lost or doubled."""

import os
import signal
import time
from pathlib import Path

import pytest

from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.phases import read_signs
from paribus.scheduler.home_lock import lock_owner
from support.site import Site

pytestmark = pytest.mark.filterwarnings("default")  # Ray has some of its own
SAID = {
    "slurm": "Slurm: partition default, 1 GPU, 1 CPU, 200M, default time per run",
    "ray": "Ray: 1 CPU, 1 GPU per run, up to 4 at a time",
}


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


def numbers(home):
    """Return the numbers of all evaluations by run."""
    found = {}
    for folder in home.glob("runs/*/a*"):
        evaluations = RunFolder(folder).read_evaluations()
        found[folder.parent.name] = [(e.step, e.correct, e.tokens) for e in evaluations]
    return found


def test_a_study_gives_the_same_numbers_on_a_cluster_as_on_this_machine(site):
    """Nothing in the study says where it runs; each run is one job, and what jobs ask for is said."""
    status, output = site.run()
    assert status == 0, output
    assert SAID[site.engine] in output
    site.check()
    assert [(a.engine, a.gpus, a.outcome) for a in site.attempts()] == [(site.engine, 1.0, "succeed")] * 4
    assert not (site.home / "server.json").exists()
    status, output = site.run("--slots", "2", engine="local", home="there")
    assert status == 0, output
    assert numbers(site.home) == numbers(site.path / "there")
    assert len(numbers(site.home)) == 4


def test_kill_9_of_the_scheduler_and_the_next_one_finds_what_runs_and_what_waits(site):
    """Jobs run and wait while nobody watches; the same command goes on with all of them."""
    site.options(gpus=2)
    process = site.start(rules=[site.held()])
    site.until(lambda: len(site.training()) == 2 and len(site.attempts()) == 4)
    before = {a.submit_name for a in site.attempts()}
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    process, taken_over = site.start(), 0
    while taken_over < 4 and (line := process.stdout.readline()):
        taken_over += "still running, taken over" in line
    site.release()
    status, output = site.ended(process)
    assert status == 0, output
    assert taken_over == 4
    site.check()
    assert {a.submit_name for a in site.attempts()} == before


def test_jobs_begin_train_and_end_while_no_scheduler_is_there(site):
    """For longer than a lease: each run has one attempt, and the time that nobody watched is charged as it was."""
    site.options(gpus=2)
    process = site.start(step_s=3.0)
    first = site.until(lambda: len(site.training()) == 2 and len(site.attempts()) == 4 and site.training())
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(75.0)
    assert all(folder.outcome.exists() for folder in first)
    assert len(list(site.home.glob("runs/*/a1/metrics.jsonl"))) == 4
    status, output = site.run()
    assert status == 0, output
    site.check()
    assert [(a.token, a.outcome) for a in site.attempts()] == [(1, "succeed")] * 4
    assert all(30.0 < a.charged / a.gpus < 65.0 for a in site.attempts())


def test_ctrl_c_writes_checkpoints_and_takes_waiting_jobs_back(site):
    """Nothing is left in the queue, and the same command goes on from the checkpoints."""
    site.options(gpus=2)
    process = site.start(rules=[site.held()])
    folders = site.until(lambda: len(site.training()) == 2 and len(site.attempts()) == 4 and site.training())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert site.jobs() == []
    assert all((f.checkpoints / "index.json").exists() for f in folders)
    status, output = site.run()
    assert status == 0, output
    site.check()


def test_a_supervisor_that_is_killed_costs_one_attempt(site):
    """The run goes on in another job under a new token, and the failure is counted."""
    process = site.start(rules=[site.held()])
    folder = site.until(site.training)[0]
    os.kill(read_json(folder.attempt)["supervisor"]["pid"], signal.SIGKILL)
    site.release()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    site.check()
    mine = {a.token: a for a in site.attempts() if a.fingerprint.startswith(folder.path.parent.name)}
    assert {t: a.outcome for t, a in mine.items()} == {1: "retry", 2: "succeed"}
    assert mine[1].reason.startswith("the supervisor ended without a report")


@pytest.fixture
def hang(site, request):
    """Let the controller of the site's cluster hang, or go on."""
    if site.engine == "ray":
        yield request.getfixturevalue("ray_cluster").does
        return
    controller = int((request.getfixturevalue("slurm_cluster").parent / "slurmctld.pid").read_text())
    orders = {"hang": signal.SIGSTOP, "go on": signal.SIGCONT}
    yield lambda order: os.kill(controller, orders[order])
    os.kill(controller, signal.SIGCONT)


def test_a_controller_that_hangs_is_one_line_and_what_it_could_not_be_asked_is_done_later(site, hang):
    """Runs that train end all the same; those that wait are cancelled in the cluster when it answers."""
    site.options(gpus=2)
    process = site.start(step_s=1.0)
    site.until(lambda: len(site.training()) == 2 and len(site.attempts()) == 4)
    hang("hang")
    try:
        trouble = site.until(lambda: (owner := lock_owner(site.home)) and owner.trouble)
        status, said = site.ended(Site.start(site, "cancel", "faked"))
        assert status == 0, said
        assert f"{trouble} The cancellation is recorded" in said
        site.until(lambda: all(run.terminal for run in site.runs()))
        assert sum(run.state == "CANCELLED" for run in site.runs()) >= 2
    finally:
        hang("go on")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count(f"{site.engine.capitalize()} does not answer (") == 1
    assert output.count(f"The engine {site.engine} answers again, after ") <= 1  # none if all had ended before it did
    assert "Traceback" not in output
    assert site.until(lambda: site.jobs() == [])


def evaluations(home):
    """Return what each run has measured, by its arm."""
    found = {}
    for folder in map(RunFolder, home.glob("runs/*/a*")):
        if folder.result.exists():
            found[read_json(folder.job)["arm"]] = [(e.step, e.correct, e.tokens) for e in folder.read_evaluations()]
    return found


@pytest.mark.timeout(900)
def test_a_run_on_two_nodes_outlives_a_process_that_is_killed_on_the_second(site, warm_models):
    """All of its processes end, it is tried again, and its numbers are those of two processes on one machine."""
    site.options(gpus=0, memory={"slurm": "900M", "ray": 0.5}[site.engine])
    there = site.path / "there"
    there.mkdir()
    for home in (site.home, there):
        (home / "cache").symlink_to(warm_models)
    file = site.path / "pair.yaml"
    command = ("run", "pair.yaml", "--no-report", "--home")
    file.write_text(ON_TWO_NODES.replace(", nodes: 2", ""))
    status, output = site.ended(site.begin(*command, "there", "--engine", "local"))
    assert status == 0, output
    file.write_text(ON_TWO_NODES)
    process = site.begin(*command, "home", "--engine", site.engine)

    def trained():
        for folder in site.home.glob("runs/*/a1"):
            signs = read_signs(folder)
            if len(signs) == 2 and min(sign.step for sign in signs.values()) > 1:
                return [sign for _, sign in sorted(signs.items())]
        return None

    signs = site.until(lambda: trained() or process.poll() is not None)
    assert isinstance(signs, list), site.ended(process)
    first, second = signs
    assert (first.elsewhere, second.elsewhere) == (False, True)
    os.kill(second.pid, signal.SIGKILL)
    status, output = site.ended(process)
    assert status == 0, output
    assert {"slurm": "2 CPU on 2 nodes", "ray": "1 CPU, 0.5 GiB memory on each of 2 nodes"}[site.engine] in output
    attempts = sorted((a.token, a.outcome) for a in site.attempts("pair"))
    assert attempts == [(1, "retry"), (1, "succeed"), (2, "succeed")], output
    assert not any(Path(f"/proc/{sign.pid}").exists() for sign in (first, second))
    assert evaluations(site.home) == evaluations(there)
    assert len(evaluations(site.home)) == 2
