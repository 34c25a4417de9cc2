"""What a plan of the verl runner says, without verl and without its environment."""

import pytest

from paribus.contract import Options, load_runner
from paribus.errors import ParibusError, RunnerError
from paribus.recipe.resolve import resolve_base
from paribus.study.expand import draft_file
from paribus_runners.capabilities import matrix_for
from paribus_runners.environments import FOLDER
from paribus_runners.verl.options import VerlOptions, arguments
from paribus_runners.verl.overrides import overrides, written

STUDY = """\
study: verl_plan
question: Does Dr. GRPO help?
runner: {kind: verl}
base:
  preset: grpo
  set:
    kl: off
    model.name: org/model
    rollout.engine: vllm
    optimizer.learning_rate: 1.0e-6
    task: chain
    schedule: {steps: 4, prompts_per_step: 8, group_size: 4}
tricks:
  dr: {aggregation: const, scale: none}
  higher: {clip.high: 0.28}
  dual: {clip: {kind: ppo_dual, c: 3.0}}
designs:
  solo: {kind: add_one}
seeds: {n: 2}
evaluate: {every: 2, problems: 16}
"""
ACTOR = "actor_rollout_ref.actor."


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return a function that writes a study with changes, beside no environment."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "environments"))

    def write(more="", old="", new=""):
        file = tmp_path / "study.yaml"
        file.write_text(STUDY.replace(old, new) + more if old else STUDY + more)
        return file

    return write


def recipe(**patch):
    """Return a recipe of GRPO without KL for verl, patched."""
    plain = {"kl": "off", "model.name": "org/model", "rollout.engine": "vllm", "optimizer.learning_rate": 1e-6}
    found = resolve_base("grpo", {**plain, "task": "chain", **patch}).recipe
    assert found is not None
    return found


def test_each_arm_differs_in_the_options_of_its_trick_alone(study):
    """The whole configuration is compared, so that what is not listed is equal."""
    draft = draft_file(study())
    base = draft.native[draft.plan.base]
    arms = {arm.label: draft.native[arm.key] for arm in draft.plan.arms if arm.label != "base"}
    differing = {label: {k for k in {*base, *mine} if base.get(k) != mine.get(k)} for label, mine in arms.items()}
    assert differing == {
        "+ dr": {f"{ACTOR}loss_agg_mode", f"{ACTOR}loss_scale_factor", "algorithm.norm_adv_by_std_in_grpo"},
        "+ higher": {f"{ACTOR}clip_ratio_high"},
        "+ dual": {f"{ACTOR}clip_ratio_c"},
    }
    assert base[f"{ACTOR}clip_ratio_c"] == 1e9
    assert base["trainer.total_training_steps"] == 4
    assert arms["+ dr"][f"{ACTOR}loss_scale_factor"] == 37


def test_a_missing_environment_is_shown_with_its_remedy(study):
    """The plan is shown and not run, and says which command installs what is missing."""
    assert any("`paribus runners install verl`" in fault for fault in draft_file(study()).unread)


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ("actor_rollout_ref.actor.use_torch_compil: true", "Did you mean `actor_rollout_ref.actor.use_torch_compile`?"),
        ("data.seed: 3", "`data.seed` is set by Paribus: `seeds`"),
        ("trainer.use_v1: true", "`runner.deterministic`"),
        ("actor_rollout_ref.actor.loss_agg_mode: token-mean", "follows from the recipe: set `aggregation`"),
        ("actor_rollout_ref.rollout.load_format: '${oc.env:HOME}'", "as a reference: leave it out"),
        ("data: {seed: 3}", "`data` is none of the options that a study passes on to verl"),
    ],
)
def test_options_that_cannot_be_passed_on_are_refused(study, passed, message):
    """A misspelt option, one that Paribus sets, one that the recipe says and one that would read a variable."""
    with pytest.raises(ParibusError, match=r"study\.yaml:21:") as caught:
        draft_file(study(f"verl: {{{passed}}}\n"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ({"rollout.engine": "torch"}, "verl samples with vLLM. Nearest: `rollout.engine: vllm`"),
        ({"model.name": "tiny"}, "made on the spot"),
        ({"clip": "two_sided"}, "acts on negative advantages alone. Nearest: `clip: ppo_dual`"),
        ({"baseline": "none"}, "only a group of one keeps its reward"),
        ({"ratio": "none"}, "no ratio to clip. Nearest: `clip: none`"),
        ({"clip": "soft_gate", "aggregation": "token_batch"}, "Nearest: `aggregation: seq_mean`"),
        ({"length.truncated": "mask_loss"}, "no mask of truncated responses"),
        ({"kl": {"kind": "loss_isw", "beta": 0.1}}, "has no ratio. Nearest: `kl: loss`"),
        ({"schedule.prompts_per_step": 5, "schedule.minibatches": 3}, "choose numbers that divide"),
        (
            {
                "baseline": {"kind": "critic_gae", "critic_lambda": 0.9},
                "scale": "none",
                "auxiliary.value": {"clip": 0.2},
            },
            "one lambda for both",
        ),
    ],
)
def test_what_verl_cannot_do_is_refused_with_a_reason(patch, reason):
    """No level is trained as something else in silence."""
    found = load_runner("verl").support(recipe(**patch), Options())
    assert any(reason in s.reason for s in found if s.level == "unsupported")


def test_determinism_and_a_filter_that_refills_exclude_each_other():
    """Verl's newer trainer has the filter, the older one is deterministic: a plan refuses both at once."""
    both = Options(own={"deterministic": True})
    runner = load_runner("verl")
    (fault,) = [s for s in runner.support(recipe(filter="refill"), both) if s.level == "unsupported"]
    assert "`use_v1: true`" in fault.reason
    assert "choose one of the two" in fault.reason
    assert runner.native_options(recipe(), both)["trainer.use_v1"] is False
    assert runner.native_options(recipe(filter="refill"), Options())["trainer.use_v1"] is True


@pytest.mark.parametrize(("estimator", "exact"), [("k2", True), ("k3", False)])
def test_k3_in_the_loss_is_approximate(estimator, exact):
    """It is cut off in verl, where its gradient ends; k2 is not."""
    kl = {"kind": "loss", "estimator": estimator, "beta": 0.1}
    found = load_runner("verl").support(recipe(kl=kl), Options())
    assert [s.level for s in found if "k3" in s.reason] == ([] if exact else ["approximate"])


def test_approximate_levels_say_how_far():
    """What verl does almost as the recipe says has a reason, and needs the study's consent."""
    patch = {"filter": "refill", "auxiliary.entropy": 0.1, "scale.eps": 1e-4, "schedule.minibatches": 2}
    found = load_runner("verl").support(recipe(**patch), Options())
    assert {s.feature for s in found} == {"filter", "auxiliary.entropy", "scale", "schedule.minibatches"}
    assert all(s.level == "approximate" and s.reason for s in found)


def test_overrides_are_written_in_hydras_grammar():
    """Values keep their types, and `+` stands before the listed keys alone."""
    options = {"a.b": None, "a.c": True, "d": 1e-8, "e": [0.9, 0.99], "f": {"eps": 1e-8}, "g": "0.5_2.0", "h": "token"}
    said = ["a.b=null", "a.c=true", "d=1e-08", "+e=[0.9,0.99]", "f={eps:1e-08}", 'g="0.5_2.0"', "h=token"]
    assert overrides(options, ["e"]) == said
    assert written('a\\"b\\') == '"a\\\\\\"b\\\\"'
    for wrong in ("${a}", "a\nb", object()):
        with pytest.raises(ParibusError, match="`k`"):
            written(wrong, "k")


def test_the_arguments_of_a_run_hold_every_seed():
    """The data, the actor, the reference, the critic and vLLM are seeded, each by its own key."""
    found = matrix_for("verl", "0.9.1").capabilities
    said = arguments(found, recipe(), {}, VerlOptions(), seed=3, gpus=2, more={"trainer.rollout_data_dir": "/d e"})
    assert {a for a in said if "seed=" in a} == {f"{name}=3" for name in found.options.seeds}
    assert len(found.options.seeds) == 7
    assert {"trainer.n_gpus_per_node=2", 'trainer.rollout_data_dir="/d e"'} < set(said)


def test_a_step_of_verl_repeats_no_problems(study):
    """Its loader refuses data that don't fill a batch, so the warning for other runners has no meaning here."""
    for runner, warned in (("verl", False), ("native", True)):
        text = study(old="task: chain", new="task: {kind: chain, problems: 5}").read_text()
        (file := study()).write_text(text.replace("{kind: verl}", runner))
        assert ("repeated_problems" in {each.code for each in draft_file(file).plan.warnings}) == warned


def test_plan_and_run_say_that_nothing_is_trained(study, tmp_path):
    """The plan is shown, no run of it can be started, and both say so in the same words."""
    assert any("does not start verl" in fault for fault in draft_file(study()).unread)
    with pytest.raises(RunnerError, match="does not start verl"):
        load_runner("verl").run(tmp_path)
