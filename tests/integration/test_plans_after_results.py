"""A second study file that lists one trick of the first, by the real commands: its report is exploratory."""

import json
import os
import subprocess
import sys

import pytest

STUDY = """\
study: NAME
runner: fake
base: {preset: grpo, set: {kl: off, schedule: {steps: 2, minibatches: 8}}}
tricks:
  clip_higher: {clip.high: 0.28}
  token_level: {aggregation: token_batch}
  no_std: {scale: none}
designs:
  solo: {kind: add_oneTRICKS}
seeds: {n: 3}
evaluate: {every: 1, problems: 20, samples: 1}
allow: [confounded]
"""


@pytest.mark.slow
def test_one_trick_of_a_finished_study_is_exploratory(tmp_path):
    """The first study is as declared, also when it is run again; the second reuses its runs and says so first."""
    (tmp_path / "all.yaml").write_text(STUDY.replace("NAME", "all").replace("TRICKS", ""))
    (tmp_path / "one.yaml").write_text(STUDY.replace("NAME", "one").replace("TRICKS", ", tricks: [no_std]"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "PARIBUS_"))}
    environment |= {"PARIBUS_HOME": str(tmp_path / "home"), "PARIBUS_FAKE": json.dumps({"step_s": 0.0, "rules": []})}

    def report(name):
        for command in (["run", f"{name}.yaml"], ["report", name, "--out", str(tmp_path / name)]):
            words = [sys.executable, "-m", "paribus", *command]
            done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / name / "report.json").read_text())

    first, later, again = report("all"), report("one"), report("all")
    assert "Exploratory" not in first["answer"]
    assert again["answer"] == first["answer"]
    assert first["provenance"]["compared with this base"].startswith("3 arms with results")
    assert later["answer"].startswith("Exploratory: the arm had results before this plan was declared")
    assert later["provenance"]["declared"].endswith("when 6 of its 6 runs had results")
    assert later["provenance"]["runs first planned"].startswith("6 by `all` (")
    assert "Holm over 3 comparisons" in later["provenance"]["correction"]
    print(later["answer"], *later["totals"], *later["warnings"], sep="\n")
