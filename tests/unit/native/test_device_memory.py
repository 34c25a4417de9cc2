"""A run computes as much at once as its device has room for, as its plan says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paribus.contract import Evaluate, EvaluationSet, Job
from paribus.evaluate import HELDOUT
from paribus.recipe.recipe import ChainTask, JsonlTask, Lora, Model, Recipe
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import device_memory, log_probabilities, main, update
from paribus_runners.native.examine import examine
from paribus_runners.native.held import Held
from paribus_runners.native.limits import USUAL, Limits, usable
from paribus_runners.native.memory import Architecture, Phases
from paribus_runners.native.model_files import ModelFiles
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout import torch as sampler
from paribus_runners.native.world import World
from paribus_runners.tasks import task_of
from support.native_runs import changed, lines_of, train_in

JobFolder = Callable[..., Path]
EVALUATE = Evaluate(every=3, problems=12, samples=2)


@pytest.fixture
def small(recipe: Recipe, untied_qwen: Path) -> Recipe:
    """A recipe with a model of Qwen2's kind."""
    return changed(recipe, model=Model(name=str(untied_qwen)))


def phases_of(recipe: Recipe, processes: int = 1) -> Phases:
    """Return the arithmetic of a run on a CPU, by the files of its model."""
    files = ModelFiles.of(recipe.model.name, None)
    model = Architecture.of(files.config)
    assert model is not None
    held = files._held(recipe, processes)
    return Phases(model=model, held=held, recipe=recipe, prompt=prompt_of(recipe), device="cpu")


def prompt_of(recipe: Recipe) -> int:
    """Return the tokens of the longest prompt of a run with the evaluation of these tests."""
    policy, task = Policy.load(recipe.model.name, None, "float32"), task_of(recipe.task)
    problems = [*task.training(0, 1, 0, recipe.schedule.prompts_per_step), *task.heldout(EVALUATE.problems)]
    return max(len(ids) for ids in policy.encode([problem.prompt for problem in problems]))


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Return lists that get how many responses are sampled at a time, and how many tokens passes have."""
    rows, tokens = list[int](), list[int]()
    draw, score = sampler._sample, log_probabilities.score

    def sample(policy: Policy, prompts: Any, requests: Any, *rest: Any) -> Any:
        rows.append(len(prompts) * requests.copies)
        return draw(policy, prompts, requests, *rest)

    def scored(policy: Policy, prompts: Any, groups: Any, *rest: Any, **more: Any) -> Any:
        tokens.append(sum(map(len, prompts)) + sum(len(r) - 1 for group in groups for r in group))
        return score(policy, prompts, groups, *rest, **more)

    monkeypatch.setattr(sampler, "_sample", sample)
    monkeypatch.setattr(log_probabilities, "score", scored)
    monkeypatch.setattr(update, "score", scored)
    return rows, tokens


def test_a_run_computes_as_much_at_once_as_there_is_room_for(
    small: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer responses and shorter passes, as the plan's arithmetic says, and the same numbers up to rounding."""
    usual, tight = (job_folder(small, name=name, evaluate=EVALUATE) for name in ("usual", "tight"))
    train_in(1, usual)
    assert not set(vars(USUAL["cpu"])) & set(json.loads((usual / "environment.json").read_text()))
    phases = phases_of(small)
    peaks = vars(phases.peaks(EVALUATE))
    room = phases.held.bytes(small) + (max(peaks.values()) - phases.held.bytes(small)) // 6
    fitting = phases.fitting(EVALUATE, room)
    assert 1 < fitting.at_once.responses_at_a_time < 48
    assert fitting.at_once.tokens_a_pass < 500
    assert fitting.largest(EVALUATE)[1] <= room
    monkeypatch.setattr(device_memory, "room_on", lambda device, gpus: room)
    rows, tokens = watched(monkeypatch)
    train_in(1, tight)
    recorded = json.loads((tight / "environment.json").read_text())
    assert {name: recorded[name] for name in vars(fitting.at_once)} == vars(fitting.at_once)
    assert max(rows) == max(8, fitting.at_once.responses_at_a_time // 8 * 8)
    assert fitting.at_once.tokens_a_pass // 2 < max(tokens) <= fitting.at_once.tokens_a_pass
    for got, want in zip(lines_of(tight), lines_of(usual), strict=True):
        assert got == pytest.approx(want, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("filter_", ["refill", "refill_async"])
@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_sampled_does_not_depend_on_the_memory(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, filter_: str, processes: int
) -> None:
    """A step that has enough groups leaves the others where it would with more memory, so budgets end alike."""
    usual = {"responses_at_a_time": 24, "tokens_a_pass": 4096}
    monkeypatch.setitem(USUAL, "cpu", Limits(**usual))
    changes = {"prompts_per_step": 12, "group_size": 4, "steps": 40, "tokens": 2500}
    surplus = {"max_surplus": 0} if filter_ == "refill_async" else {}  # else it samples whole rounds
    refilled = changed(recipe, schedule=changes, filter={"kind": filter_, "max_generation_batches": 4, **surplus})
    found = []
    for rows in (24, 20, 8, 4):
        folder = job_folder(refilled, name=str(rows), evaluate=EVALUATE)
        monkeypatch.setattr(
            device_memory, "limits_of", lambda *_, n=rows: Limits(**{**usual, "responses_at_a_time": n})
        )
        train_in(processes, folder)
        found.append(lines_of(folder))
    assert sum(line["sampling/waste_frac"] for line in found[0][1:]) > 0
    for other in found[1:]:
        assert len(other) == len(found[0]) > 3
        for got, want in zip(other, found[0], strict=True):
            assert got == pytest.approx(want, rel=1e-3, abs=1e-5)


def test_all_processes_compute_what_the_one_with_the_least_room_can(
    small: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share responses and tokens, so what is sampled together is the same in each; here the second has less."""
    folder = job_folder(small, evaluate=EVALUATE)
    phases = phases_of(small, 2)
    base = phases.held.bytes(small)
    least = base + (phases.largest(EVALUATE)[1] - base) // 3
    monkeypatch.setattr(device_memory, "room_on", lambda device, gpus: least * (2 - int(main.os.environ["RANK"])))
    train_in(2, folder)
    recorded = json.loads((folder / "environment.json").read_text())
    want = phases.fitting(EVALUATE, least).at_once
    assert want != USUAL["cpu"]
    assert {name: recorded[name] for name in vars(want)} == vars(want)


@pytest.mark.parametrize(
    "model", [{}, {"lora": Lora(rank=4)}, {"train": ("last_1",)}, {"dtype": "bfloat16", "trained_dtype": "bfloat16"}]
)
def test_a_run_counts_what_it_holds_as_its_plan_does(small: Recipe, tmp_path: Path, model: dict[str, Any]) -> None:
    """By its tensors, where the plan has the headers of files."""
    recipe = changed(small, model=Model(name=small.model.name, **model))
    policy = main.initial_policy(recipe, tmp_path, 0)
    found = device_memory._held(recipe, policy, None, World())
    planned = ModelFiles.of(recipe.model.name, None)._held(recipe, 1)
    assert isinstance(found, Held)
    assert found.bytes(recipe) == planned.bytes(recipe)
    assert (found.weights, found.trained, found.inside) == (planned.weights, planned.trained, planned.inside)


def test_a_run_has_its_part_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of it, of all of them for each process of several; a CPU is not for a run alone."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 10**9))
    gpu = torch.device("cuda")
    assert [device_memory.room_on(gpu, gpus) for gpus in (0.25, 1.0, 4.0)] == [18 * 10**9, 72 * 10**9, 72 * 10**9]
    assert device_memory.room_on(gpu, 0) == usable(80 * 10**9)
    assert device_memory.room_on(torch.device("cpu"), 1) is None


def test_the_longest_prompt_is_that_of_a_problem_that_is_used(
    small: Recipe, tmp_path: Path, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all training problems, and of as many of each evaluation set as it evaluates; a plan takes the same."""

    def write(name: str, lengths: list[int]) -> str:
        path = tmp_path / name
        path.write_text("".join(f'{{"prompt": "{"1" * n}", "answer": "1"}}\n' for n in lengths))
        return str(path)

    train, heldout = write("train.jsonl", [2, 9, 3]), write("heldout.jsonl", [4, 5, 30])
    other = write("other.jsonl", [12, 6, 40])
    task = JsonlTask(train=train, heldout=heldout)
    recipe, planned = changed(small, task=task), list[int]()
    monkeypatch.setattr(ModelFiles, "phases", lambda self, recipe, evaluate, prompt, *_: planned.append(prompt) or [])
    policy = Policy.load(recipe.model.name, None, "float32")
    for problems, sets, want in (
        (2, {}, 9),
        (3, {}, 30),
        (2, {"more": EvaluationSet(problems=3)}, 30),
        (2, {"other": EvaluationSet(task=JsonlTask(train=other, heldout=other), problems=2)}, 12),
        (2, {"other": EvaluationSet(task=JsonlTask(train=other, heldout=other), problems=3)}, 40),
    ):
        evaluate = Evaluate(problems=problems, sets=sets)
        folder = job_folder(recipe, name=f"{problems}-{len(sets)}-{want}", evaluate=evaluate)
        job = Job.model_validate_json(RunFolder(folder).job.read_bytes())
        tasks = {name: task_of(each.task) for name, each in sets.items() if each.task is not None}
        prompts = device_memory._prompts(job, {HELDOUT: task_of(task)} | tasks)
        assert device_memory._longest(policy, prompts) == want
        examine(recipe, evaluate)
        assert planned.pop() == want


def test_a_task_without_end_shows_the_prompts_of_a_step(small: Recipe, job_folder: JobFolder) -> None:
    """As many as a step has, beside those that are evaluated."""
    job = Job.model_validate_json(RunFolder(job_folder(small, evaluate=EVALUATE)).job.read_bytes())
    assert len(list(device_memory._prompts(job, {HELDOUT: task_of(ChainTask())}))) == 6 + 12


def test_without_the_sizes_of_a_model_a_run_computes_as_usual(
    recipe: Recipe, mixture_model: Path, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture of experts has no arithmetic."""
    monkeypatch.setattr(device_memory, "room_on", lambda device, gpus: 10**9)
    mixture = changed(recipe, model=Model(name=str(mixture_model)))
    job = Job.model_validate_json(RunFolder(job_folder(mixture)).job.read_bytes())
    policy = Policy.load(str(mixture_model), None, "float32")
    assert device_memory.limits_of(job, policy, None, {HELDOUT: task_of(ChainTask())}, World()) is None
    assert policy.at_once == USUAL["cpu"] == Limits(responses_at_a_time=512, tokens_a_pass=4096)
