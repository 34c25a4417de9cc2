"""The gradient probe: against autograd of the formulas on a plain model, analytic ratios, and what a run recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from paribus.contract import PARTS, Checkpoints, GradientJob, Gradients, Options
from paribus.errors import RunFolderError
from paribus.recipe import factors as f
from paribus.recipe.analysis.one_gradient import on_rollouts_of
from paribus.recipe.recipe import Recipe
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import main
from paribus_runners.native.gradients import gradients
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.tasks import Chain
from support.native_runs import changed


@pytest.fixture
def one(recipe: Recipe) -> Recipe:
    """The small recipe with one update a step, and a scale that keeps zero deviations away."""
    return changed(
        recipe, schedule={"minibatches": 1, "epochs": 1}, scale=f.GroupStd(eps=1e-6), reward=f.Reward(map="binary01")
    )


def probe(
    run: Recipe, arms: Mapping[str, Recipe], checkpoint: Path | None = None, *, base: Recipe | None = None, **more: Any
) -> Gradients:
    """Return the gradients of arms on the rollouts of a run."""
    asked = GradientJob(
        run="f" * 64, recipe=run, options=Options(), seed=0, cache="", checkpoint=checkpoint,
        base=on_rollouts_of(run, base or run), arms={k: on_rollouts_of(run, arm) for k, arm in arms.items()}, **more,
    )  # fmt: skip
    return gradients(asked)


def rollouts_of(recipe: Recipe, policy: Policy, step: int = 1) -> Rollouts:
    """Return what a run samples in a step."""
    return collect(recipe, Source(policy, None, Chain(), 0, TorchSampler(policy)), step).rollouts


def by_autograd(folder: Path, rollouts: Rollouts, c: Callable[[Tensor, Tensor], Tensor], temperature: float) -> Tensor:
    """Return the gradient of -sum c log pi of a plain Transformers model, one response at a time, float64.

    ``c`` gets rewards [P, G] and lengths [P, G], and returns the weight of each token of a response [P, G].
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    size = len(rollouts.responses) // len(rollouts.prompts)
    shape = (-1, size)
    reward = rollouts.scored.correct.double().view(shape)
    weight = c(reward, rollouts.responses.length.double().view(shape)).flatten().tolist()
    for i, (ids, w) in enumerate(zip(rollouts.responses.tokens(), weight, strict=True)):
        prompt = rollouts.prompts[i // size]
        logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1] / temperature
        logp = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum()
        (-w * logp).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def centred(reward: Tensor) -> Tensor:
    """Return rewards minus the mean of their group."""
    return reward - reward.mean(1, keepdim=True)


def grpo(reward: Tensor, length: Tensor) -> Tensor:
    """Return c of GRPO: (R - mean) / std of the group, over responses and over the tokens of a response."""
    return centred(reward) / (reward.std(1, keepdim=True) + 1e-6) / length / length.numel()


def dr_grpo(reward: Tensor, length: Tensor) -> Tensor:
    """Return c of Dr. GRPO: R - mean, over responses and a constant of 12 tokens."""
    return centred(reward) / 12 / length.numel()


def token_mean(reward: Tensor, length: Tensor) -> Tensor:
    """Return c of DAPO's aggregation: as GRPO, but over all tokens of the batch."""
    return centred(reward) / (reward.std(1, keepdim=True) + 1e-6) / length.sum()


def test_cosines_and_ratios_are_those_of_autograd_on_a_plain_model(
    one: Recipe, policy: Policy, chain_model: Path
) -> None:
    """Norm, cosine and ratio agree with the formulas, written down a second time, on Transformers' own forward pass."""
    arms = {
        "dr_grpo": changed(one, scale=f.NoScale(), aggregation=f.ConstantLength()),
        "token_mean": changed(one, aggregation=f.TokenBatch()),
    }
    found = probe(one, arms)
    rollouts = rollouts_of(one, policy)
    assert (found.groups, found.responses, found.tokens) == (6, 48, len(rollouts.responses.ids))
    want = by_autograd(chain_model, rollouts, grpo, one.schedule.temperature)
    assert found.base.norm == pytest.approx(float(want.norm()), rel=1e-4)
    for name, c in (("dr_grpo", dr_grpo), ("token_mean", token_mean)):
        other = by_autograd(chain_model, rollouts, c, one.schedule.temperature)
        mine = found.arms[name]
        assert mine.ratio == pytest.approx(float(other.norm() / want.norm()), rel=1e-4)
        cosine = float(other @ want / other.norm() / want.norm())
        assert cosine < 0.999  # else there is nothing to test
        assert mine.cosine == pytest.approx(cosine, abs=1e-5)
        assert mine.distance == pytest.approx(float((other - want).norm() / want.norm()), rel=1e-4)
        across = other - (other @ want) / want.norm() ** 2 * want
        assert mine.residual == pytest.approx(float(across.norm() / other.norm()), rel=1e-3)


def test_equal_arms_are_exactly_equal_and_others_have_their_analytic_ratios(one: Recipe) -> None:
    """Leave-one-out is G/(G-1) times the mean baseline; rewards of +-1 double a gradient that is not scaled."""
    base = changed(one, scale=f.NoScale())
    arms = {
        "same": base,
        "loo": changed(base, baseline=f.GroupLeaveOneOut()),
        "pm1": changed(base, reward=f.Reward(map="pm1")),
        "higher": changed(base, clip=f.PpoMin(high=0.5)),
        "ddof": changed(one, scale=f.GroupStd(ddof=0, eps=0.0)),
    }
    found = probe(base, arms)
    same, higher = found.arms["same"], found.arms["higher"]
    assert (same.cosine, same.ratio, same.distance) == (1.0, 1.0, 0.0)
    assert (higher.cosine, higher.ratio, higher.distance) == (1.0, 1.0, 0.0)  # a ratio of 1 is clipped nowhere
    for name, ratio in (("loo", 8 / 7), ("pm1", 2.0)):
        mine = found.arms[name]
        assert mine.ratio == pytest.approx(ratio, rel=1e-5)
        assert mine.residual < 1e-5
    assert found.noise < 1e-5
    scaled = probe(changed(one, scale=f.GroupStd(eps=0.0)), {"ddof": arms["ddof"]}).arms["ddof"]
    assert scaled.ratio == pytest.approx((8 / 7) ** 0.5, rel=1e-5)
    assert scaled.residual < 1e-5


def test_groups_with_equal_deviations_make_the_scale_a_length(
    one: Recipe, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all groups have the same number of correct responses, division by the deviation is one factor."""
    from paribus_runners.native import gradients as module

    real = rollouts_of(one, policy)
    even = replace(real, scored=replace(real.scored, correct=torch.arange(48) % 4 == 0))  # 2 of 8 in each group
    monkeypatch.setattr(module, "_sampled", lambda *_: even)
    found = probe(one, {"off": changed(one, scale=f.NoScale())})
    deviation = float(torch.tensor([1.0] * 2 + [0.0] * 6).std())
    assert found.arms["off"].ratio == pytest.approx(deviation, rel=1e-4)
    assert found.arms["off"].residual < 1e-5


def test_shares_are_counts_of_tokens_where_all_weights_are_equal(one: Recipe, policy: Policy) -> None:
    """REINFORCE with a sum over tokens and rewards of +-1 weighs each token alike: shares are counts."""
    plain = changed(one, baseline=f.NoBaseline(), scale=f.NoScale(), reward=f.Reward(map="pm1"),
                    aggregation=f.SequenceSum())  # fmt: skip
    found = probe(one, {"plain": plain})
    rollouts = rollouts_of(one, policy)
    tokens = torch.repeat_interleave(~rollouts.scored.correct, rollouts.responses.length)
    assert found.share["wrong"] == pytest.approx(float(tokens.double().mean()))
    assert {*found.share} == {*PARTS}
    assert dict(found.arms["plain"].weight) == pytest.approx(dict(found.share), rel=1e-6)


def test_clips_act_after_the_updates_of_the_run(recipe: Recipe) -> None:
    """At the weights that sampled, no clip acts; after the run's own four updates, the ratio has moved."""
    run = changed(recipe, optimizer=recipe.optimizer.model_copy(update={"learning_rate": 3e-3}))
    arms = {"tight": changed(run, clip=f.PpoMin(low=0.01, high=0.01))}
    before, after = probe(run, arms), probe(run, arms, after_updates=True)
    assert (before.updates, after.updates) == (0, 4)
    assert before.arms["tight"].distance == 0
    assert after.arms["tight"].distance > 0.01


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Return hash and time of each file."""
    return {
        str(p.relative_to(folder)): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_the_gradient_at_a_checkpoint_is_the_one_that_the_run_took_next(
    one: Recipe, job_folder: Callable[..., Path]
) -> None:
    """Norm and tokens are those that the run recorded for its next step; no file of the run changes."""
    folder = job_folder(one, checkpoint=Checkpoints(every=1, keep=9))
    main.run(folder)
    lines = {line.step: line.values for line in RunFolder(folder).read_metrics()}
    before = contents(folder)
    places = {place.name: place for place in published(RunFolder(folder))}
    for step in (1, 2):
        found = probe(one, {}, places[f"step-{step:06d}"])
        assert (found.step, found.rollouts) == (step, "sampled again")
        assert found.base.norm == pytest.approx(lines[step + 1]["optim/grad_norm"], rel=1e-5)
        assert found.tokens / found.responses == pytest.approx(lines[step + 1]["response/length_mean"])
    assert contents(folder) == before


def test_rollouts_that_wait_in_a_checkpoint_are_used(one: Recipe, job_folder: Callable[..., Path]) -> None:
    """A run that samples ahead has the next step's rollouts in its checkpoint, and their gradient is what it took."""
    run = changed(one, schedule={"staleness": 1})
    folder = job_folder(run, checkpoint=Checkpoints(every=1, keep=9))
    main.run(folder)
    lines = {line.step: line.values for line in RunFolder(folder).read_metrics()}
    place = next(p for p in published(RunFolder(folder)) if p.name == "step-000001")
    found = probe(run, {"none": changed(run, ratio=f.NoRatio(), clip=f.NoClip())}, place)
    assert found.rollouts == "recorded"
    assert found.base.norm == pytest.approx(lines[2]["optim/grad_norm"], rel=1e-5)
    assert found.arms["none"].distance > 1e-5  # an older policy sampled, and the ratio is not 1


def test_arms_bring_their_own_reference_critic_filter_and_correction(
    one: Recipe, job_folder: Callable[..., Path]
) -> None:
    """What the run lacks is there for the arms; a dropped group counts in no denominator."""
    folder = job_folder(one)
    main.run(folder)
    (place,) = published(RunFolder(folder))
    critic = {"baseline": f.CriticGae(), "scale": f.BatchWhiten(unit="token"), "auxiliary": {"value": {}}}
    arms = {
        "kl": changed(one, kl=f.KlInLoss(beta=1.0)),
        "pairs": changed(one, loss=f.PairDpo(), baseline=f.NoBaseline(), scale=f.NoScale()),
        "critic": changed(one, **critic),
        "drop": changed(one, filter=f.Drop()),
        "tis": changed(one, correction=f.TokenTruncate()),
        "history": changed(one, baseline=f.History(), scale=f.HistorySmooth()),
        "pulled": changed(one, kl=f.KlInAdvantage()),
        "taught": changed(one, kl=f.KlInAdvantage(reference=f.ModelReference(name=one.model.name))),
    }
    found = probe(one, arms, place)
    assert all(found.arms[name].distance > 1e-3 for name in ("kl", "pairs", "critic"))
    drop, base = found.arms["drop"], found.base
    assert drop.ratio == pytest.approx(base.responses / drop.responses, rel=1e-5)
    assert drop.responses < base.responses
    assert found.arms["tis"].distance < 1e-5  # sampler and learner differ by rounding
    assert found.arms["history"].norm > 0
    assert found.arms["taught"].distance == pytest.approx(found.arms["pulled"].distance)  # both: the initial model
    assert found.arms["taught"].distance > 1e-3


def test_a_damaged_checkpoint_and_one_of_another_run_are_refused(one: Recipe, job_folder: Callable[..., Path]) -> None:
    """The files of a checkpoint are verified before anything is computed from them."""
    folder = job_folder(one)
    main.run(folder)
    (place,) = published(RunFolder(folder))
    weights = place / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=r"is damaged: model/model\.safetensors"):
        probe(one, {}, place)
