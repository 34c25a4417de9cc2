"""On the same rollouts TRL's first update has the native runner's gradient, and step 0 the native evaluation."""

import copy
import dataclasses
from random import Random

import pytest

from paribus.run_folder.folder import RunFolder, read_json, write_json
from paribus.run_folder.samples import parse_sample
from paribus_runners.native import attention, main
from paribus_runners.native.batch import minibatches, passes, tokens_of
from paribus_runners.native.experience import weigh
from paribus_runners.native.learner import Learner
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.update import backward

KL = {"kl": {"kind": "loss", "estimator": "k3", "beta": 0.1}}
CASES = {
    "grpo": ("grpo", {}),
    "dr_grpo": ("dr_grpo", {}),
    "clip higher": ("grpo", {"clip.high": 0.28}),
    "token mean": ("grpo", {"aggregation": "token_batch"}),
    "gspo": ("gspo", {}),
    "cispo": ("cispo", {}),
    "sapo": ("sapo", {}),
    "lite_ppo": ("lite_ppo", {}),
    "kl": ("grpo", KL),
    "overlong masked": ("grpo", {"length.truncated": "mask_loss", "length.count_masked_rows": True}),
    "warm": ("grpo", {"schedule.temperature": 0.7}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_the_first_update_is_the_native_one(case, session):
    """Every weight's gradient is equal within 1e-4 of the largest, on what TRL has sampled."""
    preset, patch = CASES[case]
    run = session(preset, patch)
    before = dataclasses.replace(run._policy, model=copy.deepcopy(run._policy.model))
    theirs = {}
    updated = run.updated

    def keep(norm):
        theirs.update({name: p.grad.clone() for name, p in run._policy.model.named_parameters()})
        updated(norm)

    run.updated = keep
    run.run(None, 0)
    before.model.set_attn_implementation(attention.NAME)
    rollouts, recipe = run._experience.rollouts, run._recipe
    learner = Learner.of(recipe, before)
    if learner.reference is not None:
        logp = score_all(learner.reference, rollouts.prompts, rollouts.responses, recipe.schedule.temperature).logp
        assert (logp - rollouts.reference).abs().max() < 1e-4
        rollouts = dataclasses.replace(rollouts, reference=logp)
    experience = weigh(recipe, rollouts, learner.before(recipe, rollouts))
    (batch,) = minibatches(recipe, experience, Random(0))
    (tokens,) = passes(recipe, tokens_of(recipe, experience, batch))
    list(backward(recipe, learner, rollouts, batch, tokens))
    ours = {name: p.grad for name, p in before.model.named_parameters()}
    assert max(g.abs().max() for g in ours.values()) > 1e-6
    for name, gradient in ours.items():
        apart = (gradient - theirs[name]).abs().max() / gradient.abs().max().clamp_min(1e-8)
        assert apart < 1e-4, (name, float(apart))


def test_the_advantages_are_the_native_ones(session):
    """TRL's own advantages are those of the recipe."""
    run = session()
    run.run(None, 0)
    ours = weigh(run._recipe, run._experience.rollouts).advantage
    assert (run._experience.advantage - ours).abs().max() < 1e-5


def test_what_the_sampler_saw_is_what_the_learner_sees(session):
    """Log-probabilities and entropies noted while Transformers samples agree with a forward pass, at a temperature."""
    run = session(patch={"schedule.temperature": 0.7})
    before = dataclasses.replace(run._policy, model=copy.deepcopy(run._policy.model))
    before.model.set_attn_implementation(attention.NAME)
    run.run(None, 0)
    rollouts = run._experience.rollouts
    scores = score_all(before, rollouts.prompts, rollouts.responses, 0.7, with_entropy=True)
    assert (scores.logp - rollouts.responses.logp).abs().max() < 1e-4
    assert (scores.entropy - rollouts.responses.entropy).abs().max() < 1e-4


def test_problems_and_evaluation_are_those_of_every_runner(session, tmp_path):
    """Step 0 has the native runner's evaluation to the last answer, and each step its problems in its order."""
    run = session(patch={"schedule.steps": 2})
    run.run(None, 0)
    native = RunFolder(tmp_path / "native" / "a1")
    native.path.mkdir(parents=True)
    write_json(native.job, run._job.model_copy(update={"runner": "native"}).model_dump(mode="json"))
    main.run(native.path)
    assert run._folder.read_evaluations()[0] == native.read_evaluations()[0]

    def prompts(folder):
        found = [parse_sample(line) for line in folder.samples.read_bytes().splitlines()]
        return [(s.step, s.prompt) for s in found if s.set == "train"]

    assert prompts(run._folder) == prompts(native)
    assert {step for step, _ in prompts(native)} == {1, 2}


def test_a_run_that_stops_on_nan_says_so(session):
    """A loss that is not finite ends the run early, with the step and without a checkpoint."""
    run = session(patch={"schedule.steps": 3})
    run._job = run._job.model_copy(update={"stop_on": ("nan",)})
    seen = run.seen
    run.seen = lambda inputs, logp, entropy, loss: seen(inputs, logp, entropy, loss * float("nan"))
    run.run(None, 0)
    assert read_json(run._folder.result)["reason"] == "nan: a loss, gradient or probability is not finite at step 1"
    assert [line.step for line in run._folder.read_metrics()] == [0, 1]
    assert not list((run._folder.path / "checkpoints").iterdir())
