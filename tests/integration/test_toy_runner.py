"""A runner that is written outside of Paribus against the documented contract alone trains a study."""

import json
import os
import subprocess
import sys
from typing import ClassVar

import pytest

from paribus.contract import Evaluate, EvaluationSet
from paribus.testing.runner_suite import RunnerTestCase

TOY = """\
import random
import time
from pathlib import Path

from paribus.contract import Job, RunnerBase
from paribus.run_folder.folder import Evaluation, MetricLine, RunFolder, write_json


class Toy(RunnerBase):
    name = "toy"
    evaluates_sets = True

    def run(self, folder: Path) -> None:
        files = RunFolder(folder)
        job = Job.model_validate_json(files.job.read_bytes())
        chance, steps = random.Random(job.seed), job.recipe.schedule.steps
        write_json(files.environment, {"toy": "1"})
        for step in range(steps + 1):
            skill = 0.2 + job.recipe.clip.high * step / steps
            values = {"reward/mean": skill + chance.gauss(0, 0.01)}
            for name, chosen in job.evaluate.due(step, steps).items():
                n, k = chosen.problems, chosen.samples
                right = tuple(sum(chance.random() < skill for _ in range(k)) for _ in range(n))
                files.write_evaluation(Evaluation(
                    step=step, set=name, samples=k, problems=tuple(map(str, range(n))), correct=right,
                    truncated=(0,) * n, tokens=(9 * k,) * n, tokens_correct=tuple(9 * c for c in right),
                    answers=tuple({"right": c, "wrong": k - c} for c in right),
                ))
                values[f"eval/{name}/avg_at_{k}"] = sum(right) / (n * k)
            files.append_metrics(MetricLine(step=step, time_ms=time.time_ns() // 1_000_000, values=values))
        write_json(files.result, {"status": "succeeded", "steps": steps})


runner = Toy()
"""

STUDY = """\
study: toys
runner: toy
base: {preset: grpo, set: {schedule.steps: 6}}
tricks: {clip_higher: {clip.high: 0.6}}
designs: {solo: {kind: add_one}}
seeds: {n: 3}
evaluate: {every: 2, problems: 50, checkpoint: final}
"""


@pytest.fixture(scope="module", autouse=True)
def toy(tmp_path_factory):
    """A folder with the toy runner and its entry point, on the path here and in child processes."""
    site = tmp_path_factory.mktemp("toy-site")
    information = site / "toy-0.dist-info"
    information.mkdir()
    (site / "toy_runner.py").write_text(TOY)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0\n")
    (information / "entry_points.txt").write_text("[paribus.runners]\ntoy = toy_runner:runner\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        yield
    sys.modules.pop("toy_runner", None)


class TestToyRunner(RunnerTestCase):
    """The toy runner keeps every promise of the contract that it makes."""

    runner = "toy"
    base: ClassVar = {"schedule.steps": 4}
    other_data: ClassVar = {"task": "chain"}
    other_model: ClassVar = {"model": "tiny_moe"}
    resumes = False
    evaluate = Evaluate(every=2, problems=8, sets={"few": EvaluationSet(every=3, problems=3, samples=4)})


@pytest.mark.slow
def test_a_toy_runner_appears_in_a_table(tmp_path):
    """`paribus run` trains its runs in processes of their own, and both arms stand in the report with their scores."""
    assert len([line for line in TOY.splitlines() if line]) <= 30
    (tmp_path / "study.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "paribus", "run", "study.yaml", "--home", "home", "--slots", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clip_higher" in done.stdout
    report = json.loads((tmp_path / "reports" / "toys" / "report.json").read_text())
    (table,) = (t for t in report["tables"] if t["key"] == "solo.score")
    assert [row["label"] for row in table["rows"]] == ["base", "+ clip_higher"]
