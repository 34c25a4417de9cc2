"""The runs of a study evaluate the same problems: the first one records which, in the cache that they share."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from paribus.contract import Evaluate, Hashes, Job, Options
from paribus.errors import RunnerError
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.folder import Evaluation, RunFolder
from paribus_runners.program.evaluations import Evaluations


def evaluate(place: Path, run: str, *problems: str) -> None:
    """Evaluate two problems at step 0 of a run, whose fingerprint is a digit many times."""
    recipe = resolve_base("grpo", {"schedule.steps": 3, "optimizer.learning_rate": 0.1}).recipe
    assert recipe is not None
    job = Job(
        run=run * 64, study="tested", arm="base", runner="command", options=Options(own={"argv": ["x"]}), seed=7,
        token=1, recipe=recipe, evaluate=Evaluate(every=3, problems=2), cache=str(place / "cache"),
        hashes=Hashes(code="c" * 64, data="d" * 64, model="e" * 64),
    )  # fmt: skip
    folder, out = RunFolder(place / run / "a1"), place / run / "out"
    for path in (folder.path, out):
        path.mkdir(parents=True)
    found = Evaluation(
        step=0, set="heldout", samples=1, problems=problems, correct=(1, 0), truncated=(0, 0), tokens=(3, 4),
        tokens_correct=(3, 0), answers=({"x": 1}, {"y": 1}),
    )  # fmt: skip
    RunFolder(out).write_evaluation(found)
    Evaluations(folder, job, out, out, None).due_at(0)


def refused(*_: object) -> None:
    """Stand for `os.link` on exFAT, and on some network disks."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_other_problems_than_those_of_the_first_run_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On file systems without hard links, too."""
    monkeypatch.setattr(os, "link", refused)
    evaluate(tmp_path, "1", "a", "b")
    evaluate(tmp_path, "2", "a", "b")
    with pytest.raises(RunnerError, match="than that of run 111111111111"):
        evaluate(tmp_path, "3", "b", "a")


def test_a_damaged_record_is_written_anew(tmp_path: Path) -> None:
    """One that a full disk has cut is no evidence: the next run records its own problems."""
    evaluate(tmp_path, "1", "a", "b")
    (record,) = tmp_path.glob("cache/command/*.json")
    record.write_bytes(record.read_bytes()[:9])
    evaluate(tmp_path, "2", "b", "a")
    with pytest.raises(RunnerError, match="than that of run 222222222222"):
        evaluate(tmp_path, "3", "a", "b")
