"""The simulator against reality: a study's wall time as `paribus plan --cluster` predicts it, and as it was measured.

Each study is trained with a seed or two first, so that the home folder knows what its runs cost. Then the plan with
more seeds is played on a cluster of two cores, and trained on two slots. Measured is the time from the first claim to
the last result in the store. The first study trains the shipped `smoke`; the second has a hundred runs of a program
that sleeps, each arm for another time. Where other programs load the machine, changes of that load are in the error.

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
from dataclasses import dataclass
from pathlib import Path

from paribus.home import data_root
from paribus.store.store import Store

BOUND = 0.10
"""Largest error of a predicted wall time, as a share of the measured one."""

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


def compared(case: Case, folder: Path) -> tuple[dict[str, object], float, int, float]:
    """Return what was predicted, the measured wall time, the number of runs, and the seconds of the prediction."""
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
    return predicted, wall, len(attempts), took


def main() -> None:
    """Print a row a study; end with 1 if an error is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    parser.add_argument("--only", choices=("smoke", "sleepers"), help="one of the two studies")
    given = parser.parse_args()
    quick = given.quick
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sleeps.py").write_text(PROGRAM)
        (folder / "sleepers.yaml").write_text(SLEEPERS)
        smoke = data_root("ablations") / "studies" / "smoke.yaml"
        cases = (
            Case(name="smoke", file=smoke, first=2, seeds=4 if quick else 8),
            Case(name="sleepers", file=folder / "sleepers.yaml", first=1, seeds=2 if quick else 11),
        )
        print(
            "| study | runs | predicted, s (low to high) | measured, s | error | prediction took, s |\n"
            "|---|---|---|---|---|---|"
        )
        for case in [each for each in cases if given.only in (None, each.name)]:
            predicted, wall, runs, took = compared(case, folder)
            one = predicted["one"]
            assert isinstance(one, dict)
            error = one["wall_s"] / wall - 1
            missed |= abs(error) > BOUND
            low, high = predicted["wall_s_low"], predicted["wall_s_high"]
            print(
                f"| {case.name} | {runs} | {one['wall_s']:.1f} ({low:.1f} to {high:.1f}) | {wall:.1f} "
                f"| {error:+.1%} | {took:.1f} |",
                flush=True,
            )
    sys.exit(missed)


if __name__ == "__main__":
    main()
