"""The job of a probe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paribus.contract import Job, Options
from paribus.scheduler import pilot
from support.plans import small_plan


def test_a_probe_trains_with_what_the_study_says_to_its_runner(tmp_path: Path) -> None:
    """Options and the files of reward functions too: without them it would measure another job, or none."""
    options = Options(own={"command": "x"}, sources={"my_rewards.py": "def f(completions):\n    return [0.0]\n"})
    plan = replace(small_plan("probed", arms=1, seeds=1), options=options)
    folder = pilot._folder(plan, plan.arms[0], 2.0, tmp_path / "home", tmp_path / "scratch")
    job = Job.model_validate_json(folder.job.read_bytes())
    assert (job.options, job.gpus) == (options, 2.0)
    assert job.recipe.schedule.steps <= plan.arms[0].recipe.schedule.steps
