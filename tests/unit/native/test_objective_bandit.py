"""Expected gradients on a softmax bandit, by enumeration of everything that can be sampled.

Only this sees a wrong baseline, scale, KL or correction that still looks like a loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import product
from math import comb
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import weighs_sampler
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, tokens_of
from paribus_runners.native.experience import Before, weigh
from paribus_runners.native.head import Head
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.objective import kl
from paribus_runners.native.objective.loss import loss
from paribus_runners.native.support import restricted

RIGHT = torch.tensor([True, False, True, False])
POLICY = torch.tensor([0.3, -0.2, 0.9, 0.0]).double()
REFERENCE = torch.tensor([0.1, 0.4, -0.5, 0.2]).double().log_softmax(0)
OLD = torch.tensor([-0.4, 0.6, 0.3, 0.1]).double().log_softmax(0)
BETTER = 3
"""How much higher the score of a right arm is than that of a wrong one."""


def _logits() -> Tensor:
    return POLICY.clone().requires_grad_()


def _of(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def _success(logits: Tensor) -> Tensor:
    """Gradient of the probability of a right arm."""
    return _of(logits.softmax(0)[RIGHT].sum(), logits)


def _expected(
    recipe: Recipe,
    size: int,
    made: Any,
    *,
    sampler: Tensor | None = None,
    left: Sequence[int] = range(4),
    learner_knows: bool = True,
) -> Tensor:
    """Return the expectation of minus the gradient of the loss of a group of ``size`` arms by its logits.

    Arms are drawn from those that are ``left``; a learner that knows it takes its probabilities over these.
    """
    logits = _logits()
    outside = ~torch.isin(torch.arange(4), torch.tensor(left))
    over = restricted(logits, outside)[0]
    logp = over if learner_knows else logits.log_softmax(0)
    drawn = over.detach() if sampler is None else restricted(sampler, outside)[0]
    reference = restricted(REFERENCE, outside)[0]
    arms = torch.tensor(list(product(left, repeat=size)))
    flat = arms.flatten()
    rollouts = made(
        recipe,
        RIGHT[arms].tolist(),
        lengths=[1] * len(flat),
        logp=drawn[flat],
        reference=None if recipe.kl.kind == "off" else reference[flat],
    )
    before = Before(logp=logp.detach()[flat]) if weighs_sampler(recipe) else Before()
    experience = weigh(recipe, rollouts, before)
    (batch,) = minibatches(recipe, experience, Random(0))
    tokens = tokens_of(recipe, experience, batch)
    probability = drawn[arms].sum(1).exp()[rollouts.scored.group[batch.rows]]
    # the weights of the batch of all groups, as if each group stood alone, times its probability
    tokens = dataclasses.replace(tokens, weight=tokens.weight.double() * len(arms) * probability)
    return _of(-loss(recipe, logp[flat[batch.rows]], tokens).value, logits)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("baseline", "factor"),
    [(f.NoBaseline(), lambda n: 1.0), (f.GroupLeaveOneOut(), lambda n: 1.0), (f.GroupMean(), lambda n: (n - 1) / n)],
    ids=["none", "group_loo", "group_mean"],
)
def test_group_baselines_keep_the_direction(baseline: f.Baseline, factor: Any, size: int, made: Any) -> None:
    """U6, T-B2: no baseline and leave-one-out are unbiased; the group mean with oneself in it gives (G - 1) / G."""
    recipe = Recipe(baseline=baseline, scale=f.NoScale(), ratio=f.NoRatio(), aggregation=f.SequenceSum())
    got = _expected(recipe, size, made)
    torch.testing.assert_close(got, BETTER * factor(size) * _success(_logits()), rtol=1e-6, atol=1e-9)


def test_a_batch_mean_is_biased_like_a_group_of_the_whole_batch(made: Any) -> None:
    """U6: over one group the batch mean is the group mean."""
    levels = [
        Recipe(baseline=b, scale=f.NoScale(), aggregation=f.SequenceSum()) for b in (f.BatchMean(), f.GroupMean())
    ]
    for arms in product(range(4), repeat=2):
        A = [weigh(r, made(r, [RIGHT[list(arms)].tolist()], lengths=[1, 1])).advantage.tolist() for r in levels]
        assert A[0] == A[1]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("ddof", [0, 1])
def test_the_group_std_weighs_a_prompt_by_its_difficulty(size: int, ddof: int, made: Any) -> None:
    """U6: with group_std the expected gradient is w(p) grad p, w = E[sqrt(c (G - c))] / (G p (1 - p)) at ddof 0."""
    recipe = Recipe(scale=f.GroupStd(ddof=ddof, eps=0), aggregation=f.SequenceSum())
    p = float(POLICY.softmax(0)[RIGHT].sum())
    chance = [comb(size, c) * p**c * (1 - p) ** (size - c) for c in range(size + 1)]
    w = sum(q * (c * (size - c)) ** 0.5 for c, q in enumerate(chance)) / (size * p * (1 - p))
    w *= ((size - 1) / size) ** 0.5 if ddof else 1
    torch.testing.assert_close(_expected(recipe, size, made), w * _success(_logits()), rtol=1e-6, atol=1e-9)


def test_the_weight_of_a_prompt_in_a_large_group(made: Any) -> None:
    """T-S4: at p = 0.1 and G = 256 the weight is 3.315, close to its limit 1 / sqrt(p (1 - p)) = 3.333."""
    size, p = 256, 0.1
    recipe = Recipe(scale=f.GroupStd(ddof=0, eps=0))
    correct = [[i < c for i in range(size)] for c in range(size + 1)]
    A = weigh(recipe, made(recipe, correct, lengths=[1] * (size * (size + 1)))).advantage.view(size + 1, size)
    of_response = torch.where(torch.tensor(correct), 1 / p, -1 / (1 - p))
    chance = torch.tensor([comb(size, c) * p**c * (1 - p) ** (size - c) for c in range(size + 1)]).double()
    w = float((chance[:, None] * A * of_response).sum() / size)
    assert w == pytest.approx(3.315, abs=5e-4)


@pytest.mark.parametrize("size", [2, 3])
def test_dr_grpo_is_unbiased_up_to_one_constant(size: int, made: Any) -> None:
    """U6: the expected gradient of the preset is (G - 1) / (G C) grad J."""
    recipe = load_preset("dr_grpo").recipe
    want = (size - 1) / size / recipe.schedule.max_new_tokens * _success(_logits())
    torch.testing.assert_close(_expected(recipe, size, made), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_rloo_climbs_the_regularised_objective(size: int, made: Any) -> None:
    """U6: the expected gradient of the preset is that of J - beta KL(pi || ref)."""
    got = _expected(load_preset("rloo").recipe, size, made)
    logits = _logits()
    logp = logits.log_softmax(0)
    reverse = (logp.exp() * (logp - REFERENCE)).sum()
    want = BETTER * _success(logits) - 0.03 * _of(reverse, logits)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_reinforce_climbs_j(size: int, made: Any) -> None:
    """The expected gradient of the preset is grad J."""
    got = _expected(load_preset("reinforce").recipe, size, made)
    torch.testing.assert_close(got, BETTER * _success(_logits()), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("left", [(0, 1), (0, 1, 3), (1, 2, 3)], ids=str)
def test_with_arms_left_out_rloo_climbs_the_objective_of_the_others(left: Sequence[int], made: Any) -> None:
    """U6: with top-k or top-p the gradient is that of J - beta KL over the arms that are left.

    The ratio of a learner that takes all arms holds their mass, and so does its gradient (trl#6789).
    """
    recipe = load_preset("rloo").recipe.model_copy(update={"ratio": f.TokenRatio(), "clip": f.NoClip()})
    logits, inside = _logits(), torch.isin(torch.arange(4), torch.tensor(left))
    p, ref = (x[inside].softmax(0) for x in (logits, REFERENCE))
    want = _of(BETTER * p[RIGHT[inside]].sum() - 0.03 * (p * (p / ref).log()).sum(), logits)
    torch.testing.assert_close(_expected(recipe, 2, made, left=left), want, rtol=1e-6, atol=1e-7)
    biased = _expected(recipe, 2, made, left=left, learner_knows=False)
    torch.testing.assert_close(biased, logits.softmax(0)[inside].sum() * want, rtol=1e-6, atol=1e-7)


def test_with_arms_left_out_by_an_older_policy_a_correction_is_unbiased(made: Any) -> None:
    """T-I2: the arms that are left are those of the sampler; the weight restores the gradient of J over them."""
    left = (0, 1, 3)
    recipe = Recipe(
        correction=f.SequenceTruncate(cap=1e9), baseline=f.NoBaseline(), scale=f.NoScale(),
        aggregation=f.SequenceSum(), ratio=f.NoRatio(),
    )  # fmt: skip
    logits = _logits()
    want = BETTER * _of(logits[list(left)].softmax(0)[0], logits)
    torch.testing.assert_close(_expected(recipe, 1, made, sampler=OLD, left=left), want, rtol=1e-6, atol=1e-7)
    biased = _expected(recipe, 1, made, sampler=OLD, left=left, learner_knows=False)
    assert (biased - want).abs().max() > 0.01


@pytest.mark.parametrize(
    ("level", "direction"),
    [
        (f.KlInReward(beta=0.3), "reverse"),
        (f.KlInLoss(estimator="k2", beta=0.3), "reverse"),
        (f.KlInLoss(estimator="k3", beta=0.3), "forward"),
        (f.KlInLossWeighted(estimator="k1", beta=0.3), "reverse"),
        (f.KlInLossWeighted(estimator="k3", beta=0.3), "reverse"),
    ],
    ids=["reward-k1", "loss-k2", "loss-k3", "loss_isw-k1", "loss_isw-k3"],
)
def test_where_each_kl_term_leads(level: f.Kl, direction: str, made: Any) -> None:
    """T-K2: on-policy the expected gradient is beta grad KL, reverse (pi || ref) or forward (ref || pi)."""
    recipe = Recipe(kl=level, baseline=f.GroupLeaveOneOut(), scale=f.NoScale(), aggregation=f.SequenceSum())
    got = _expected(recipe, 2, made)
    logits = _logits()
    logp = logits.log_softmax(0)
    reverse, forward = (logp.exp() * (logp - REFERENCE)).sum(), (REFERENCE.exp() * (REFERENCE - logp)).sum()
    want = BETTER * _success(logits) - 0.3 * _of(reverse if direction == "reverse" else forward, logits)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


def test_k1_in_the_loss_leads_nowhere() -> None:
    """T-K2: the expected gradient of k1 is zero; recipes refuse it."""
    logits = _logits()
    logp = logits.log_softmax(0)
    gradient = _of((logp.detach().exp() * kl.estimate("k1", logp - REFERENCE)).sum(), logits)
    torch.testing.assert_close(gradient, torch.zeros(4).double(), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="gradient zero"):
        f.KlInLoss(estimator="k1")


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_a_weighted_kl_stays_exact_off_policy(estimator: Any) -> None:
    """Under samples of the old policy, beta r k has the value and the gradient of beta KL(pi || ref)."""
    logits = _logits()
    logp = logits.log_softmax(0)
    term = kl.in_loss(f.KlInLossWeighted(estimator=estimator, beta=0.3), logp, OLD, REFERENCE)
    reverse = 0.3 * (logp.exp() * (logp - REFERENCE)).sum()
    got = (OLD.exp() * term).sum()
    torch.testing.assert_close(got, reverse)
    torch.testing.assert_close(_of(got, logits), _of(reverse, logits))


@pytest.mark.parametrize("level", [f.TokenTruncate(cap=1e9), f.SequenceTruncate(cap=1e9)], ids=lambda x: x.kind)
def test_an_uncapped_correction_is_unbiased(level: f.Correction, made: Any) -> None:
    """T-I2: sampled by another policy, the full importance weight restores the gradient of J."""
    recipe = Recipe(
        correction=level, baseline=f.NoBaseline(), scale=f.NoScale(), aggregation=f.SequenceSum(), ratio=f.NoRatio()
    )
    want = BETTER * _success(_logits())
    torch.testing.assert_close(_expected(recipe, 1, made, sampler=OLD), want, rtol=1e-6, atol=1e-9)
    off = _expected(recipe.model_copy(update={"correction": f.NoCorrection()}), 1, made, sampler=OLD)
    assert (off - want).abs().max() > 0.01


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (f.DppoTotalVariation(low=1.0, high=1.0), [True] * 4),
        (f.DppoTotalVariation(low=0.2, high=0.15), [True, False, False, True]),  # p - q: 0.104, -0.223, 0.164, -0.046
        (f.DppoTotalVariation(low=0.3, high=0.1), [False, True, False, True]),
        (f.DppoBinaryKl(low=1.0, high=1.0), [True] * 4),
        (f.DppoBinaryKl(low=0.1, high=0.05), [True, False, False, True]),  # KL: 0.034, 0.151, 0.057, 0.007
        (f.DppoBinaryKl(low=0.006, high=0.1), [True, False, True, False]),
    ],
    ids=str,
)
def test_a_divergence_takes_out_the_arms_that_have_moved_too_far(rule: f.Clip, kept: list[bool], made: Any) -> None:
    """U6: off-policy, the expected gradient is that of J without them, and that of J where nothing is masked."""
    recipe = Recipe(clip=rule, baseline=f.NoBaseline(), scale=f.NoScale(), aggregation=f.SequenceSum())
    logits = _logits()
    p, score_ = logits.softmax(0), torch.where(RIGHT, 2.0, -1.0).double()
    want = _of((p.detach() * p.log() * score_ * torch.tensor(kept)).sum(), logits)
    torch.testing.assert_close(_expected(recipe, 1, made, sampler=OLD), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("rule", "weight"),
    [  # r of the arms: 1.77, 0.40, 1.60, 0.80; A: 2, -1, 2, -1
        (f.GradientPreserving(low=0.3, high=0.65, beta_low=0.5, beta_high=0.9),
         lambda r: [0.9 * 1.65, 0.35, r[2], r[3]]),
        (f.FlippedRatio(low=0.3, high=0.65), lambda r: [0, 0, 1 / r[2], r[3]]),
        (f.FlippedRatio(low=0.1, high=0.9), lambda r: [1 / r[0], 0, 1 / r[2], 0]),
        (
            f.GammaWeight(k_positive=1.5, lambda_positive=2.5, k_negative=2.0, lambda_negative=1.0),
            lambda r: [r[0] ** 1.5 * math.exp(2.5 * (1 - r[0])), r[1] ** 2 * math.exp(1 - r[1]),
                       r[2] ** 1.5 * math.exp(2.5 * (1 - r[2])), r[3] ** 2 * math.exp(1 - r[3])],
        ),
    ],
    ids=["ce_gppo", "aspo", "aspo_wide", "vespo"],
)  # fmt: skip
def test_each_arm_counts_as_much_as_its_weight(rule: f.Clip, weight: Any, made: Any) -> None:
    """U6: off-policy, the expected gradient is the sum of q w A grad log pi over the arms, w by hand for each."""
    recipe = Recipe(
        clip=rule, ratio=f.SequenceProduct(), baseline=f.NoBaseline(), scale=f.NoScale(), aggregation=f.SequenceSum()
    )
    logits = _logits()
    logp = logits.log_softmax(0)
    w = torch.tensor(weight((logp.detach() - OLD).exp().tolist())).double()
    want = _of((OLD.exp() * w * torch.where(RIGHT, 2.0, -1.0) * logp).sum(), logits)
    torch.testing.assert_close(_expected(recipe, 1, made, sampler=OLD), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("delta", [0.3, 0.2, 1.0])
def test_the_off_policy_mask_takes_out_wrong_arms_alone(delta: float, made: Any) -> None:
    """U6: off-policy, the expected gradient is that of J without the wrong arms that are rarer by delta nats."""
    recipe = Recipe(
        correction=f.OffPolicyMask(delta=delta), clip=f.NoClip(), baseline=f.NoBaseline(), scale=f.NoScale(),
        aggregation=f.SequenceSum(),
    )  # fmt: skip
    logits = _logits()
    p = logits.softmax(0)
    gone = ~RIGHT & (OLD - p.detach().log() > delta)
    assert gone.tolist() == [False, delta < 1, False, delta < 0.25]
    want = _of((p * torch.where(RIGHT, 2.0, -1.0) * ~gone).sum(), logits)
    torch.testing.assert_close(_expected(recipe, 1, made, sampler=OLD), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_entropy_of_the_bonus_has_its_gradient(temperature: float) -> None:
    """T-E1: the derivative of the entropy by logit k is -p_k (log p_k + H) / temperature; 0 where all are equal."""
    logits = torch.stack([POLICY, torch.zeros(4).double()]).requires_grad_()
    head = Head(torch.eye(4).double(), None, 1.0, torch.float64)
    passes = {"hidden": lambda *_: logits, "one_pass": lambda action: action()}
    policy = SimpleNamespace(device=torch.device("cpu"), head=head, **passes)
    entropy = score(policy, [[1]], [[[2, 3]]], temperature, with_entropy=True).entropy
    logp = (POLICY / temperature).log_softmax(0)
    H = -(logp.exp() * logp).sum()
    torch.testing.assert_close(entropy.detach(), torch.stack([H, torch.tensor(4.0).double().log()]))
    want = torch.stack([-logp.exp() * (logp + H) / temperature, torch.zeros(4).double()])
    torch.testing.assert_close(torch.autograd.grad(entropy.sum(), logits)[0], want)


def test_kl_in_the_advantage_has_the_gradient_of_the_reverse_kl(made: Any) -> None:
    """On-policy the expected gradient is that of -beta KL(pi || reference), as autograd has it, beside the rewards."""
    plain = Recipe(baseline=f.GroupLeaveOneOut(), scale=f.NoScale(), ratio=f.NoRatio(), aggregation=f.SequenceSum())
    logits = _logits()
    logp = logits.log_softmax(0)
    reverse = _of((logp.exp() * (logp - REFERENCE)).sum(), logits)
    expected = BETTER * _success(logits) - 0.4 * reverse
    got = _expected(plain.model_copy(update={"kl": f.KlInAdvantage(beta=0.4)}), 2, made)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_steps_climb_what_follows_them_each_by_a_constant(size: int, made: Any) -> None:
    """Two arms in a row, each a step: their gradients are those of J, times 1 - (steps left) / (steps of the group).

    A group's mean over steps has those that a token leads to in it: two for the first arm, one for the second.
    """
    reward = f.Reward(
        weights=f.Weights(correct=0.0), functions={"step": f.RewardFunction(path="m.step", unit="step", weight=0.5)}
    )
    recipe = Recipe(
        baseline=f.GroupSteps(), scale=f.NoScale(), ratio=f.NoRatio(), aggregation=f.SequenceSum(), reward=reward
    )
    first = torch.tensor([1.0, -0.5, 0.0, 2.0]).double()
    second = torch.tensor(
        [[0.3, 1.0, -2.0, 0.0], [1.5, 0.0, 0.2, -1.0], [0.0, 0.0, 3.0, 1.0], [-1.0, 0.4, 0.5, 2.0]]
    ).double()
    logits = torch.stack([POLICY, REFERENCE]).requires_grad_()
    logp = logits.log_softmax(1)
    arms = torch.tensor(list(product(range(4), repeat=2 * size)))  # [groups, 2 * size]
    pairs = arms.view(-1, 2)
    flat = logp.flatten()[(pairs + torch.tensor([0, 4])).flatten()]
    rewards = torch.stack([first[pairs[:, 0]], second[pairs[:, 0], pairs[:, 1]]], 1)
    rollouts = made(Recipe(), [[True] * size] * len(arms), lengths=[2] * len(pairs), logp=flat.detach())
    scored = dataclasses.replace(rollouts.scored, rewards=rewards.sum(1, keepdim=True))
    experience = weigh(recipe, dataclasses.replace(rollouts, steps=rewards.view(-1, 1), scored=scored))
    (batch,) = minibatches(recipe, experience, Random(0))
    tokens = tokens_of(recipe, experience, batch)
    assert batch.rows.tolist() == list(range(len(pairs)))
    probability = flat.detach().view(len(arms), -1).sum(1).exp().repeat_interleave(2 * size)
    tokens = dataclasses.replace(tokens, weight=tokens.weight.double() * len(arms) * probability)
    got = _of(-loss(recipe, flat, tokens).value, logits)
    p, q = logp.exp()
    want = 0.5 * _of(p @ first + p @ second @ q, logits)
    shrunk = torch.tensor([[1 - 1 / size], [1 - 1 / (2 * size)]]).double()
    torch.testing.assert_close(got, shrunk * want, rtol=1e-6, atol=1e-9)
