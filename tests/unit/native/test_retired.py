"""``schedule.retire_at``: solved prompts are left out of later passes, and the others keep their order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.recipe.recipe import ChainTask, Recipe
from paribus_runners.native import runner, trainer
from paribus_runners.native.rollout.retired import AllRetired, Retired, identity
from paribus_runners.tasks.chain import Chain
from support.native_runs import changed, lines_of, same, weights_of

JobFolder = Callable[..., Path]


def _names(found: list[Any]) -> list[str]:
    return [identity(x) for x in found]


def test_without_solved_prompts_the_walk_is_that_of_every_run() -> None:
    """Rounds of any size, and refills, visit the problems in the order of a run that retires none."""
    task, known = Chain(7), Retired()
    for step in range(1, 6):
        found, known = known.problems(task, 3, step, 0, 4)
        assert _names(found) == _names(task.training(3, step, 0, 4))
        for round_ in (1, 2):
            more, same_ = known.problems(task, 3, step, round_, 4)
            assert _names(more) == _names(task.training(3, step, round_, 4))
            assert same_ == known
    assert known.place == 20


def test_each_pass_goes_once_through_the_prompts_that_are_left() -> None:
    """Left-out prompts are passed by, without a hole in the batch and without a change of the order of the others."""
    task = Chain(7)
    solved = frozenset(_names(task.training(0, 1, 0, 3)))
    known, seen = Retired(0, solved), []
    for step in range(1, 7):
        found, known = known.problems(task, 0, step, 0, 4)
        seen += _names(found)
    plain = [x for step in range(1, 7) for x in _names(task.training(0, step, 0, 7)) if x not in solved]
    assert seen == plain[:24]
    more, _ = known.problems(task, 0, 7, 1, 4)
    assert len(more) == 4
    assert not solved & set(_names(more))


def test_a_pool_without_a_prompt_left_is_an_end() -> None:
    """A pool smaller than a batch comes round, and an empty one raises."""
    task = Chain(7)
    every = _names(task.training(0, 1, 0, 7))
    found, _ = Retired(0, frozenset(every[1:])).problems(task, 0, 1, 0, 3)
    assert _names(found) == [every[0]] * 3
    for round_ in (0, 1):
        with pytest.raises(AllRetired):
            Retired(5, frozenset(every)).problems(task, 0, 1, round_, 3)


def test_prompts_go_by_the_share_of_right_responses(made: Any) -> None:
    """The bound itself is enough; groups that were carried over have been judged before."""
    recipe = Recipe.model_validate({"schedule": {"group_size": 4}})
    correct = [[True] * 4, [True, True, True, False], [True, True, False, False], [True] * 4]
    rollouts = made(recipe, correct, problems=["a", "b", "c", "old"])
    rollouts = replace(rollouts, carried=torch.tensor([False, False, False, True]))
    assert Retired(9).after(rollouts, 0.75) == Retired(9, frozenset({"a", "b"}))
    assert Retired(9, frozenset({"c"})).after(rollouts, 1.0) == Retired(9, frozenset({"a", "c"}))


def test_what_is_known_survives_a_file() -> None:
    """Place and prompts come back from JSON."""
    known = Retired(12, frozenset({"b", "a"}))
    assert Retired.of(json.loads(json.dumps(known.record()))) == known


def test_a_run_leaves_solved_prompts_out(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run samples is never a prompt that it has retired, and the share of retired prompts never falls."""
    recipe = changed(recipe, task=ChainTask(problems=14), schedule={"steps": 6, "retire_at": 0.25, "staleness": 1})
    collect, sampled = trainer.collect, []

    def seen(*args: Any) -> Any:
        found = collect(*args)
        sampled.append((args[5].prompts, set(found.rollouts.problems)))
        return found

    monkeypatch.setattr(trainer, "collect", seen)
    folder = job_folder(recipe)
    runner.run(folder)
    shares = [line["sampling/retired_frac"] for line in lines_of(folder)[1:]]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1
    assert all(not retired & problems for retired, problems in sampled)
    assert any(retired for retired, _ in sampled)


def test_a_bound_that_no_prompt_reaches_changes_nothing(recipe: Recipe, job_folder: JobFolder) -> None:
    """Up to the first retired prompt a run is the one without retirement, to the bit."""
    pool = changed(recipe, task=ChainTask(problems=14))
    plain, bound = job_folder(pool, name="plain"), job_folder(changed(pool, schedule={"retire_at": 1.0}), name="bound")
    for folder in (plain, bound):
        runner.run(folder)
    lines = lines_of(bound)
    assert [line.pop("sampling/retired_frac") for line in lines[1:]] == [0.0] * 3
    assert lines == lines_of(plain)
    assert same(weights_of(bound), weights_of(plain))


def test_a_run_without_a_prompt_left_ends_and_says_why(recipe: Recipe, job_folder: JobFolder) -> None:
    """What was sampled before is still trained on, and the result is no success."""
    folder = job_folder(changed(recipe, task=ChainTask(problems=6), schedule={"steps": 9, "retire_at": 1e-9}))
    trained = trainer.collect

    def all_right(*args: Any) -> Any:
        found = trained(*args)
        return found._replace(retired=Retired(found.retired.place, frozenset(found.rollouts.problems)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "collect", all_right)
        runner.run(folder)
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["step"]) == ("stopped_early", 1)
    assert "no prompt is left: the policy has solved all of them" in result["reason"]
    assert result["model"] == "checkpoints/step-000001/model"
