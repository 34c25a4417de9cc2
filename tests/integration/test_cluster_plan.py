"""`paribus plan --cluster` as a person types it, and the order of its runs beside that of a real study."""

import json
import os
import subprocess
import sys

import pytest

from paribus.scheduler.simulated_cluster import ClusterShape
from paribus.scheduler.simulation import play
from paribus.store.store import Store

STUDY = """study: paper
runner: fake
base: {preset: grpo, set: {kl: off, model: tiny, schedule.steps: 2}}
tricks: {wide: {clip.high: 0.3}, narrow: {clip.high: 0.1}}
designs: {d: {kind: add_one}}
seeds: {n: 3}
evaluate: {every: 1, problems: 5}
allow: [inert, seeds, same_responses, identical_rows]
"""


@pytest.fixture
def paribus(tmp_path):
    """A function that runs the command line in a folder with the study."""
    (tmp_path / "paper.yaml").write_text(STUDY)

    def run(*arguments):
        environment = {**os.environ, "PARIBUS_HOME": str(tmp_path / "home"), "COLUMNS": "160"}
        command = [sys.executable, "-m", "paribus", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.slow
def test_a_plan_says_how_long_the_study_takes_on_a_cluster_and_on_two(paribus, tmp_path):
    """With stated hours: a table with its sources and rates; as JSON the same numbers. Nothing is made in the home."""
    stated = ("--set", "budget.prior={low: 1, expected: 2, high: 4}", "--cluster", "1x3xH100")
    done = paribus("plan", "paper.yaml", *stated, "--preemption-hours", "7")
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    for part in (
        "on a cluster of 1 node with 3 H100 GPUs, simulated",
        "a run holds 1 GPU; its hours by `budget.prior`; an attempt starts in 0 s, as none is recorded",
        "a failure every 50,000 device hours, a preemption every 7 h of an attempt, drawn with seed 0",
        "one cluster two clusters",
        "first verdict",
    ):
        assert part in said
    plain = json.loads(paribus("plan", "paper.yaml", *stated, "--failure-hours", "0", "--json").stdout)["cluster"]
    assert plain["one"]["wall_s"] == pytest.approx(6 * 3600, abs=1)
    assert plain["two"]["wall_s"] == pytest.approx(4 * 3600, abs=1)
    assert (plain["wall_s_low"], plain["wall_s_high"]) == pytest.approx((3 * 3600, 12 * 3600), abs=1)
    assert plain["one"]["first_verdict_s"] == pytest.approx(6 * 3600, abs=1)
    assert plain["failure_device_hours"] is None
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--cluster", "8"), 1, "`8` is no cluster: write NODESxGPUSxKIND, for example 64x8xH100"),
        (("--cluster", "1x1xCPU"), 1, "how long a run of `base`, `+ wide`, `+ narrow` takes is not known"),
        (("--draw", "3"), 2, "need --cluster"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_sentence(paribus, arguments, status, message):
    """A misspelt cluster, hours from nowhere, and options without a cluster."""
    done = paribus("plan", "paper.yaml", *arguments)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_real_study_starts_its_runs_in_the_order_in_which_the_simulated_one_does(paribus, tmp_path):
    """The same plan with one slot, trained and on paper: equal order; afterwards its hours are the recorded ones."""
    assert paribus("run", "paper.yaml", "--slots", "1", "--no-report").returncode == 0
    with Store.open(tmp_path / "home") as store:
        study = store.study("paper")
        claimed = sorted(store.attempts_of(study.id), key=lambda attempt: attempt.claimed_at)
    plan = study.plan
    found = play(plan, [ClusterShape.read("1x1xCPU")], {arm.key: 1.0 for arm in plan.arms})
    planned = {(run.arm, run.seed): run.fingerprint for run in plan.runs}
    assert [planned[run.arm, run.seed] for run in found.ended] == [attempt.fingerprint for attempt in claimed]
    done = paribus("plan", "paper.yaml", "--set", "seeds.n=5", "--cluster", "1x1xCPU", "--json")
    plain = json.loads(done.stdout)["cluster"]
    assert plain["sources"] == ["recorded runs of the same recipe"]
    assert (plain["one"]["attempts"], plain["starts_recorded"]) == (6, 9)
    assert plain["start_s"] > 0
