"""Data and models that change after a study was planned: no run is recorded under their old fingerprint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from paribus.contract import Evaluate, EvaluationSet, Job, Options
from paribus.errors import ParibusError
from paribus.recipe.recipe import JsonlTask, Model, Recipe
from paribus.study.evaluation import arm_hashes
from paribus_runners.native import runner
from support.native_runs import changed

JobFolder = Callable[..., Path]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of folders whose jobs began to train."""
    began: list[Path] = []
    adapter = sys.modules["paribus_runners.native.runner"]
    monkeypatch.setattr(adapter, "_main", lambda: SimpleNamespace(run=began.append))
    return began


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with problem files and a model folder."""
    for name in ("train", "heldout", "hard"):
        problems = [{"prompt": f"{name} {i}+1=", "answer": str(i + 1)} for i in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def of_files(recipe: Recipe, files: Path) -> Recipe:
    """Return a recipe whose problems and model are files."""
    task = JsonlTask(train=str(files / "train.jsonl"), heldout=str(files / "heldout.jsonl"))
    return changed(recipe, model=Model(name=str(files / "model")), task=task)


def _evaluate(files: Path) -> Evaluate:
    task = JsonlTask(train=str(files / "hard.jsonl"), heldout=str(files / "hard.jsonl"))
    return Evaluate(every=3, problems=4, sets={"hard": EvaluationSet(task=task)})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train.jsonl", "data"),
        ("heldout.jsonl", "data"),
        ("hard.jsonl", "data"),
        ("model/config.json", "initial model"),
    ],
)
def test_a_run_whose_files_changed_is_refused(
    of_files: Recipe, job_folder: JobFolder, files: Path, trained: list[Path], name: str, part: str
) -> None:
    """Nothing trains on the edited file; the restored one trains, and so does a job that knows no hashes."""
    chosen = _evaluate(files)
    planned = arm_hashes(runner, of_files, Options(), chosen)
    folder = job_folder(of_files, evaluate=chosen, hashes=planned)
    before = (files / name).read_bytes()
    (files / name).write_bytes(before + b"\n")
    with pytest.raises(
        ParibusError, match=rf"^{part} .*changed since .* restore the files .*paribus retry s`"
    ) as error:
        runner.run(folder)
    other = {"data", "initial model"} - {part}
    assert not [x for x in other if x in str(error.value).partition("since")[0]]
    assert not trained
    unknown = job_folder(of_files, name="unknown", evaluate=chosen)
    runner.run(unknown)
    (files / name).write_bytes(before)
    runner.run(folder)
    assert trained == [unknown, folder]


def test_every_part_that_changed_is_named(
    of_files: Recipe, job_folder: JobFolder, files: Path, trained: list[Path]
) -> None:
    """One message names data and model."""
    chosen = _evaluate(files)
    folder = job_folder(of_files, evaluate=chosen, hashes=arm_hashes(runner, of_files, Options(), chosen))
    for path in (files / "train.jsonl", files / "model" / "config.json"):
        path.write_text("[]")
    with pytest.raises(ParibusError, match=r"^data .* and initial model .*/model.* changed"):
        runner.run(folder)
    (files / "train.jsonl").unlink()
    with pytest.raises(ParibusError, match=r"task\.train.*cannot read .*train\.jsonl"):
        runner.run(folder)
    assert not trained


def test_other_code_alone_refuses_nothing(
    of_files: Recipe, job_folder: JobFolder, files: Path, trained: list[Path]
) -> None:
    """The scheduler answers for the code: runs are forked from a process that has loaded it."""
    chosen = _evaluate(files)
    planned = replace(arm_hashes(runner, of_files, Options(), chosen), code="0" * 64)
    runner.run(job_folder(of_files, evaluate=chosen, hashes=planned))
    assert len(trained) == 1


def test_generated_problems_and_tiny_models_cost_no_hash(
    recipe: Recipe, job_folder: JobFolder, trained: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cannot change on disk, so nothing is read before such a run."""
    tiny = changed(recipe, model=Model(name="tiny"))
    planned = runner.hashes(tiny, Options())
    monkeypatch.delattr(type(runner), "hashes")
    runner.run(job_folder(tiny, hashes=planned))
    assert len(trained) == 1


def test_jobs_of_earlier_versions_have_no_hashes(recipe: Recipe, job_folder: JobFolder) -> None:
    """A job.json without them loads, and one with them comes back as it was."""
    planned = runner.hashes(recipe, Options())
    text = (job_folder(recipe, hashes=planned) / "job.json").read_text()
    assert Job.model_validate_json(text).hashes == planned
    old = {k: v for k, v in json.loads(text).items() if k != "hashes"}
    assert Job.model_validate_json(json.dumps(old)).hashes is None
