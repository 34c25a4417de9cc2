"""Checkpoints of the native runner: what is resumed equals to the bit what was not stopped, wherever it was killed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from paribus.contract import Checkpoints, Evaluate, Job
from paribus.errors import RunFolderError
from paribus.recipe import factors as f
from paribus.recipe.recipe import Model, Recipe
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder, read_json
from paribus_runners.native import checkpoint, resume, runner, stopping, trainer
from paribus_runners.native.checkpoint import Progress
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy
from paribus_runners.native.tiny.make import tokenizer
from support.kills import killed_at
from support.native_runs import changed, lines_of, same, weights_of

JobFolder = Callable[..., Path]


STATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "critic": {
        "baseline": f.CriticGae(),
        "scale": f.BatchWhiten(unit="token"),
        "auxiliary": {"value": {"pretrain_steps": 1}},
    },
    "reference": {"kl": f.KlInLoss(reference=f.SyncedReference(every=1, mix=0.3))},
    "history": {"baseline": f.History(), "scale": f.HistorySmooth()},
    "ahead": {"schedule": {"staleness": 1}, "correction": f.TokenTruncate()},
    "surplus": {"filter": f.RefillAsync(metric="correct"), "schedule": {"group_size": 12}, "kl": f.KlInLoss()},
}
"""What a run carries from step to step beside the policy and its optimizer."""
FILES = {
    "critic": "critic.safetensors",
    "reference": "reference.safetensors",
    "history": "history.json",
    "ahead": "backlog.safetensors",
    "surplus": "backlog.safetensors",
}
"""Where a checkpoint keeps it."""


@pytest.mark.parametrize("stop_at", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, state: str, stop_at: int
) -> None:
    """SIGTERM: checkpoint, status 75; the next attempt has no gap in its stream and ends with the same weights."""
    recipe = changed(recipe, **STATES[state])
    whole = job_folder(recipe, name="whole")
    runner.run(whole)
    first, second = job_folder(recipe, name="cut"), job_folder(recipe, name="cut", token=2)
    write = trainer.Trainer._write

    def write_and_signal(self: trainer.Trainer, step: int, values: dict[str, float]) -> None:
        write(self, step, values)
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_write", write_and_signal)
        with pytest.raises(SystemExit) as stopped:
            runner.run(first)
    assert stopped.value.code == 75
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert [x["step"] for x in lines_of(first)] == list(range(stop_at + 1))
    assert not (first / "result.json").exists()
    if stop_at == 1 and state in FILES:
        assert (first / "checkpoint" / FILES[state]).is_file()
    runner.run(second)
    assert lines_of(second) == lines_of(whole)
    before, after = (list(RunFolder(p).read_metrics()) for p in (first, second))
    assert after[: stop_at + 1] == before  # times of writing included
    assert same(weights_of(second), weights_of(whole))
    assert RunFolder(second).read_evaluations() == RunFolder(whole).read_evaluations()
    assert (second / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()


def test_a_sample_that_was_half_written_costs_nothing(recipe: Recipe, job_folder: JobFolder) -> None:
    """A run that was killed while it wrote samples goes on, and has all of them in the end."""
    whole = job_folder(recipe, name="whole")
    runner.run(whole)
    first, second = job_folder(recipe, name="cut"), job_folder(recipe, name="cut", token=2)
    shutil.copytree(whole, first, dirs_exist_ok=True)
    with (first / "samples.jsonl").open("ab") as samples:
        samples.write(b'{"step": 3, "response": "a')
    runner.run(second)
    assert (second / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()


FILE_CALLS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"})
"""Audit events of what :func:`checkpoint.save` does with files."""


def _killed_at(call: int, save: Callable[[], None]) -> bool:
    """Run ``save`` in a process that kills itself before this call of the file system; return whether it was killed."""
    if (pid := os.fork()) == 0:
        calls = itertools.count()
        sys.addaudithook(
            lambda event, _: (
                os.kill(os.getpid(), signal.SIGKILL) if event in FILE_CALLS and next(calls) == call else None
            )
        )
        save()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_a_kill_anywhere_in_a_save_leaves_a_checkpoint_to_resume_from(recipe: Recipe, job_folder: JobFolder) -> None:
    """Before each call of the file system, between the two renames included: the one before, or the new one."""
    first, second = job_folder(recipe), job_folder(recipe, token=2)
    runner.run(first)
    job, folder = Job.model_validate_json((second / "job.json").read_bytes()), RunFolder(first)
    learner = Learner.of(job.recipe, Policy.load(job.recipe.model.name, None, job.recipe.model.dtype))
    checkpoint.save(folder.checkpoint, job.run, Progress(step=1), learner)
    before = first.with_name("before")
    folder.checkpoint.rename(before)
    steps, gaps = [], 0
    for call in itertools.count():
        for left in first.glob("checkpoint*"):
            shutil.rmtree(left)
        shutil.copytree(before, folder.checkpoint)
        killed = _killed_at(call, lambda: checkpoint.save(folder.checkpoint, job.run, Progress(step=2), learner))
        gaps += not folder.checkpoint.exists()
        found = resume.find(RunFolder(second), job)
        assert found is not None, f"killed before call {call}"
        attempt, place, progress = found
        assert attempt.path == first
        checkpoint.load(place, learner)
        steps.append(progress.step)
        if not killed:
            break
    assert steps == sorted(steps)
    assert (steps[0], steps[-1], gaps) == (1, 2, 1)


@pytest.mark.parametrize("damage", ["weights", "manifest", "gone", "metrics"])
def test_a_damaged_checkpoint_is_left_alone(
    recipe: Recipe, job_folder: JobFolder, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """A checkpoint that cannot be trusted is noted, and the run begins anew with the same result."""
    first, second = job_folder(recipe), job_folder(recipe, token=2)
    runner.run(first)
    checkpoint = first / "checkpoint"
    if damage == "weights":
        with (checkpoint / "model.safetensors").open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"\1" * 8)
    elif damage == "manifest":
        (checkpoint / "paribus.json").write_text("{")
    elif damage == "gone":
        (checkpoint / "optimizer.safetensors").unlink()
    else:
        (first / "metrics.jsonl").write_bytes((first / "metrics.jsonl").read_bytes().split(b"\n", 1)[1])
    runner.run(second)
    assert "is not used" in caplog.text
    assert [x["step"] for x in lines_of(second)] == [0, 1, 2, 3]


def test_attempts_with_other_initial_weights_are_named(
    recipe: Recipe, job_folder: JobFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """An attempt records the hash of the weights that it began with, and says which attempt had others."""
    first, second = job_folder(recipe), job_folder(recipe, token=2)
    (first / "environment.json").write_text('{"initial_weights": "abcdef"}')
    runner.run(second)
    assert "abcdef" in caplog.text
    assert "did not begin with the same model" in caplog.text


def test_a_checkpoint_of_another_run_is_left_alone(recipe: Recipe, job_folder: JobFolder) -> None:
    """An attempt folder that holds another run's checkpoint is not resumed from."""
    first = job_folder(recipe)
    runner.run(first)
    manifest = read_json(first / "checkpoint" / "paribus.json")
    (first / "checkpoint" / "paribus.json").write_text(json.dumps(manifest | {"run": "0" * 64}))
    shutil.rmtree(first / "evals")
    second = job_folder(recipe, token=2)
    runner.run(second)
    assert len(RunFolder(second).read_evaluations()) == 3


@pytest.mark.parametrize("model", ["chain_model", "mixture_model"])
def test_the_final_checkpoint_is_a_model(
    recipe: Recipe, job_folder: JobFolder, model: str, request: pytest.FixtureRequest
) -> None:
    """Transformers loads the folder `checkpoint` with the weights of the run."""
    path = job_folder(changed(recipe, model=Model(name=str(request.getfixturevalue(model)))))
    runner.run(path)
    policy = Policy.load(str(path / "checkpoint"), None, "float32")
    assert same({n: p.detach() for n, p in policy.model.named_parameters()}, weights_of(path))


