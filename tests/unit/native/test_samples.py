"""Groups of training that are kept as text say the same as the metrics of their step."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.contract import Evaluate
from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import HELDOUT, TRAIN, RunFolder
from paribus.run_folder.samples import Sample, SampleFile
from paribus_runners.native import runner, samples
from paribus_runners.native.experience import Before, weigh
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.tasks import Chain

LENGTH = f.Length(rule=f.SoftOverlong(soft_start=2, hard_cap=6))
BY_TOKEN: dict[str, Any] = {
    "kl": f.KlInReward(beta=0.1, unit="token"),
    "baseline": f.BatchMean(),
    "scale": f.BatchWhiten(),
}
RIGHT = [[True, False, True, False], [True, True, True, True], [False, False, True, True]]

Made = Callable[..., Rollouts]


def _changed(recipe: Recipe, **changes: Any) -> Recipe:
    return Recipe.model_validate({**dict(recipe), **changes})


def _trained(path: Path, step: int) -> list[Sample]:
    """Return the samples of training at a step, in their order."""
    file = SampleFile(path / "samples.jsonl")
    file.refresh()
    assert not file.damaged
    assert set(file.sets) == {TRAIN, HELDOUT}
    return [s for s in file.read(file.pieces) if s.set == TRAIN and s.step == step]


def test_whole_groups_are_kept(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """With as many prompts a step as are kept, the samples give the metrics; the task judges them the same."""
    schedule = recipe.schedule.model_copy(update={"prompts_per_step": samples.GROUPS, "steps": 2})
    recipe = _changed(recipe, schedule=schedule, length=f.Length(rule=f.SoftOverlong(soft_start=2, hard_cap=12)))
    path = job_folder(recipe, evaluate=Evaluate(every=2, problems=10, samples=2))
    runner.run(path)
    task = Chain()
    for line in list(RunFolder(path).read_metrics())[1:]:
        found = _trained(path, line.step)
        assert [s.number for s in found] == [*range(8)] * samples.GROUPS
        assert len({(s.problem, s.prompt) for s in found}) == samples.GROUPS
        assert line.values["reward/shaped_mean"] == pytest.approx(statistics.fmean(s.reward for s in found))
        assert line.values["reward/correct_frac"] == pytest.approx(statistics.fmean(s.correct for s in found))
        assert line.values["response/length_mean"] == pytest.approx(statistics.fmean(s.tokens for s in found))
        assert line.values["response/truncated_frac"] == pytest.approx(statistics.fmean(not s.finished for s in found))
        problems = task.training(0, line.step, 0, samples.GROUPS)
        assert [p.prompt for p in problems for _ in range(8)] == [s.prompt for s in found]
        verdicts = [task.verify(problems[i // 8], s.response, s.finished) for i, s in enumerate(found)]
        assert [v.correct for v in verdicts] == [s.correct for s in found]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, set()),
        ({"length": LENGTH}, {"correct", "length"}),
        ({"reward": f.Reward(weights={"correct": 1.0, "format": 0.5})}, {"correct", "format"}),
        ({"kl": f.KlInReward(beta=0.1), "length": LENGTH}, {"correct", "length", "kl"}),
        (BY_TOKEN, {"correct", "kl"}),
    ],
)
def test_a_reward_is_the_sum_of_its_parts(
    recipe: Recipe, policy: Policy, made: Made, changes: dict[str, Any], names: set[str]
) -> None:
    """Parts are told where there are several; their sum is the reward."""
    recipe = _changed(recipe, **changes)
    for record in samples.of_step(recipe, policy, weigh(recipe, made(recipe, RIGHT)), 1):
        parts = record.get("reward_parts", {})
        assert set(parts) == names
        assert not parts or sum(parts.values()) == pytest.approx(record["reward"])


def test_advantages_are_those_of_the_group(recipe: Recipe, policy: Policy, made: Made) -> None:
    """Within a group, the reward less the mean over the deviation; none where the filter threw the group away."""
    recipe = _changed(recipe, filter=f.Refill())
    found = samples.of_step(recipe, policy, weigh(recipe, made(recipe, RIGHT)), 1)
    first, second = found[:4], found[4:]
    rewards = [record["reward"] for record in first]
    wanted = [(r - statistics.fmean(rewards)) / statistics.stdev(rewards) for r in rewards]
    assert [record["advantage"] for record in first] == pytest.approx(wanted, rel=1e-4)
    assert [record["correct"] for record in second] == [True] * 4
    assert not any("advantage" in record for record in second)


def test_tokens_with_their_own_advantages_have_none_together(recipe: Recipe, policy: Policy, made: Made) -> None:
    """Where each token pays for its own distance to the reference, no number stands for the response."""
    recipe = _changed(recipe, **BY_TOKEN)
    assert not any("advantage" in r for r in samples.of_step(recipe, policy, weigh(recipe, made(recipe, RIGHT)), 1))


def test_learner_and_sampler_are_compared_where_both_are_known(recipe: Recipe, policy: Policy, made: Made) -> None:
    """With a correction: the mean absolute difference over the tokens of each response; without one nothing."""
    assert "logp_abs_diff_mean" not in samples.of_step(recipe, policy, weigh(recipe, made(recipe, RIGHT)), 1)[0]
    recipe = _changed(recipe, correction=f.TokenTruncate())
    rollouts = made(recipe, RIGHT)
    responses = rollouts.responses
    logp = responses.logp + 0.25
    found = samples.of_step(recipe, policy, weigh(recipe, rollouts, Before(logp=logp)), 1)
    assert [record["logp_abs_diff_mean"] for record in found] == pytest.approx([0.25] * 8)


def test_a_long_run_keeps_groups_of_some_steps(recipe: Recipe, policy: Policy, made: Made) -> None:
    """Two hundred steps at most, evenly over the run; numbers that are not finite are texts, as in metric lines."""
    schedule = recipe.schedule.model_copy(update={"steps": 3 * samples.STEPS})
    long = _changed(recipe, schedule=schedule)
    experience = weigh(long, made(long, RIGHT))
    kept = [step for step in range(1, 10) if samples.of_step(long, policy, experience, step)]
    assert kept == [3, 6, 9]
    experience.advantage[0] = float("nan")
    assert samples.of_step(long, policy, experience, 3)[0]["advantage"] == "nan"


def test_a_prompt_is_shown_without_its_filling(policy: Policy) -> None:
    """What a model of fixed prompt width is given on the left is no part of the prompt."""
    assert policy.width
    assert policy.decode_prompts(policy.encode(["a3b9=", "a2b4c2d9="])) == ["a3b9=", "a2b4c2d9="]
    assert dataclasses.replace(policy, width=0).decode_prompts([[5, 6]]) == policy.decode([[5, 6]])
