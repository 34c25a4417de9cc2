"""Identities of generalised advantage estimation, of returns of tokens, and of the critic's loss."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, tokens_of
from paribus_runners.native.experience import Before, Experience, weigh
from paribus_runners.native.objective import gae
from paribus_runners.native.objective import value as value_loss

CORRECT = [[True, False, False], [True, True, False], [False] * 3]
discounts = st.sampled_from([0.0, 0.3, 0.95, 1.0])


def _draw(seed: int, rows: int = 4, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards, values and a mask of ragged rows; behind their ends stands garbage."""
    g = torch.Generator().manual_seed(seed)
    reward, value = (torch.randn(rows, width, generator=g, dtype=torch.float64) for _ in range(2))
    length = torch.randint(1, width + 1, (rows,), generator=g)
    return reward, value, torch.arange(width) < length[:, None]


def _slow(reward: Tensor, value: Tensor, mask: Tensor, gamma: float, lam: Tensor) -> Tensor:
    """Return the sum over l of (gamma lambda)^l delta_{t+l}, term by term."""
    A = torch.zeros_like(value)
    for i, n in enumerate(mask.sum(1).tolist()):
        V = [*value[i, :n].tolist(), 0.0]
        delta = [float(reward[i, t]) + gamma * V[t + 1] - V[t] for t in range(n)]
        for t in range(n):
            A[i, t] = sum((gamma * float(lam[i])) ** (s - t) * delta[s] for s in range(t, n))
    return A


@given(st.integers(0, 10**6), discounts, st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_gae_is_its_sum(seed: int, gamma: float, eighths: list[int]) -> None:
    """Eq. 16 of arXiv 1506.02438, summed in two loops, for a lambda of each response."""
    drawn, lam = _draw(seed), torch.tensor(eighths).double() / 8
    torch.testing.assert_close(gae.estimate(*drawn, gamma, lam), _slow(*drawn, gamma, lam))


@given(st.integers(0, 10**6))
def test_gae_at_the_ends_of_lambda(seed: int) -> None:
    """Lambda 1 with a terminal reward gives R - V_t, V = 0 gives R everywhere, lambda 0 gives delta_t."""
    _, value, mask = _draw(seed)
    last = mask.sum(1) - 1
    R = torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    reward = torch.zeros_like(value).scatter(1, last[:, None], R[:, None])
    one, zero = torch.ones(4).double(), torch.zeros(4).double()
    torch.testing.assert_close(gae.estimate(reward, value, mask, 1.0, one), (R[:, None] - value) * mask)
    torch.testing.assert_close(gae.estimate(reward, 0 * value, mask, 1.0, one), R[:, None] * mask)
    inside = value * mask
    following = torch.cat([inside, torch.zeros(4, 1)], 1)[:, 1:]
    torch.testing.assert_close(gae.estimate(reward, value, mask, 0.9, zero), (reward + 0.9 * following - value) * mask)


def _weighed(recipe: Recipe, made: Any, value: Any) -> Experience:
    rollouts = made(recipe, CORRECT)
    return weigh(recipe, rollouts, Before(value=value(rollouts).expand(len(rollouts.responses.ids)).float()))


def _critic(preset: str = "vapo", **changes: Any) -> Recipe:
    return Recipe.model_validate({**dict(load_preset(preset).recipe), **changes})


PLAIN = {"scale": f.NoScale(), "kl": f.NoKl(), "reward": f.Reward()}


def test_a_critic_that_knows_the_group_mean_is_grpo_without_std(made: Any) -> None:
    """V = mean reward of the group and lambda 1 give R - mean for every token."""
    recipe = _critic("ppo", **PLAIN)

    def mean(rollouts: Any) -> Tensor:
        return rollouts.scored.score.view(3, 3).mean(1).repeat_interleave(3)[rollouts.responses.row]

    got = _weighed(recipe, made, mean)
    grpo = weigh(Recipe(scale=f.NoScale()), made(recipe, CORRECT))
    torch.testing.assert_close(got.advantage, grpo.advantage, rtol=1e-6, atol=1e-6)


def test_a_critic_that_knows_nothing_is_reinforce(made: Any) -> None:
    """V = 0 and lambda 1 give R for every token, and R is the critic's target."""
    recipe = _critic("ppo", **PLAIN)
    got = _weighed(recipe, made, lambda _: torch.zeros(1))
    rollouts = got.rollouts
    torch.testing.assert_close(got.advantage, rollouts.scored.score[rollouts.responses.row])
    torch.testing.assert_close(got.returns, got.advantage)


@pytest.mark.parametrize(("policy", "critic"), [(0.0, 1.0), (0.7, 0.95), (1.0, 0.3)])
def test_policy_and_critic_have_lambdas_of_their_own(policy: float, critic: float, made: Any) -> None:
    """Decoupled GAE: A has the policy's lambda, the target is V plus the estimate with the critic's."""
    baseline = f.CriticGae(policy_lambda=f.FixedLambda(value=policy), critic_lambda=critic, gamma=0.9)
    got = _weighed(_critic("ppo", **PLAIN, baseline=baseline), made, lambda r: r.responses.entropy)
    responses = got.rollouts.responses
    mask, V = responses.mask, responses.padded(got.value.double())
    last = (got.rollouts.scored.length - 1)[:, None]
    reward = torch.zeros_like(V).scatter(1, last, got.rollouts.scored.score[:, None])
    slow = [_slow(reward, V, mask, 0.9, torch.full((9,), lam)) for lam in (policy, critic)]
    torch.testing.assert_close(got.advantage, slow[0][mask])
    torch.testing.assert_close(got.returns, (slow[1] + V)[mask])


@pytest.mark.parametrize(("tokens", "lam"), [(20, 0.0), (100, 0.8), (1000, 0.98), (10000, 0.998), (5, 0.0)])
def test_length_adaptive_lambda(tokens: int, lam: float) -> None:
    """T-V1: 1 - 1 / (0.05 L), and 0 for responses below 20 tokens."""
    level = f.CriticGae(policy_lambda=f.LengthAdaptiveLambda(alpha=0.05))
    assert float(gae.policy_lambda(level, torch.tensor([tokens]))) == pytest.approx(lam)


@given(st.integers(1, 10**5), st.floats(0.01, 1.0))
def test_the_weights_of_length_adaptive_gae_add_up_to_a_share_of_the_length(tokens: int, alpha: float) -> None:
    """T-V2: 1 / (1 - lambda) = alpha L, where that is above 1."""
    level = f.CriticGae(policy_lambda=f.LengthAdaptiveLambda(alpha=alpha))
    lam = float(gae.policy_lambda(level, torch.tensor([tokens])))
    assert 0 <= lam < 1
    if alpha * tokens >= 1:
        assert 1 / (1 - lam) == pytest.approx(alpha * tokens, rel=1e-6)


def test_vapo_without_its_additions_is_ppo(made: Any, outcome: Any) -> None:
    """T-V3: without NLL and with a fixed lambda, VAPO's gradient is that of PPO with its clip and no whitening."""
    vapo = _critic(
        "vapo",
        baseline=f.CriticGae(policy_lambda=f.LengthAdaptiveLambda(alpha=1e12)),
        auxiliary=f.Auxiliary(value=f.ValueLoss()),
        reward=f.Reward(),
    )
    ppo = _critic("ppo", **PLAIN, clip=vapo.clip)
    rollouts = made(vapo, CORRECT)
    before = Before(value=rollouts.responses.entropy)
    near = rollouts.responses.logp + 0.5 * (rollouts.responses.entropy - 1.1)
    one, two = (outcome(r, rollouts, near, before=before).gradient for r in (vapo, ppo))
    torch.testing.assert_close(one, two)


def test_no_correct_response_has_no_nll(made: Any, outcome: Any) -> None:
    """T-V4: the term is 0, not 0 / 0, and one correct response among others is a mean over its tokens alone."""
    recipe = _critic(reward=f.Reward(factor=1e-12))
    for correct in ([[False] * 3], [[False, True, False]]):
        rollouts = made(recipe, correct, lengths=[4, 5, 2])
        got = outcome(recipe, rollouts, before=Before(value=torch.zeros(len(rollouts.responses.ids))))
        want = torch.zeros_like(got.gradient)
        if any(correct[0]):
            want[4:9] = -0.1 / 5
        torch.testing.assert_close(got.gradient, want)


def test_kl_by_token_is_paid_from_the_token_on(made: Any) -> None:
    """The return of a token is R minus beta times the k1 of it and all that follow; masks included."""
    kl = f.KlInReward(beta=0.5, unit="token")
    recipe = Recipe(baseline=f.NoBaseline(), scale=f.NoScale(), kl=kl)
    got = weigh(recipe, made(recipe, CORRECT))
    responses = got.rollouts.responses
    k1, A = responses.padded(responses.logp - got.rollouts.reference), responses.padded(got.advantage)
    for i, n in enumerate(responses.length.tolist()):
        for t in range(n):
            want = float(got.rollouts.scored.score[i]) - 0.5 * float(k1[i, t:].sum())
            assert float(A[i, t]) == pytest.approx(want)


def test_kl_by_token_at_the_first_token_is_kl_by_response(made: Any) -> None:
    """What the first token pays is what the whole response pays, and their batch means agree."""
    levels = [
        Recipe(baseline=f.BatchMean(), scale=f.NoScale(), kl=f.KlInReward(beta=0.5, unit=unit))
        for unit in ("token", "sequence")
    ]
    first = made(levels[0], CORRECT).responses.first
    token, sequence = (weigh(r, made(r, CORRECT)).advantage[first] for r in levels)
    torch.testing.assert_close(token, sequence)
    assert float(token.sum()) == pytest.approx(0, abs=1e-9)


def test_kl_by_token_enters_the_deltas_of_a_critic(made: Any) -> None:
    """With a critic each token's reward is -beta k1, so that lambda 0 shows it alone."""
    baseline = f.CriticGae(policy_lambda=f.FixedLambda(value=0.0))
    recipe = _critic("ppo", scale=f.NoScale(), kl=f.KlInReward(beta=0.5, unit="token"), baseline=baseline)
    got = _weighed(recipe, made, lambda _: torch.zeros(1))
    responses = got.rollouts.responses
    want = -0.5 * (responses.logp - got.rollouts.reference)
    want = want.index_add(0, responses.length.cumsum(0) - 1, got.rollouts.scored.score)
    torch.testing.assert_close(got.advantage, want)


@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_advantages_of_tokens_are_whitened_over_the_batch(unit: Any, made: Any) -> None:
    """By token every token counts once, by sequence every response does."""
    recipe = _critic("ppo", scale=f.BatchWhiten(unit=unit, ddof=0, eps=0), kl=f.NoKl())
    got = _weighed(recipe, made, lambda r: r.responses.entropy)
    responses = got.rollouts.responses
    weight = torch.ones(len(responses.ids)) if unit == "token" else 1 / responses.length[responses.row]
    mean = float((weight * got.advantage).sum() / weight.sum())
    square = float((weight * got.advantage**2).sum() / weight.sum())
    assert (mean, square) == (pytest.approx(0, abs=1e-6), pytest.approx(1))


def test_dropped_responses_have_no_advantage_but_a_target(made: Any) -> None:
    """With a critic, responses that a filter took out are not trained on, nor in the statistics of whitening."""
    recipe = _critic("ppo", filter=f.Drop(), scale=f.BatchWhiten(ddof=0, eps=0, unit="token"))
    got = _weighed(recipe, made, lambda r: r.responses.entropy)
    inside = got.rollouts.responses.row < 6
    assert got.rollouts.kept.tolist() == [True] * 6 + [False] * 3
    assert not got.advantage[~inside].any()
    assert float(got.advantage[inside].mean()) == pytest.approx(0, abs=1e-6)
    (batch,) = minibatches(recipe, got, Random(0))
    assert tokens_of(recipe, got, batch).rows == 6


@pytest.mark.parametrize(
    ("clip", "new", "loss", "gradient"),
    [
        (None, 2.0, 0.125, 0.5),
        (
            0.2,
            2.0,
            0.845,
            0.0,
        ),  # within the clip it would be 0.2, which is further from 1.5: the larger loss, no gradient
        (0.2, 0.1, 0.98, -1.4),
        (0.2, -3.0, 10.125, -4.5),  # moving away is not clipped
    ],
)
def test_value_loss(clip: float | None, new: float, loss: float, gradient: float) -> None:
    """Half the squared error, or that of the value within ``clip`` of the old one if it is larger."""
    value = torch.tensor([new]).double().requires_grad_()
    old, target = torch.tensor([0.0]).double(), torch.tensor([1.5]).double()
    got = value_loss.loss(f.ValueLoss(clip=clip), value, old, target).sum()
    assert float(got.detach()) == pytest.approx(loss)
    assert float(torch.autograd.grad(got, value)[0]) == pytest.approx(gradient)
