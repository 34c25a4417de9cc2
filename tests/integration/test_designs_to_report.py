"""Each kind of design from its study file to the printed plan, and through the fake runner to the report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "plan" / "designs.txt"
STUDY = """\
study: designs
runner: fake
base: {preset: grpo, set: {kl: off, schedule: {steps: 2, minibatches: 8}}}
tricks:
  clip_higher: {clip.high: 0.28}
  token_level: {aggregation: token_batch}
  no_std: {scale: none}
designs:
  ladder: {kind: cumulative, order: [clip_higher, token_level], reverse: true}
  two: {kind: pairs, tricks: [clip_higher, token_level]}
  half: {kind: fractional, resolution: 3}
  levels: {kind: one_at_a_time, over: {clip.high: [0.28], scale: [none]}}
  cells: {kind: grid, over: {clip.high: [0.2, 0.28], aggregation: [seq_mean, token_batch]}}
  all: {kind: factorial}
seeds: {n: SEEDS}
evaluate: {every: 1, problems: 20, samples: 1}
budget: {prior: {low: 0.5, expected: 1.0, high: 3.0}}
allow: [confounded]
"""


@pytest.fixture
def paribus(tmp_path):
    """A function that runs the command line beside the study file, which has the number of seeds that is asked for."""

    def run(*arguments, seeds=1):
        (tmp_path / "study.yaml").write_text(STUDY.replace("SEEDS", str(seeds)))
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "PARIBUS_"))}
        environment |= {
            "PARIBUS_HOME": str(tmp_path / "home"),
            "PARIBUS_FAKE": json.dumps({"step_s": 0.0, "rules": []}),
        }
        command = [sys.executable, "-m", "paribus", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_plan_says_what_each_design_measures(paribus):
    """A golden output: cells, runs, precision, detectable effects, hours, aliases and cheaper designs."""
    printed = paribus("plan", "study.yaml", seeds=5)
    start, end = printed.index("what the designs measure"), printed.index("warnings (`allow")
    found = "\n".join(line.rstrip() for line in printed[start:end].splitlines()) + "\n"
    assert found == GOLDEN.read_text()
    assert max(map(len, printed.splitlines())) <= 100


def test_the_plan_as_json_has_the_same(paribus):
    """Programs read the numbers unrounded."""
    plan = json.loads(paribus("plan", "--json", "study.yaml", seeds=5))
    designs = {d["design"]: d for d in plan["designs"]}
    assert list(designs) == ["ladder", "ladder-reverse", "two", "half", "levels", "cells", "all"]
    assert designs["half"]["aliases"]["no_std"] == ["- clip_higher x token_level"]
    assert designs["half"]["resolution"] == 3
    (main,) = designs["half"]["precisions"]
    assert main["se"] == pytest.approx((4 / (4 * 5)) ** 0.5)
    cost = designs["all"]["cost"]
    assert [cost[k] for k in ("low", "expected", "high", "unit")] == [20.0, 40.0, 120.0, "GPU-hours"]
    assert "resolution III" not in designs["all"]["cheaper"]
    assert plan["orders"][0]["ladders"] == ["ladder", "ladder-reverse"]


@pytest.mark.slow
def test_every_design_runs_and_comes_out_as_tables(paribus, tmp_path):
    """The arms that designs share are trained once; each design has its tables in the report."""
    paribus("run", "study.yaml", "--slots", "2")
    report = json.loads((tmp_path / "reports" / "designs" / "report.json").read_text())
    tables = {t["key"]: t for t in report["tables"]}
    assert report["complete"]
    assert report["status"].startswith("complete: 8 of 8 runs")
    assert {
        "ladder.score", "ladder-reverse.score", "ladder.orders", "two.score", "two.interactions", "half.score",
        "half.effects", "levels.score", "cells.score", "all.score", "all.effects",
    } <= set(tables)  # fmt: skip
    assert [r["label"] for r in tables["half.effects"]["rows"]] == ["clip_higher", "token_level", "no_std"]
    assert all(r["cells"][0]["value"] is not None for r in tables["all.effects"]["rows"])
    said = paribus("next", "study.yaml")
    assert "too few seeds to be tested" in said
    assert "8 arms x 5 fresh seeds, 40 runs" in said
    assert "CPU run-hours by recorded runs of the same recipe" in said
    assert json.loads(paribus("plan", "--json", "designs-next.yaml"))["study"] == "designs-next"
