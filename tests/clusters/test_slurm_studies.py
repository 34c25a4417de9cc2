"""`paribus run --engine slurm` on a real cluster: what only Slurm does."""

import json
import subprocess

import pytest

from paribus.run_folder.folder import read_json


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
