"""F9: the distance to the reference policy."""

from __future__ import annotations

from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import segment


def estimate(estimator: str, u: Tensor) -> Tensor:
    """Return the estimate of KL(pi || reference) at each token [T] from u = log pi - log reference, nats.

    ``k1`` u, ``k2`` u^2 / 2, ``k3`` exp(-u) - 1 + u (Schulman, http://joschu.net/blog/kl-approx.html); k2 and k3 are
    not negative.
    """
    if estimator == "k1":
        return u
    return u**2 / 2 if estimator == "k2" else (-u).exp() - 1 + u


def in_reward(level: f.Kl, old: Tensor, reference: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return [N] what is subtracted from R: beta times the estimate, summed over the tokens of each response.

    Args:
        level: the KL term.
        old: [T] log-probability under the policy that sampled.
        reference: [T] log-probability under the reference.
        row: [T] index of the response of each token.
        rows: N.
    """
    if not isinstance(level, f.KlInReward):
        return old.new_zeros(rows)
    return level.beta * segment.total(estimate(level.estimator, old - reference), row, rows)


def in_loss(level: f.Kl, new: Tensor, old: Tensor, reference: Tensor) -> Tensor:
    """Return [T] what is subtracted from the surrogate of each token, with gradient.

    ``loss``: beta k (GRPO, arXiv 2402.03300, Eq. 4). ``loss_isw``: beta r k with r = pi / pi_old (DeepSeek-V3.2, arXiv
    2512.02556).
    """
    if isinstance(level, f.KlInLoss):
        return level.beta * estimate(level.estimator, new - reference)
    if isinstance(level, f.KlInLossWeighted):
        return level.beta * (new - old).exp() * estimate(level.estimator, new - reference)
    return new.new_zeros(())
