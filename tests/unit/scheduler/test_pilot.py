"""The job of a probe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paribus.contract import Job, Options
from paribus.engines.base import JobState, Status
from paribus.errors import ParibusError
from paribus.run_folder.folder import RunFolder
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


def test_an_error_of_paribus_is_its_message_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It quotes the traceback of a reward function, which belongs into a log."""

    class Failing:
        def warm(self) -> None: ...

        def run(self, folder: Path) -> None:
            raise ParibusError("`f` cannot be loaded: ImportError: no x\nTraceback (most recent call last):\n  ...")

    monkeypatch.setattr(pilot, "load_runner", lambda _: Failing())
    monkeypatch.setattr(pilot, "redirect_output", lambda _: None)
    with pytest.raises(ParibusError):
        pilot.main(["failing", str(tmp_path)])
    ended = Status(state=JobState.ENDED, exit_code=1)
    assert pilot._why(ended, RunFolder(tmp_path)) == "`f` cannot be loaded: ImportError: no x"


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (3, "reading\nout of order\n", "the runner ended with exit status 3; its last line: out of order"),
        (3, "", "the runner ended with exit status 3"),
        (-9, "step 2\n", "the runner was killed by SIGKILL; its last line: step 2"),
        (None, "step 2\n", "its process was lost"),
    ],
)
def test_another_end_is_named_with_what_the_log_says(code: int | None, said: str, reason: str, tmp_path: Path) -> None:
    """There is no traceback to take the reason from, and the log goes with the probe."""
    folder = RunFolder(tmp_path)
    folder.log.write_text(said)
    assert pilot._why(Status(state=JobState.ENDED, exit_code=code), folder) == reason
