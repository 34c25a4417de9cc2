"""Runs that TRL trains, each in a process of its own, with what recipes can ask for beside the objective."""

import pytest

from paribus.contract import Evaluate, EvaluationSet, Job, Options
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.folder import RunFolder, read_json, write_json
from paribus.testing.runner_suite import RunnerTestCase

BREVITY = """\
import scale

def brevity(completions, answer, **_):
    return [scale.FACTOR / (1 + len(text)) for text in completions]
"""
BASE = {
    "kl": "off",
    "task": "chain",
    "scale.eps": 1e-4,
    "optimizer.learning_rate": 1e-3,
    "schedule": {"steps": 2, "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 10, "minibatches": 2},
}


@pytest.fixture
def train(warm, tmp_path):
    """Return a function that trains a job and gives its folder."""

    def trained(patch, evaluate=None, **options):
        recipe = resolve_base("grpo", {**BASE, "model": str(warm), **patch}).recipe
        assert recipe is not None
        folder = RunFolder(tmp_path / "run" / "a1")
        folder.path.mkdir(parents=True)
        job = Job(
            run="0" * 64, study="runs", arm="base", runner="trl", options=Options(**options), seed=3, token=1,
            recipe=recipe, evaluate=evaluate or Evaluate(every=2, problems=4), cache=str(tmp_path / "cache"),
        )  # fmt: skip
        write_json(folder.job, job.model_dump(mode="json"))

        class Case(RunnerTestCase):
            runner = "trl"

        assert Case.train(folder) == 0, folder.log.read_text()
        return folder

    return trained


def test_reward_functions_of_a_study_score_what_trl_trains_on(train):
    """The files beside the study travel with the job; the function's mean is a metric, and part of TRL's reward."""
    functions = {"brevity": {"path": "my_rewards.brevity", "weight": 0.5}}
    sources = {"my_rewards.py": BREVITY, "scale.py": "FACTOR = 2.0\n"}
    folder = train({"reward.functions": functions, "reward.map": "binary01"}, sources=sources)
    values = [line.values for line in folder.read_metrics()][1]
    assert 0 < values["reward/brevity/mean"] < 2
    assert values["native/trl/reward"] == pytest.approx(values["reward/shaped_mean"], abs=1e-6)
    assert values["reward/shaped_mean"] == pytest.approx(
        values["reward/correct_frac"] + 0.5 * values["reward/brevity/mean"], abs=1e-6
    )
    assert read_json(folder.result)["model"] == "checkpoints/step-000002"


def test_sets_and_a_length_rule_are_those_of_every_runner(train):
    """Each set is evaluated with its own settings; the soft overlong punishment is in the reward."""
    sets = {"cool": EvaluationSet(temperature=0.5, samples=2, problems=3, every=1)}
    rule = {"length.rule": {"kind": "soft_overlong", "soft_start": 3, "hard_cap": 10}}
    folder = train(rule, Evaluate(every=2, problems=4, sets=sets))
    lines = [line.values for line in folder.read_metrics()]
    assert [f"eval/{name}/avg_at_{k}" in line for line in lines for name, k in (("heldout", 1), ("cool", 2))] == [
        True, True, False, True, True, True,
    ]  # fmt: skip
    assert lines[1]["reward/shaped_mean"] < lines[1]["reward/mean"]
    assert lines[2]["budget/optimizer_steps"] == 4
