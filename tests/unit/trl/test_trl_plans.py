"""What a plan of the TRL runner says, without TRL and without its environment."""

import json

import pytest

from paribus.contract import Options, load_runner
from paribus.home import data_root
from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import resolve_base
from paribus.study.expand import draft_file
from paribus_runners.environments import FOLDER, Environment

STUDY = """\
study: trl_plan
question: Does Dr. GRPO help?
runner: {kind: trl}
base:
  preset: grpo
  set: {kl: off, scale.eps: 1.0e-4, task: chain, schedule: {steps: 4, prompts_per_step: 8, group_size: 4}}
tricks:
  dr: {aggregation: const, scale: none}
  higher: {clip.high: 0.28}
designs:
  solo: {kind: add_one}
seeds: {n: 2}
evaluate: {every: 2, problems: 16}
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return a function that writes a study with more lines, beside no environment."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "environments"))

    def write(more=""):
        file = tmp_path / "study.yaml"
        file.write_text(STUDY + more)
        return file

    return write


def test_each_arm_differs_in_the_options_of_its_trick_alone(study):
    """The whole configuration of TRL is compared, so that what is not listed is equal."""
    draft = draft_file(study())
    base = draft.native[draft.plan.base]
    arms = [arm for arm in draft.plan.arms if arm.label != "base"]
    differing = {arm.label: {k for k in base if base[k] != draft.native[arm.key][k]} for arm in arms}
    assert differing == {"+ dr": {"loss_type", "scale_rewards"}, "+ higher": {"epsilon_high"}}
    assert base["max_steps"] == 4
    assert base["per_device_train_batch_size"] == 32


def test_one_study_file_is_planned_for_three_trainers(tmp_path, monkeypatch):
    """All three plan the same arms, seeds and evaluation, none refuses an arm, and no two share a run."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "environments"))
    file = data_root("ablations") / "studies" / "three_trainers_cpu.yaml"
    drafts = [draft_file(file, change) for change in ((), ("runner=trl",), ("runner=native",))]
    assert [d.plan.runner for d in drafts] == ["command", "trl", "native"]
    assert not any(d.unsupported for d in drafts)
    assert len({tuple((a.key, a.label) for a in d.plan.arms) for d in drafts}) == 1
    assert len({(d.plan.seeds, d.plan.evaluate.model_dump_json(), d.plan.margin) for d in drafts}) == 1
    runs = [{run.fingerprint for run in d.plan.runs} for d in drafts if not d.unread]
    assert len(set().union(*runs)) == sum(map(len, runs))


def test_a_missing_environment_is_shown_with_its_remedy(study):
    """The plan is shown and not run, and says which command installs what is missing."""
    assert any("`paribus runners install trl`" in fault for fault in draft_file(study()).unread)


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ("gradient_checkpoint: true", "Did you mean `gradient_checkpointing`?"),
        ("seed: 3", "`seed` is set by Paribus: `seeds`"),
        ("top_p: 0.9", "trl#6789"),
        ("loss_type: dapo", "follows from the recipe: set `aggregation` or `clip`"),
    ],
)
def test_options_that_cannot_be_passed_on_are_refused(study, passed, message):
    """A misspelt option, one that Paribus sets, and one that the recipe says are errors with their place."""
    with pytest.raises(Exception, match=r"study\.yaml:14:7") as caught:
        draft_file(study(f"trl: {{{passed}}}\n"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ({"filter": "refill"}, "no dynamic sampling. Nearest: `filter: none`"),
        ({"baseline": "group_loo"}, "Nearest: `baseline: group_mean`"),
        ({"clip": "is_cap_sg"}, "Nearest: `aggregation: token_batch`"),
        ({"rollout": {"engine": "vllm"}}, "never sampled with TRL's vLLM"),
        ({"schedule.prompts_per_step": 5, "schedule.minibatches": 3}, "choose numbers that divide"),
    ],
)
def test_what_trl_cannot_do_is_refused_with_a_reason(patch, reason):
    """No level is trained as something else in silence."""
    base = resolve_base("grpo", {"kl": "off", "task": "chain", **patch}).recipe
    found = load_runner("trl").support(base, Options())
    assert any(reason in s.reason for s in found if s.level == "unsupported")


def test_approximate_levels_say_how_far():
    """TRL's eps, its shuffling and its warm-up are approximate, each with its reason."""
    patch = {"kl": "off", "task": "chain", "schedule.minibatches": 2, "optimizer.warmup_steps": 3}
    found = load_runner("trl").support(resolve_base("grpo", patch).recipe, Options())
    assert {s.feature for s in found} == {"scale.eps", "schedule.minibatches", "optimizer.warmup_steps"}
    assert all(s.level == "approximate" and s.reason for s in found)


def test_versions_and_passed_options_are_part_of_what_a_run_is():
    """Hashes are stable and cover the version of TRL; a study's options are in the fingerprint."""
    runner, recipe = load_runner("trl"), Recipe()
    assert runner.hashes(recipe, Options()) == runner.hashes(recipe, Options())
    assert runner.requirements(recipe, Options()).versions["trl"] == "1.16.0"
    assert runner.hashes(recipe, Options()).code != load_runner("native").hashes(recipe, Options()).code
    assert Options(passthrough={"torch_compile": True}).said


def test_the_states_of_an_environment(tmp_path, monkeypatch):
    """Missing, unfinished, another version and ready each have their remedy."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    lock = tmp_path / "toy.lock"
    lock.write_text("toy==1.0\n")
    made = Environment("toy", lock)
    assert made.state() == ("missing", "it is not installed: run `paribus runners install toy`")
    (made.folder / "bin").mkdir(parents=True)
    made.python.touch()
    assert made.state()[0] == "unfinished"
    (made.folder / "paribus.json").write_text(json.dumps({}))
    assert made.state() == ("other", "toy is missing, and the lock has 1.0: run `paribus runners install toy` again")
    named = Environment("toy", lock, tmp_path / "mine")
    assert named.state()[0] == "missing"
    assert "make one there" in named.state()[1]
