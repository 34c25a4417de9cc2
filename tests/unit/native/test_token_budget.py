"""``schedule.tokens``: a run ends with the step that spends its budget of generated tokens, evaluated and resumable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.contract import Evaluate
from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import runner, trainer
from support.native_runs import changed, lines_of, same, train_until, weights_of

JobFolder = Callable[..., Path]

STATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "refill": {"filter": f.Refill(metric="correct", max_generation_batches=3)},
    "ahead": {"schedule": {"staleness": 2}, "correction": f.TokenTruncate()},
    "surplus": {
        "filter": f.RefillAsync(metric="correct"),
        "schedule": {"staleness": 1},
        "correction": f.TokenTruncate(),
    },
    "critic": {
        "baseline": f.CriticGae(),
        "scale": f.BatchWhiten(unit="token"),
        "auxiliary": {"value": {"pretrain_steps": 1}},
    },
}

LONG = 7
"""Steps of a run without a budget that others are compared with."""


def of(recipe: Recipe, state: str, **schedule: Any) -> Recipe:
    """Return the recipe of a state with more of a schedule."""
    changes = STATES[state]
    return changed(recipe, **{**changes, "schedule": {**changes.get("schedule", {}), **schedule}})


def spent(lines: list[dict[str, float]]) -> list[int]:
    """Return the tokens generated up to each step, from step 0 on."""
    return [0, *(int(line["budget/gen_tokens"]) for line in lines[1:])]


def trained(line: dict[str, float]) -> dict[str, float]:
    """Return the metrics of a step without its evaluation."""
    return {k: v for k, v in line.items() if not k.startswith("eval/")}


@pytest.mark.parametrize("state", STATES)
def test_the_step_that_spends_the_budget_is_the_last(recipe: Recipe, job_folder: JobFolder, state: str) -> None:
    """A budget of exactly what 4 steps generate ends with step 4, one token more with step 5; nothing else differs."""
    long = job_folder(of(recipe, state, steps=LONG), name="long")
    runner.run(long)
    whole = lines_of(long)
    after = spent(whole)
    for tokens, last in ((after[4], 4), (after[4] + 1, 5), (after[3] + 1, 4)):
        folder = job_folder(of(recipe, state, steps=LONG, tokens=tokens), name=f"budget-{tokens}")
        runner.run(folder)
        lines = lines_of(folder)
        assert [line["step"] for line in lines] == list(range(last + 1))
        assert [trained(x) for x in lines] == [trained(x) for x in whole[: last + 1]]
        assert {e.step for e in RunFolder(folder).read_evaluations()} == {0, 2, 4, last}
        result = json.loads((folder / "result.json").read_text())
        assert (result["status"], result["step"], int(result["budget/gen_tokens"])) == ("succeeded", last, after[last])


def test_a_run_has_one_step_and_no_more_than_its_steps(recipe: Recipe, job_folder: JobFolder) -> None:
    """A budget of one token is one step; one that lasts longer than the steps ends with these."""
    for tokens, last in ((1, 1), (3 * 48 * 12, 3)):
        folder = job_folder(changed(recipe, schedule={"tokens": tokens}), name=f"of-{tokens}")
        runner.run(folder)
        assert [line["step"] for line in lines_of(folder)] == list(range(last + 1))


@pytest.mark.parametrize("state", ["refill", "ahead"])
def test_a_budget_of_prompts_ends_a_run_as_well(recipe: Recipe, job_folder: JobFolder, state: str) -> None:
    """A budget of exactly the prompts of 2 steps ends with step 2, one more with step 3; the first one ends a run."""
    long = job_folder(of(recipe, state, steps=4), name="long")
    runner.run(long)
    whole = lines_of(long)
    after = [int(line.get("budget/prompts_sampled", 0)) for line in whole]
    for prompts, tokens, last in ((after[2], None, 2), (after[2] + 1, None, 3), (after[3], 1, 1)):
        folder = job_folder(of(recipe, state, steps=4, prompts=prompts, tokens=tokens), name=f"{prompts}-{tokens}")
        runner.run(folder)
        assert [trained(x) for x in lines_of(folder)] == [trained(x) for x in whole[: last + 1]]


@pytest.mark.parametrize("state", ["ahead", "surplus"])
def test_a_sampler_that_runs_ahead_stops_where_the_budget_is_spent(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """With staleness, no batch is sampled that is not trained on, so that all generated tokens are counted."""
    long = job_folder(of(recipe, state, steps=LONG), name="long")
    runner.run(long)
    tokens = spent(lines_of(long))[3]
    sampled: list[int] = []
    collect = trainer.collect

    def counted(recipe: Recipe, source: Any, step: int, *more: Any) -> Any:
        sampled.append(step)
        return collect(recipe, source, step, *more)

    monkeypatch.setattr(trainer, "collect", counted)
    runner.run(job_folder(of(recipe, state, steps=LONG, tokens=tokens), name="budget"))
    assert sampled == [1, 2, 3]


@pytest.mark.parametrize("stop_at", [1, 2, 3])
@pytest.mark.parametrize("state", ["plain", "refill", "ahead", "surplus"])
def test_a_stopped_run_goes_on_to_the_same_last_step(
    recipe: Recipe, job_folder: JobFolder, state: str, stop_at: int
) -> None:
    """Stopped after step 1, 2 or the last, a run with a budget ends with the same weights and numbers to the bit."""
    long = job_folder(of(recipe, state, steps=LONG), name="long")
    runner.run(long)
    recipe = of(recipe, state, steps=LONG, tokens=spent(lines_of(long))[3])
    whole, first = job_folder(recipe, name="whole"), job_folder(recipe, name="cut")
    runner.run(whole)
    train_until(stop_at, first)
    second = job_folder(recipe, name="cut", token=2)
    runner.run(second)
    assert lines_of(second) == lines_of(whole)
    assert lines_of(second)[-1]["step"] == 3
    assert same(weights_of(second), weights_of(whole))
    assert RunFolder(second).read_evaluations() == RunFolder(whole).read_evaluations()


def test_the_end_is_evaluated_once(recipe: Recipe, job_folder: JobFolder) -> None:
    """Where the last step is one that is evaluated anyway, it has one evaluation of each set."""
    folder = job_folder(changed(recipe, schedule={"tokens": 1}), name="one", evaluate=Evaluate(every=1, problems=10))
    runner.run(folder)
    assert [e.step for e in RunFolder(folder).read_evaluations()] == [0, 1]
