"""The simulator against reality: a study's wall time as `paribus plan --cluster` predicts it, and as it was measured.

Each study is trained with a seed or two first, so that the home folder knows what its runs cost. Then the plan with
more seeds is played on a cluster of two cores, and trained on two slots. Measured is the time from the first claim to
the last result in the store. The first two studies are the shipped `smoke` and `quickstart`; the third has a hundred
runs of a program that sleeps, each arm for another time. Where other programs load the machine, changes of that load
are in the first error. The second is that of the simulator alone: the same runs played with the hours that they took.

    python benchmarks/simulator.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

from paribus.home import data_root
from paribus.scheduler.simulated_cluster import ClusterShape
from paribus.scheduler.simulation import play
from paribus.store.models import AttemptRecord, StudyRecord
from paribus.store.store import Store

BOUND = 0.10
"""Largest error of a wall time that is played with the hours of its runs, as a share of the measured one."""

PROGRAM = """import json, os, time
s, out = json.load(open(os.environ["PARIBUS_SETTINGS"])), os.environ["PARIBUS_OUT"]
for step in range(s["first_step"], s["schedule.steps"] + 1):
    if step:
        time.sleep(s["optimizer.learning_rate"])
    if step % s["evaluate.every"] == 0 or step == s["schedule.steps"]:
        n = s["evaluate.problems"]
        right = [(i + s["seed"]) % 2 for i in range(n)]
        evaluation = {"step": step, "set": "heldout", "samples": 1, "problems": [f"p{i}" for i in range(n)],
                      "correct": right, "truncated": [0] * n, "tokens": [1] * n, "tokens_correct": right,
                      "answers": [{str(r): 1} for r in right]}
        json.dump(evaluation, open(f"{out}/evals/heldout-{step:06d}.json", "w"))
    with open(f"{out}/metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "values": {"reward/mean": 0.5}}) + "\\n")
json.dump({"status": "succeeded"}, open(f"{out}/result.json", "w"))
"""

SLEEPERS = """study: sleepers
runner: {kind: command, argv: [python, sleeps.py], supports: [optimizer.learning_rate,
  schedule.prompts_per_step, baseline=none, scale=none, ratio=none, clip=none, aggregation=seq_sum]}
base: {preset: reinforce, set: {optimizer.learning_rate: 0.2, schedule: {steps: 10, prompts_per_step: 16}}}
designs: {d: {kind: grid, over: {optimizer.learning_rate: [0.2, 0.22, 0.24, 0.26, 0.28, 0.3, 0.32, 0.34, 0.36, 0.38]}}}
seeds: {n: 1}
evaluate: {every: 10, problems: 10, checkpoint: final}
allow: [approximate, magnitude, seeds]
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A study, the seeds that are trained first, and those that are predicted."""

    name: str
    file: Path
    first: int
    seeds: int


def paribus(home: Path, *arguments: str) -> str:
    """Run the command line in a home folder; return what it printed."""
    environment = {**os.environ, "PARIBUS_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "paribus", *arguments]
    done = subprocess.run(command, cwd=home.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def trained(home: Path, case: Case, seeds: int) -> None:
    """Train a study with so many seeds on two slots."""
    paribus(home, "run", str(case.file), "--set", f"seeds.n={seeds}", "--slots", "2", "--no-report")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a study.

    Attributes:
        predicted: what the plan said.
        took: seconds that it took to say so.
        wall: seconds from the first claim to the last result.
        runs: runs that were trained.
        replayed: the wall time played with the hours of these very runs: the error of the simulator alone.
    """

    predicted: dict[str, Any]
    took: float
    wall: float
    runs: int
    replayed: float


def replayed(study: StudyRecord, attempts: Sequence[AttemptRecord]) -> float:
    """Return the wall time of the study on two cores, if each arm takes as long as its runs took on average.

    Their starts are in it: the first ones of a process wait until it has imported the libraries.
    """
    runs = {run.fingerprint: run.arm for run in study.plan.runs}
    spent: dict[str, list[float]] = {}
    for a in attempts:
        spent.setdefault(runs[a.fingerprint], []).append((a.ended_at or 0.0) - a.claimed_at)
    known = set(runs) - {a.fingerprint for a in attempts}
    counts = Counter(runs[name] for name in {a.fingerprint for a in attempts})
    hours = {arm: fsum(seconds) / counts[arm] / 3600 for arm, seconds in spent.items()}
    return play(study.plan, [ClusterShape.read("1x2xCPU")], hours, recorded=known).seconds


def compared(case: Case, folder: Path) -> Measured:
    """Train a study a little, predict it, train it, and return what came of it."""
    home = folder / f"home-{case.name}"
    trained(home, case, case.first)
    begun = time.monotonic()
    shape = ("--set", f"seeds.n={case.seeds}", "--cluster", "1x2xCPU", "--json")
    predicted = json.loads(paribus(home, "plan", str(case.file), *shape))["cluster"]
    took = time.monotonic() - begun
    trained(home, case, case.seeds)
    with Store.open(home) as store:
        study = store.study(case.name)
        attempts = [a for a in store.attempts_of(study.id) if a.study_id == study.id]
    wall = max(a.ended_at or 0.0 for a in attempts) - min(a.claimed_at for a in attempts)
    again = replayed(study, attempts)
    runs = len({a.fingerprint for a in attempts})
    for a in attempts:
        if a.outcome not in ("succeed", "stop_early"):
            print(f"{a.submit_name}: {a.outcome}, {a.reason}", file=sys.stderr)
    return Measured(predicted=predicted, took=took, wall=wall, runs=runs, replayed=again)


def main() -> None:
    """Print a row a study; end with 1 if an error is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    parser.add_argument("--only", choices=("smoke", "quickstart", "sleepers"), help="one of the studies")
    given = parser.parse_args()
    quick = given.quick
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sleeps.py").write_text(PROGRAM)
        (folder / "sleepers.yaml").write_text(SLEEPERS)
        shipped = data_root("ablations") / "studies"
        cases = (
            Case(name="smoke", file=shipped / "smoke.yaml", first=2, seeds=4 if quick else 8),
            Case(name="quickstart", file=shipped / "quickstart.yaml", first=1, seeds=2 if quick else 4),
            Case(name="sleepers", file=folder / "sleepers.yaml", first=1, seeds=2 if quick else 11),
        )
        print(
            "| study | runs | predicted, s (low to high) | measured, s | error "
            "| played with the hours of these runs, s | error | prediction took, s |\n|---|---|---|---|---|---|---|---|"
        )
        for case in [each for each in cases if given.only in (None, each.name)]:
            found = compared(case, folder)
            wall, low, high = (found.predicted[key] for key in ("one", "wall_s_low", "wall_s_high"))
            wall = wall["wall_s"]
            errors = wall / found.wall - 1, found.replayed / found.wall - 1
            missed |= abs(errors[1]) > BOUND
            print(
                f"| {case.name} | {found.runs} | {wall:.1f} ({low:.1f} to {high:.1f}) | {found.wall:.1f} "
                f"| {errors[0]:+.1%} | {found.replayed:.1f} | {errors[1]:+.1%} | {found.took:.1f} |",
                flush=True,
            )
    sys.exit(missed)


if __name__ == "__main__":
    main()
