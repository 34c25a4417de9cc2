"""The gradient of an optimizer batch does not depend on how it is cut, and filters do what they say."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Optimizer, Recipe
from paribus_runners.native import update
from paribus_runners.native.batch import minibatches, passes, tokens_of
from paribus_runners.native.experience import weigh
from paribus_runners.native.learner import Learner
from paribus_runners.native.limits import Limits
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.rollouts import Rollouts
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY_MOE
from paribus_runners.rewards.verifiers import Verdict
from paribus_runners.tasks import Chain, Problem


class _Coin(Chain):
    """The task chain with a verifier that accepts a third of the responses to some problems, and none to others."""

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Return a verdict that depends on the symbols of the response, and on the problem."""
        return Verdict.of(int(problem.answer) % 2 == 0 and sum(map(ord, text)) % 3 == 0, text)


def _changed(recipe: Recipe, **changes: Any) -> Recipe:
    return Recipe.model_validate({**dict(recipe), **changes})


@torch.no_grad()
def _move(*models: torch.nn.Module) -> None:
    """Change all weights a little, each differently."""
    for p in (p for model in models for p in model.parameters()):
        p.add_(0.005 * torch.sin(torch.arange(p.numel()).view_as(p)))


def _gradient(recipe: Recipe, policy: Policy, rollouts: Rollouts) -> list[Tensor]:
    """Return the gradient of one optimizer batch with all rollouts, away from r = 1 and w = 1; the critic's as well."""
    whole = _changed(recipe, schedule=recipe.schedule.model_copy(update={"minibatches": 1}))
    learner = Learner.of(whole, policy)
    models = [policy.model] if learner.critic is None else [policy.model, learner.critic.model]
    _move(*models)
    experience = weigh(whole, rollouts, learner.before(whole, rollouts))
    _move(*models)
    (batch,) = minibatches(whole, experience, Random(0))
    for tokens in passes(whole, tokens_of(whole, experience, batch)):
        here = update.ready(whole, learner, rollouts, batch, tokens, Random(0))
        list(update.backward(here.recipe, learner, rollouts, batch, here.tokens))
    if learner.critic is not None:
        update.update_critic(whole, learner, experience, batch)
    return [p.grad for model in models for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aggregation": f.TokenGroup()},
        {"aggregation": f.TokenBatch(), "auxiliary": f.Auxiliary(entropy=0.01, positive_nll=0.1)},
        {"aggregation": f.ConstantLength(), "scale": f.NoScale()},
        {"ratio": f.SequenceGeometric(), "clip": f.PpoMin(low=0.003, high=0.004)},
        {"length": f.Length(truncated="mask_loss", count_masked_rows=True)},
        {"token_weight": f.TopEntropy(fraction=0.5)},
        {"aggregation": f.TokenMicro(microbatches=3)},
        {"ratio": f.GeometricClipped(), "clip": f.LogClip(low=0.05, high=0.05)},
        {"clip": f.ClipCov(fraction=0.3, cov_low=0.0)},
        {"clip": f.KlCov(fraction=0.3), "correction": f.Chain(mask=f.OffPolicyMask(delta=0.001))},
        {"clip": f.AdaptiveBand(low_start=0.9, high_step=0.01, target=0.9), "ratio": f.SequenceGeometric()},
        {"correction": f.SequenceTruncate(cap=1.1), "kl": f.KlInLoss(beta=0.1)},
        {"schedule": f.Schedule(prompts_per_step=6, max_new_tokens=12, update=f.Lopti())},
        {"token_weight": f.RouterShift(floor=0.1)},
        {
            "baseline": f.CriticGae(policy_lambda=f.LengthAdaptiveLambda(alpha=0.3)),
            "auxiliary": f.Auxiliary(value=f.ValueLoss(clip=0.01)),
            "scale": f.BatchWhiten(unit="token"),
            "kl": f.KlInReward(beta=0.1, unit="token"),
            "optimizer": Optimizer(max_grad_norm=None),
        },
        {
            "loss": f.PairDpo(beta=1.0),
            "filter": f.Drop(),
            "baseline": f.NoBaseline(),
            "scale": f.NoScale(),
            "ratio": f.NoRatio(),
            "clip": f.NoClip(),
        },
    ],
    ids=lambda c: "+".join(c) or "grpo",
)
def test_gradient_does_not_depend_on_the_micro_batch_split(
    recipe: Recipe, chain_model: Any, changes: dict[str, Any]
) -> None:
    """U4: one pass with all tokens and passes of one response each add up to the same gradient."""
    recipe = _changed(recipe, **changes)
    experts = recipe.token_weight.kind == "router_shift"
    policies = [
        make.build(TINY_MOE, "chain") if experts else Policy.load(str(chain_model), None, "float32") for _ in range(3)
    ]
    reference = Learner.of(recipe, policies[0]).reference
    rollouts = collect(recipe, Source(policies[0], reference, _Coin(), 0, TorchSampler(policies[0])), 1).rollouts
    gradients = []
    for policy, budget in zip(policies, (10**6, 1, 60), strict=True):
        limits = Limits(responses_at_a_time=512, tokens_a_pass=budget)
        gradients.append(_gradient(recipe, dataclasses.replace(policy, limits=limits), rollouts))
    assert max(g.abs().max() for g in gradients[0]) > 1e-4
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_dropping_groups_without_spread_only_rescales(recipe: Recipe, chain_model: Any) -> None:
    """T-F1: under group baselines, drop multiplies the gradient of seq_sum by old over kept responses."""
    recipe = _changed(recipe, aggregation=f.SequenceSum())
    policies = [Policy.load(str(chain_model), None, "float32") for _ in range(2)]
    rollouts = collect(recipe, Source(policies[0], None, _Coin(), 0, TorchSampler(policies[0])), 1).rollouts
    dropping = _changed(recipe, filter=f.Drop())
    dropped = collect(dropping, Source(policies[1], None, _Coin(), 0, TorchSampler(policies[1])), 1).rollouts
    kept = int(dropped.kept.sum())
    assert 0 < kept < len(rollouts.kept)
    full, part = _gradient(recipe, policies[0], rollouts), _gradient(dropping, policies[1], dropped)
    for a, b in zip(full, part, strict=True):
        torch.testing.assert_close(a * len(rollouts.kept) / kept, b, rtol=1e-3, atol=1e-6)


class _Fixed(Chain):
    """The task chain with a verifier that says what the test wants."""

    def __init__(self, correct: bool) -> None:
        super().__init__()
        self._correct = correct

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Return the fixed verdict."""
        return Verdict.of(self._correct, text)


def test_refill_samples_until_enough_groups_have_spread(recipe: Recipe, policy: Policy) -> None:
    """Dynamic sampling keeps exactly P groups with both outcomes and throws the surplus away."""
    recipe = _changed(recipe, filter=f.Refill(max_generation_batches=50))
    rollouts = collect(recipe, Source(policy, None, _Coin(), 0, TorchSampler(policy)), 1).rollouts
    assert rollouts.rounds > 1
    assert rollouts.scored.groups == 6 * rollouts.rounds == len(rollouts.prompts)
    kept = rollouts.scored.group[rollouts.kept]
    assert len(kept.unique()) == 6
    assert len(kept) == 48
    for g in kept.unique().tolist():
        assert 0 < rollouts.scored.correct[rollouts.scored.group == g].sum() < 8


def test_refill_gives_up_after_its_rounds(recipe: Recipe, policy: Policy) -> None:
    """When no group ever has spread, sampling ends after max_generation_batches with nothing to train on."""
    rollouts = collect(
        _changed(recipe, filter=f.Refill(max_generation_batches=3)),
        Source(policy, None, _Fixed(True), 0, TorchSampler(policy)),
        1,
    ).rollouts
    assert rollouts.rounds == 3
    assert not rollouts.kept.any()


def test_minibatches_are_whole_groups_that_cover_the_batch_once(recipe: Recipe, policy: Policy) -> None:
    """Every response is in one minibatch of the epoch, with its whole group; the order follows the random source."""
    rollouts = collect(recipe, Source(policy, None, Chain(), 0, TorchSampler(policy)), 1).rollouts
    batches = list(minibatches(recipe, weigh(recipe, rollouts), Random(0)))
    assert len(batches) == 2
    assert torch.cat([b.rows for b in batches]).sort().values.tolist() == list(range(48))
    for batch in batches:
        assert rollouts.scored.group[batch.rows].bincount().unique().tolist() in ([8], [0, 8])
    others = [next(minibatches(recipe, weigh(recipe, rollouts), Random(i))).rows.tolist() for i in range(5)]
    assert any(o != batches[0].rows.tolist() for o in others)


def test_masked_responses_are_not_trained_on(recipe: Recipe, policy: Policy) -> None:
    """With mask_loss, truncated responses are in no minibatch, but stay in the denominator where asked."""
    for counted in (False, True):
        masked = _changed(recipe, length=f.Length(truncated="mask_loss", count_masked_rows=counted))
        rollouts = collect(masked, Source(policy, None, Chain(), 0, TorchSampler(policy)), 1).rollouts
        rollouts = dataclasses.replace(
            rollouts, scored=dataclasses.replace(rollouts.scored, truncated=torch.arange(48) % 3 == 0)
        )
        batches = list(minibatches(masked, weigh(masked, rollouts), Random(0)))
        assert all((b.rows % 3 != 0).all() for b in batches)
        assert sum(b.counted for b in batches) == (48 if counted else 32)


def test_a_reference_is_kept_only_where_something_reads_it(recipe: Recipe, policy: Policy) -> None:
    """T-K3: without KL and pairs there is no second model, and with KL one that no gradient reaches."""
    assert Learner.of(recipe, policy).reference is None
    with_kl = Learner.of(_changed(recipe, kl=f.KlInLoss()), policy).reference
    assert with_kl is not None
    assert not any(p.requires_grad for p in with_kl.model.parameters())
