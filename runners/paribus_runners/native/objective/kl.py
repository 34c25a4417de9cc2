"""F9: the distance to the reference policy."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective.ratio import LOG_LIMIT


def estimate(estimator: str, u: Tensor) -> Tensor:
    """Return the estimate of KL(pi || reference) at each token [T] from u = log pi - log reference, nats.

    ``k1`` u, ``k2`` u^2 / 2, ``k3`` exp(-u) - 1 + u (Schulman, http://joschu.net/blog/kl-approx.html); k2 and k3 are
    not negative.
    """
    if estimator == "k1":
        return u
    return u**2 / 2 if estimator == "k2" else (-u).exp() - 1 + u


def charge(level: f.Kl, old: Tensor, reference: Tensor) -> Tensor:
    """Return what each token pays from the reward [T]: beta times the estimate; 0 where KL is not in the reward.

    With ``unit: sequence`` R pays the sum over the response (RLOO, arXiv 2402.14740); with ``unit: token`` each token
    pays for itself, and through its return for those behind it (REINFORCE++, arXiv 2501.03262).

    Args:
        level: the KL term.
        old: [T] log-probability under the policy that sampled.
        reference: [T] log-probability under the reference.
    """
    if not isinstance(level, f.KlInReward):
        return torch.zeros_like(old)
    return level.beta * estimate(level.estimator, old - reference)


def from_advantage(level: f.Kl, old: Tensor, reference: Tensor) -> Tensor:
    """Return what is subtracted from the advantage of each token [T]: beta u; 0 where KL is not in the advantage.

    On the policy's own tokens its expectation has the gradient of beta KL(pi || reference) of each next token, with
    the texts before them given (Lu, On-Policy Distillation, 2025; verl's ``use_policy_gradient``).

    Args:
        level: the KL term.
        old: [T] log-probability under the policy that sampled.
        reference: [T] log-probability under the reference, a teacher for instance.
    """
    if not isinstance(level, f.KlInAdvantage):
        return torch.zeros_like(old)
    return level.beta * estimate(level.estimator, old - reference)


def in_loss(level: f.Kl, new: Tensor, old: Tensor, reference: Tensor) -> Tensor:
    """Return [T] what is subtracted from the surrogate of each token, with gradient.

    ``loss``: beta k (GRPO, arXiv 2402.03300, Eq. 4). ``loss_isw``: beta r k with r = pi / pi_old (DeepSeek-V3.2, arXiv
    2512.02556).
    """
    if isinstance(level, f.KlInLoss):
        return level.beta * estimate(level.estimator, new - reference)
    if isinstance(level, f.KlInLossWeighted):
        r = (new - old).clamp(-LOG_LIMIT, LOG_LIMIT).exp()
        return level.beta * r * estimate(level.estimator, new - reference)
    return new.new_zeros(())
