"""Checkpoints of the native runner: what is resumed equals to the bit what was not stopped, wherever it was killed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paribus.contract import Checkpoints, Evaluate, Job
from paribus.errors import RunFolderError, RunnerError
from paribus.recipe import factors as f
from paribus.recipe.recipe import Model, Recipe
from paribus.run_folder.checkpoints import published, read_manifest
from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.phases import read_signs
from paribus_runners.native import checkpoint, main, resume, runner, stopping, trainer, world
from paribus_runners.native.attention import pack
from paribus_runners.native.checkpoint import Progress
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy
from paribus_runners.native.world import World
from support.kills import kill_this_process_at, killed_at, killed_at_byte, killed_in
from support.native_runs import STATES, changed, lines_of, same, train_until, weights_of
from support.ranks import ends_of_ranks, in_ranks

JobFolder = Callable[..., Path]


FILES = {
    "critic": "critic.safetensors",
    "reference": "reference.safetensors",
    "history": "history.json",
    "retired": "retired.json",
    "ahead": "backlog.safetensors",
    "turns": "backlog.safetensors",
    "surplus": "backlog.safetensors",
}
"""Where a checkpoint keeps what a run carries."""


EVERYTHING = {
    **STATES["critic"],
    **STATES["reference"],
    "filter": f.RefillAsync(metric="correct"),
    "schedule": {"group_size": 12, "staleness": 1},
    "correction": f.TokenTruncate(),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """Return a function that trains a job to its end, once for each name, and returns the folder."""
    folders: dict[str, Path] = {}

    def train(name: str, folder: Path) -> Path:
        if name not in folders:
            runner.run(folder)
            folders[name] = shutil.copytree(folder, tmp_path_factory.mktemp("finished") / "a1")
        return folders[name]

    return train


Finished = Callable[[str, Path], Path]


def assert_equal_runs(resumed: Path, whole: Path) -> None:
    """Check that metrics, weights, evaluations and samples are equal to the bit."""
    assert lines_of(resumed) == lines_of(whole)
    assert same(weights_of(resumed), weights_of(whole))
    assert RunFolder(resumed).read_evaluations() == RunFolder(whole).read_evaluations()
    assert (resumed / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()


@pytest.mark.parametrize("stop_at", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(
    recipe: Recipe, job_folder: JobFolder, finished: Finished, state: str, stop_at: int
) -> None:
    """SIGTERM: checkpoint, status 75; the next attempt has no gap in its stream and ends with the same weights."""
    recipe = changed(recipe, **STATES[state])
    whole = finished(state, job_folder(recipe, name="whole"))
    first = job_folder(recipe, name="cut")
    train_until(stop_at, first)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert [x["step"] for x in lines_of(first)] == list(range(stop_at + 1))
    assert not (first / "result.json").exists()
    if stop_at == 1 and state in FILES:
        assert (published(RunFolder(first))[0] / FILES[state]).is_file()
    second = job_folder(recipe, name="cut", token=2)
    runner.run(second)
    before, after = (list(RunFolder(p).read_metrics()) for p in (first, second))
    assert after[: stop_at + 1] == before  # times of writing included
    assert_equal_runs(second, whole)


@pytest.mark.parametrize("state", STATES)
def test_a_run_that_was_killed_goes_on_as_if_it_was_not(
    recipe: Recipe, job_folder: JobFolder, finished: Finished, state: str
) -> None:
    """`kill -9` in the third step: the next attempt goes on after the second, with another interval of checkpoints."""
    recipe = changed(recipe, **STATES[state])
    whole = finished(state, job_folder(recipe, name="whole"))
    first = job_folder(recipe, name="cut", checkpoint=Checkpoints(every=1))

    def train() -> None:
        learner_before = Learner.before

        def killed(self: Learner, *given: Any) -> Any:
            if len(lines_of(first)) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return learner_before(self, *given)

        Learner.before = killed  # type: ignore[method-assign]
        runner.run(first)

    assert killed_in(train)
    assert [p.name for p in published(RunFolder(first))] == ["step-000002"]
    second = job_folder(recipe, name="cut", token=2, checkpoint=Checkpoints(every=2, keep=2))
    runner.run(second)
    assert [p.name for p in published(RunFolder(second))] == ["step-000003"]
    assert_equal_runs(second, whole)


class Pass(NamedTuple):
    """A forward pass: metric lines written before it, and whether weights had changed since."""

    lines: int
    changed: bool


@pytest.mark.parametrize(
    ("at", "nth", "finish_s", "saved"),
    [
        (Pass(0, False), 3, 0.0, None),  # the evaluation before training
        (Pass(2, False), 0, 0.0, 1),  # the first token of the second step
        (Pass(2, False), -1, 0.0, 1),  # the last pass without a gradient
        (Pass(2, True), 0, 0.0, None),  # the first update; step 1 was not due
        (Pass(3, True), 2, 0.0, 2),
        (Pass(3, True), -1, 0.0, 2),  # the last token of the last evaluation
        (Pass(2, True), 0, 1e9, 2),  # the step may end
        (Pass(3, True), -1, 1e9, 3),
    ],
)
def test_sigterm_is_answered_between_two_passes(
    recipe: Recipe,
    job_folder: JobFolder,
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
    at: Pass,
    nth: int,
    finish_s: float,
    saved: int | None,
) -> None:
    """No pass follows the signal; what is saved is a complete step; the next attempt ends with the same bits."""
    recipe = changed(recipe, correction=f.TokenTruncate())
    whole = finished("signalled", job_folder(recipe, name="whole"))
    seen, check = list[Pass](), stopping.StopCheck.check
    first = job_folder(recipe)
    signalled_at = -1

    def noted(self: stopping.StopCheck) -> None:
        if len(seen) == signalled_at:
            os.kill(os.getpid(), signal.SIGTERM)
        seen.append(Pass(len(lines_of(first)), self.changed))
        check(self)

    monkeypatch.setattr(stopping.StopCheck, "check", noted)
    runner.run(first)
    signalled_at = [i for i, one in enumerate(seen) if one == at][nth]
    shutil.rmtree(first)
    seen.clear()
    first = job_folder(recipe)
    monkeypatch.setattr(stopping, "FINISH_S", finish_s)
    with pytest.raises(SystemExit) as stopped:
        runner.run(first)
    assert stopped.value.code == 75
    if finish_s == 0:
        assert len(seen) == signalled_at + 1
    assert [p.name for p in published(RunFolder(first))] == ([] if saved is None else [f"step-{saved:06d}"])
    monkeypatch.undo()
    second = job_folder(recipe, token=2)
    runner.run(second)
    assert_equal_runs(second, whole)


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


class Crashed(Exception):
    """The first attempt has shown what it was to show.

    Its arguments are what the next attempt would go on from after each kill (step, and hashes of the checkpoint's
    files), and a copy of the folder with each of these steps.
    """


def killed_everywhere(first: RunFolder, scratch: Path) -> Callable[..., Path]:
    """Return what stands for `checkpoint.save`: from the second step on, it dies before each of its file operations."""
    save, before = checkpoint.save, scratch / "before"
    later = Job.model_validate_json(first.job.read_bytes()).model_copy(update={"token": 2})
    found: list[tuple[int, dict[str, str]]] = []
    left: dict[int, Path] = {}

    def examine() -> None:
        """Note what the next attempt would go on from; put the folder back as it was before the save."""
        usable = resume.find(RunFolder(first.path.with_name("a2")), later)
        assert usable is not None, f"after {len(found)} kills"
        found.append((usable[2].step, dict(read_manifest(usable[1]).files)))
        if usable[2].step not in left:
            left[usable[2].step] = shutil.copytree(first.path, scratch / f"left{usable[2].step}" / "a1")
        shutil.rmtree(first.checkpoints)
        shutil.copytree(before, first.checkpoints)

    def kill_everywhere(folder: RunFolder, job: Job, progress: Progress, learner: Learner, *_: object) -> Path:
        if progress.step < 2:
            return save(folder, job, progress, learner)
        shutil.copytree(first.checkpoints, before)
        again = partial(save, folder, job, progress, learner)
        for size in (0, 100, 50_000, 600_000):
            assert killed_at_byte(size, again)
            examine()
        for call in itertools.count():
            killed = killed_at(call, again)
            examine()
            if not killed:
                raise Crashed(found, left)
        raise AssertionError

    return kill_everywhere


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_a_kill_anywhere_in_a_save_costs_no_bit(
    recipe: Recipe, job_folder: JobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Before each call of the file system and in the middle of writes: the checkpoint before, or the new one, whole.

    Of two processes, the first one dies; the second one has nothing to save, and waits for it.
    """
    monkeypatch.setattr(world, "LOST_S", 0.0)
    recipe = changed(recipe, **EVERYTHING)
    whole = job_folder(recipe, name="whole")
    in_ranks(size, whole / "ranks", partial(_train, whole))
    first = RunFolder(job_folder(recipe, checkpoint=Checkpoints(every=1)))
    save = killed_everywhere(first, tmp_path)

    def action(here: World) -> tuple[list[tuple[int, dict[str, str]]], dict[int, Path]] | None:
        checkpoint.save = save  # type: ignore[assignment]
        with pytest.raises((Crashed, RunnerError)) as caught:
            _train(first.path, here)
        return caught.value.args if here.writes else None

    found, left = in_ranks(size, first.path / "ranks", action)[0]
    steps = [step for step, _ in found]
    assert steps == sorted(steps)
    assert steps.count(1) > 40
    assert steps.count(2) > 10  # what is deleted afterwards
    assert all(files == dict(found)[step] for step, files in found)  # to the bit, whenever it was killed
    for step, folder in left.items():
        second = job_folder(recipe, name=f"left{step}", token=2)
        in_ranks(size, second / "ranks", partial(_train, second))
        job = Job.model_validate_json((second / "job.json").read_bytes())
        assert resume.find(RunFolder(second), job)[0].path == folder
        assert_equal_runs(second, whole)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (2, 1), (1, 2)])
def test_a_run_in_several_processes_that_was_killed_goes_on(
    recipe: Recipe, job_folder: JobFolder, sizes: tuple[int, int]
) -> None:
    """To the bit in as many processes; in fewer or more, the numbers differ by rounding alone."""
    recipe = changed(recipe, **EVERYTHING)
    whole, first = job_folder(recipe, name="whole"), job_folder(recipe, name="cut", checkpoint=Checkpoints(every=1))
    in_ranks(sizes[0], whole / "ranks", partial(_train, whole))

    calls = itertools.count(-1)  # the first is in the training of the critic alone, before step 1

    def killed(self: Learner, *given: Any) -> Any:
        if next(calls) == 2 and self.world.rank == sizes[0] - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return learner_before(self, *given)

    learner_before = Learner.before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "before", killed)
        assert -signal.SIGKILL in ends_of_ranks(sizes[0], first / "ranks", partial(_train, first))
    assert [p.name for p in published(RunFolder(first))] in (["step-000001"], ["step-000002"])  # killed in its save
    second = job_folder(recipe, name="cut", token=2)
    in_ranks(sizes[1], second / "ranks", partial(_train, second))
    if sizes[0] == sizes[1]:
        assert_equal_runs(second, whole)
    else:
        for line, other in zip(lines_of(second), lines_of(whole), strict=True):
            assert line == pytest.approx(other, rel=1e-5, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("call", [0, 20, 45, 60])
def test_a_kill_in_a_save_of_two_processes_costs_no_bit(recipe: Recipe, job_folder: JobFolder, call: int) -> None:
    """The first process dies before a call of the file system; the second one has nothing to save."""
    recipe = changed(recipe, **EVERYTHING)
    whole, first = job_folder(recipe, name="whole"), job_folder(recipe, name="cut", checkpoint=Checkpoints(every=1))
    in_ranks(2, whole / "ranks", partial(_train, whole))
    save = checkpoint.save

    def killed(folder: RunFolder, job: Job, progress: Progress, learner: Learner, *_: object) -> Path:
        if progress.step == 2:
            kill_this_process_at(call)
        return save(folder, job, progress, learner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", killed)
        assert ends_of_ranks(2, first / "ranks", partial(_train, first))[0] == -signal.SIGKILL
    assert [p.name for p in published(RunFolder(first))] in (["step-000001"], ["step-000002"])
    second = job_folder(recipe, name="cut", token=2)
    in_ranks(2, second / "ranks", partial(_train, second))
    assert_equal_runs(second, whole)


@pytest.mark.parametrize("changed_weights", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_is_answered_by_all_processes(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, rank: int, changed_weights: bool
) -> None:
    """One of them gets it in the second step, the other a little later; none hangs, and what is saved is complete."""
    monkeypatch.setattr(stopping, "FINISH_S", 0.0)
    whole, first = job_folder(recipe, name="whole"), job_folder(recipe, name="cut")
    in_ranks(2, whole / "ranks", partial(_train, whole))
    check = stopping.StopCheck.check

    def signalled(self: stopping.StopCheck) -> None:
        mark = first / "signalled"
        in_second = len(lines_of(first)) == 2 and read_signs(first)[me].step == 2  # the line of the first may be early
        if me == rank and not mark.exists() and in_second and self.changed == changed_weights:
            mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        late = self.changed or not changed_weights  # else it may still save the step before
        if me != rank and mark.exists() and late and time.time() > mark.stat().st_mtime + 0.5:
            os.kill(os.getpid(), signal.SIGTERM)
        check(self)

    me = -1

    def action(world: World) -> None:
        nonlocal me
        me = world.rank
        _train(first, world)

    with monkeypatch.context() as patch:
        patch.setattr(stopping.StopCheck, "check", signalled)
        assert ends_of_ranks(2, first / "ranks", action) == [75, 75]
    found = [p.name for p in published(RunFolder(first))]
    # the second process may leave when the first, which writes, needs it no more for that step
    done = ["step-000002"] if changed_weights and rank == 1 else []
    assert found in (done, [] if changed_weights else ["step-000001"])
    second = job_folder(recipe, name="cut", token=2)
    in_ranks(2, second / "ranks", partial(_train, second))
    assert_equal_runs(second, whole)


def _train(folder: Path, world: World) -> None:
    main.train(RunFolder(folder), Job.model_validate_json((folder / "job.json").read_bytes()), world)


@pytest.mark.parametrize("damage", ["weights", "manifest", "index", "gone", "metrics", "old"])
def test_a_damaged_checkpoint_is_left_alone(
    recipe: Recipe, job_folder: JobFolder, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """A checkpoint that cannot be trusted is noted, and the run begins anew with the same result."""
    first = job_folder(recipe)
    runner.run(first)
    second = job_folder(recipe, token=2)
    (checkpoint,) = published(RunFolder(first))
    if damage == "weights":
        with (checkpoint / "model" / "model.safetensors").open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"\1" * 8)
    elif damage == "manifest":
        (checkpoint / "paribus.json").write_text("{")
    elif damage == "index":
        (checkpoint.parent / "index.json").write_text('{"checkpoints": ["../a1"]}')
    elif damage == "old":
        checkpoint.parent.rename(first / "checkpoint")
    elif damage == "gone":
        (checkpoint / "optimizer.safetensors").unlink()
    else:
        (first / "metrics.jsonl").write_bytes((first / "metrics.jsonl").read_bytes().split(b"\n", 1)[1])
    runner.run(second)
    assert "is not used" in caplog.text
    assert [x["step"] for x in lines_of(second)] == [0, 1, 2, 3]


def test_damage_behind_a_checkpoint_costs_nothing(
    recipe: Recipe, job_folder: JobFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """As a power cut leaves it: what was written after the checkpoint is not read."""
    first = job_folder(recipe)
    runner.run(first)
    (first / "result.json").unlink()
    lines = lines_of(first)
    with (first / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 300 + b'{"step": 5}\n')
    second = job_folder(recipe, token=2)
    runner.run(second)
    assert "is not used" not in caplog.text
    assert lines_of(second) == lines


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
    (place,) = published(RunFolder(first))
    manifest = read_json(place / "paribus.json")
    (place / "paribus.json").write_text(json.dumps(manifest | {"run": "0" * 64}))
    shutil.rmtree(first / "evals")
    second = job_folder(recipe, token=2)
    runner.run(second)
    assert len(RunFolder(second).read_evaluations()) == 3


@pytest.mark.parametrize("keep", [1, 2])
def test_as_many_checkpoints_are_kept_as_declared(recipe: Recipe, job_folder: JobFolder, keep: int) -> None:
    """Every second step and the last: 2 and 3; evaluations have an interval of their own."""
    path = job_folder(recipe, evaluate=Evaluate(every=3, problems=4), checkpoint=Checkpoints(every=2, keep=keep))
    runner.run(path)
    assert [p.name for p in published(RunFolder(path))] == ["step-000003", "step-000002"][:keep]
    assert {p.name for p in (path / "checkpoints").iterdir()} == {"index.json", "step-000003", "step-000002"} - (
        {"step-000002"} if keep == 1 else set()
    )
    assert [e.step for e in RunFolder(path).read_evaluations()] == [0, 3]


def test_an_attempt_that_lost_its_run_saves_nothing(recipe: Recipe, job_folder: JobFolder) -> None:
    """It ends with a message, and leaves the folder of the attempt that has the run now alone."""
    first, second = job_folder(recipe), job_folder(recipe, token=2)
    with pytest.raises(RunFolderError, match="the run was given to attempt 2"):
        runner.run(first)
    assert published(RunFolder(first)) == ()
    assert [p.name for p in second.iterdir()] == ["job.json"]


@pytest.mark.parametrize("model", ["chain_model", "mixture_model", "tied_qwen", "untied_qwen"])
def test_the_model_of_a_finished_run_loads_with_transformers(
    recipe: Recipe, job_folder: JobFolder, model: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`result.json` names its folder, which holds nothing but the model; weights and logits are those of the run."""
    path = job_folder(changed(recipe, model=Model(name=str(request.getfixturevalue(model))), schedule={"steps": 1}))
    end, trained = trainer.Trainer._end, list[Policy]()

    def kept(self: trainer.Trainer, *given: Any) -> None:
        trained.append(self._learner.policy)
        end(self, *given)

    monkeypatch.setattr(trainer.Trainer, "_end", kept)
    runner.run(path)
    folder = path / read_json(path / "result.json")["model"]
    assert [p.name for p in folder.glob("*.safetensors")] == ["model.safetensors"]
    loaded, words = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    mine = dict(trained[0].model.named_parameters())
    assert same({name: p.detach() for name, p in loaded.named_parameters()}, mine)
    ids = words("a3b5c8=").input_ids
    assert ids == trained[0].tokenizer("a3b5c8=").input_ids
    there = loaded(torch.tensor([ids])).logits[0]
    row = pack([len(ids)], [()], torch.device("cpu"))
    here = trained[0].head.logits(trained[0].hidden(torch.tensor(ids), row.positions, row))
    torch.testing.assert_close(there, here, atol=1e-4, rtol=1e-4)
