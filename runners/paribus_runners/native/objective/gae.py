"""F4, ``critic_gae``: advantages and returns of tokens from a critic's values."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f


def estimate(reward: Tensor, value: Tensor, mask: Tensor, gamma: float, lam: Tensor) -> Tensor:
    """Return generalised advantage estimates [N, M]; 0 outside ``mask``.

    delta_t = reward_t + gamma V_{t+1} - V_t, with V = 0 behind the last token, and A_t = delta_t + gamma lambda A_{t+1}
    (arXiv 1506.02438, Eq. 16).

    Args:
        reward: [N, M] reward of each token.
        value: [N, M] value of the state in which each token was chosen.
        mask: [N, M] True on the tokens of each response, from its first on.
        gamma: discount of one token.
        lam: [N] lambda of each response.
    """
    reward, value = reward * mask, value * mask
    A = torch.zeros_like(value)
    later = torch.zeros_like(lam)
    following = torch.zeros_like(lam)
    for t in reversed(range(value.shape[1])):
        later = (reward[:, t] + gamma * following - value[:, t] + gamma * lam * later) * mask[:, t]
        following = value[:, t]
        A[:, t] = later
    return A


def policy_lambda(level: f.CriticGae, length: Tensor) -> Tensor:
    """Return lambda [N] of the policy's advantages for responses of ``length`` [N] tokens, float64.

    ``fixed``: the value. ``length_adaptive``: 1 - 1 / (alpha L), kept in [0, 1] (VAPO, arXiv 2504.05118, Eq. 9).
    """
    rule = level.policy_lambda
    if isinstance(rule, f.FixedLambda):
        return torch.full_like(length, rule.value, dtype=torch.float64)
    return (1 - 1 / (rule.alpha * length.double())).clamp(0, 1)
