"""Process supervision: rewards of steps, normalised over the steps of a group, against an independent computation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paribus.recipe import factors as f
from paribus.recipe.analysis.inert import inert
from paribus.recipe.recipe import ChainTask, Recipe
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import runner
from paribus_runners.native.experience import weigh
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Given, Responses
from paribus_runners.native.rollout.step_ends import step_rewards
from paribus_runners.rewards.functions import step_scores
from paribus_runners.rewards.pool import Outcome
from paribus_runners.tasks.tools import step_sums
from support.native_runs import changed

CORRECT = [[True, False, True], [False, False, True]]
STEP = f.RewardFunction(path="paribus_runners.tasks.tools.step_sums", unit="step", weight=0.7, timeout_s=60.0)


def _recipe(correct: float = 0.0, weights: tuple[float, float] = (0.7, -0.4), **changes: Any) -> Recipe:
    functions = {
        "a": f.RewardFunction(path="m.a", unit="step", weight=weights[0]),
        "b": f.RewardFunction(path="m.b", unit="step", weight=weights[1]),
    }
    reward = f.Reward(weights=f.Weights(correct=correct), functions=functions, factor=2.0)
    return Recipe.model_validate({"baseline": f.GroupSteps(), "reward": reward, **changes})


def _with_steps(rollouts: Any, share: float = 0.4, seed: int = 0) -> Any:
    """Return the rollouts with drawn rewards of steps of two functions."""
    draw, count, row = np.random.default_rng(seed), len(rollouts.responses.ids), rollouts.responses.row
    steps = np.where(draw.random((count, 2)) < share, draw.normal(size=(count, 2)), np.nan)
    sums = torch.zeros(len(rollouts.responses), 2, dtype=torch.float64)
    sums = sums.index_add(0, row, torch.tensor(steps).nan_to_num(0.0))
    return replace(rollouts, steps=torch.tensor(steps), scored=replace(rollouts.scored, rewards=sums))


@pytest.mark.parametrize("scale", [f.GroupStd(ddof=0, eps=0.01), f.NoScale()])
@pytest.mark.parametrize("correct", [0.0, 1.5])
def test_advantages_are_those_of_an_independent_computation(correct: float, scale: Any, made: Any) -> None:
    """DeepSeekMath section 4.1.3 in numpy: step by step, with two functions, weights, a factor and an outcome."""
    recipe = _recipe(correct, scale=scale)
    rollouts = _with_steps(made(Recipe(), CORRECT))
    steps, lengths = rollouts.steps.numpy(), rollouts.responses.length.tolist()
    starts, want = [0, *np.cumsum(lengths)], np.zeros(len(steps))
    for group in range(2):
        events: list[tuple[int, int, float]] = []
        for i in range(3 * group, 3 * group + 3):
            for t in range(lengths[i]):
                both = steps[starts[i] + t]
                value = 2.0 * np.nansum(both * [0.7, -0.4])
                last = correct != 0 and t == lengths[i] - 1
                if not np.isnan(both).all() or last:
                    events.append((i, t, value + last * 2.0 * correct * float(rollouts.scored.score[i])))
        values = np.array([value for _, _, value in events])
        divisor = values.std() + 0.01 if scale.kind == "group_std" else 1.0
        for i, t, value in events:
            want[starts[i] : starts[i] + t + 1] += (value - values.mean()) / divisor
    assert weigh(recipe, rollouts).advantage.tolist() == pytest.approx(want.tolist())


@pytest.mark.parametrize("scale", [f.GroupStd(), f.NoScale()])
def test_one_step_at_the_end_is_grpo_to_the_bit(scale: Any, made: Any) -> None:
    """An outcome, or one step of each response at its last token, gives the advantages of the group's mean."""
    plain = Recipe(scale=scale)
    rollouts = made(plain, CORRECT)
    want = weigh(plain, rollouts).advantage
    assert torch.equal(weigh(Recipe(scale=scale, baseline=f.GroupSteps()), rollouts).advantage, want)
    last = rollouts.responses.length.cumsum(0) - 1
    steps = torch.full((len(rollouts.responses.ids), 1), torch.nan, dtype=torch.float64)
    steps[last, 0] = rollouts.scored.score
    here = replace(rollouts, steps=steps, scored=replace(rollouts.scored, rewards=rollouts.scored.score[:, None]))
    functions = {"a": f.RewardFunction(path="m.a", unit="step")}
    reward = f.Reward(weights=f.Weights(correct=0.0), functions=functions)
    assert torch.equal(weigh(Recipe(scale=scale, baseline=f.GroupSteps(), reward=reward), here).advantage, want)


def test_responses_that_are_left_out_have_no_part(made: Any) -> None:
    """Their steps move no mean, and their tokens have no advantage; nor has anything without a step."""
    recipe = _recipe()
    rollouts = _with_steps(made(Recipe(), CORRECT))
    kept = rollouts.kept.clone()
    kept[0] = False
    found = weigh(recipe, replace(rollouts, kept=kept)).advantage
    first = int(rollouts.responses.length[0])
    assert not found[:first].any()
    assert found.any()
    steps = rollouts.steps.clone()
    steps[:first] = 100 * steps[:first].nan_to_num(1.0)
    assert torch.equal(weigh(recipe, replace(rollouts, kept=kept, steps=steps)).advantage, found)
    scored = replace(rollouts.scored, rewards=torch.zeros_like(rollouts.scored.rewards))
    silent = replace(rollouts, steps=torch.full_like(rollouts.steps, torch.nan), scored=scored)
    assert not weigh(recipe, silent).advantage.any()


def test_selecting_and_joining_groups_keep_their_steps(made: Any) -> None:
    """Groups in another order, and joined, have the rewards that they had."""
    rollouts = _with_steps(made(Recipe(), CORRECT))
    back = rollouts.groups([1, 0]).groups([1, 0])
    torch.testing.assert_close(back.steps, rollouts.steps, equal_nan=True)
    joined = rollouts.join([rollouts.groups([0]), rollouts.groups([1])])
    torch.testing.assert_close(joined.steps, rollouts.steps, equal_nan=True)


def test_steps_end_at_the_token_that_completes_them(policy: Policy) -> None:
    """The end of the text is the end mark; a step that ends in an answer ends at the token before it."""
    ids = [*policy.encode_inside("b58?c86#6"), policy.ends[0]]
    own, one = torch.tensor([*ids[:4], *ids[5:]]), torch.tensor([1])
    given = Given(torch.tensor(ids[4:5]), torch.tensor([4]), one, one, torch.tensor([False]))
    responses = Responses(own, torch.zeros(9), None, torch.tensor([9]), torch.tensor([False]), given=given)
    found = step_rewards(policy, responses, [[[(3, 1.0), (5, 2.0), (6, 3.0), (9, 4.0)], []]])
    assert found.shape == (9, 2)
    assert {t: float(found[t, 0]) for t in range(9) if not found[t, 0].isnan()} == {2: 1.0, 3: 2.0, 4: 3.0, 8: 4.0}
    assert found[:, 1].isnan().all()


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([[[1, 0.5], [3, 1]], []], None),
        ([[[1, 0.5]]], "wrong_length"),
        ([[[4, 0.5]], []], "wrong_length"),
        ([[[2, 0.5], [2, 0.5]], []], "wrong_length"),
        ([[[1, "x"]], []], "not_a_number"),
        ([[0.5], []], "not_a_number"),
        ([[[1, float("nan")]], []], "not_a_number"),
        (0.5, "not_a_number"),
    ],
)
def test_what_a_function_of_steps_may_return(value: Any, fault: str | None) -> None:
    """Ends that ascend inside the text, and finite numbers."""
    assert step_scores(Outcome(value), ["abc", "d"])[1] == fault


def test_the_chain_task_rewards_each_running_sum() -> None:
    """A sum is right if it is that of the prompt up to its letter."""
    assert step_sums(["a3b5c8="], ["b58c87#7"]) == [[(3, 1.0), (6, -1.0)]]


def test_a_run_is_trained_on_its_steps(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """The metrics say how many steps there were; a plan calls the baseline without steps an alias."""
    reward = f.Reward(functions={"sums": STEP})
    path = job_folder(changed(recipe, task=ChainTask(), baseline=f.GroupSteps(), reward=reward, schedule={"steps": 1}))
    runner.run(path)
    values = list(RunFolder(path).read_metrics())[-1].values
    assert 0 < values["group/steps_mean"] < 12
    assert values["optim/grad_norm"] > 0
    assert values["reward/failed_frac"] == 0
    assert inert(Recipe(), Recipe(baseline=f.GroupSteps())) is not None
    assert inert(Recipe(), _recipe(1.0)) is None
