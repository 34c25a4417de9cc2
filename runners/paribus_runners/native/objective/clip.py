"""F7: how the surrogate r A is bounded."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.recipe import factors as f


class Cut(NamedTuple):
    """Tokens whose gradient the clip rule cuts, each [T] and boolean.

    Attributes:
        low: A < 0 and the ratio below the lower bound; under a divergence, further down than it allows.
        high: A > 0 and the ratio above the upper bound; under a divergence, further up than it allows.
        dual: A < 0 and the ratio above ``c`` or ``delta``; no gradient, as ``low`` and ``high``.
        capped: the weight is not the ratio but a cap or a floor, for either sign of A; the gradient stays. Under
            ``is_cap_sg`` and ``ce_gppo`` all that are ``low`` or ``high`` are among these, and keep theirs.
    """

    low: Tensor
    high: Tensor
    dual: Tensor
    capped: Tensor


BINARY_EPS = 1e-8
"""Keeps the chance of the other tokens above 0 in a binary KL (Stable-RL and verl)."""


def surrogate(level: f.Clip, r: Tensor, A: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return the objective of each token [T], to be maximised.

    ``none``: r A. ``ppo_min``: min(r A, clip(r) A) (PPO, arXiv 1707.06347, Eq. 7; separate bounds: DAPO, Eq. 8).
    ``ppo_dual``: for A < 0 not below c A (arXiv 1912.09729). ``two_sided``: min(min(r, delta) A, clip(r) A)
    (INTELLECT-2, arXiv 2505.07291). ``is_cap_sg``: sg(clip(r, floor, cap)) A log pi (CISPO, arXiv 2506.13585, Eq. 4).
    ``soft_gate``: (4 / tau) sigmoid(tau (r - 1)) A with tau by the sign of A (SAPO, arXiv 2511.20347). ``dynamic``:
    ppo_min with bounds that widen for rare tokens (DCPO, arXiv 2509.02333). ``log_clip``: r A, for an r that was made
    of clipped log ratios (:func:`clip_log_ratio`). ``dppo_tv``, ``dppo_kl``: sg(min(r, cap)) A log pi, 0 where the
    token has diverged (:func:`diverged`; DPPO, arXiv 2602.04879, as the authors' code and verl). ``ce_gppo``: r A, and
    sg(beta bound / r) r A where ppo_min would stop (CE-GPPO, arXiv 2509.20712, as the authors' code). ``aspo``: weights
    of :func:`flipped` with the gradient of r / sg(r), none where ppo_min would stop (ASPO, arXiv 2510.06062, as the
    authors' code). ``vespo``: sg(phi) A log pi (:func:`gamma`). Rules that look at the whole batch come here as
    ordinary ones (:mod:`.whole_batch`).

    Args:
        level: the clip rule.
        r: [T] ratio.
        A: [T] advantage.
        new: [T] log-probability under the policy that is updated; rules with a stopped gradient read it.
        old: [T] log-probability under the policy that sampled; ``dynamic`` and the divergences read it.
    """
    assert not isinstance(level, f.ClipCov | f.KlCov | f.AdaptiveBand)  # .whole_batch puts another rule in their place
    if isinstance(level, f.GammaWeight):
        return gamma(level, r.detach(), A) * A * new
    if isinstance(level, f.FlippedRatio):
        out = _beyond(level, r, A, old)
        return flipped(level, r.detach(), A) * torch.where(out, torch.ones_like(r), r / r.detach()) * A
    if isinstance(level, f.GradientPreserving):
        low, high = bounds(level, old)
        bound = torch.where(A > 0, level.beta_high * high, level.beta_low * low)
        return torch.where(_beyond(level, r, A, old), bound / r.detach(), torch.ones_like(r)) * r * A
    if isinstance(level, f.DppoTotalVariation | f.DppoBinaryKl):
        kept = (~diverged(level, A, new.detach(), old)).to(r.dtype)
        return kept * r.clamp_max(level.cap).detach() * A * new
    if isinstance(level, f.NoClip | f.LogClip):
        return r * A
    if isinstance(level, f.SoftGate):
        tau = torch.where(A > 0, level.tau_positive, level.tau_negative)
        return 4 / tau * torch.sigmoid(tau * (r - 1)) * A
    low, high = bounds(level, old)
    clipped = r.clamp(low, high)
    if isinstance(level, f.CappedWeight):
        return clipped.detach() * A * new
    capped = r.clamp_max(level.delta) if isinstance(level, f.TwoSided) else r
    least = torch.minimum(capped * A, clipped * A)
    return torch.where(A < 0, torch.maximum(least, level.c * A), least) if isinstance(level, f.PpoDual) else least


def clip_log_ratio(level: f.Clip, d: Tensor, A: Tensor) -> Tensor:
    """Return the log ratio of each token [T] as it enters the ratio of its response.

    ``log_clip``: min(d, high) where A > 0, max(d, -low) where A < 0 (GMPO, arXiv 2507.20673, Eq. 4; the clip is on the
    side that the update would go further to). All other rules leave d alone.

    Args:
        level: the clip rule.
        d: [T] new minus old log-probability, nats.
        A: [T] advantage.
    """
    if not isinstance(level, f.LogClip):
        return d
    return torch.where(A > 0, d.clamp_max(level.high), torch.where(A < 0, d.clamp_min(-level.low), d))


def gamma(level: f.GammaWeight, r: Tensor, A: Tensor) -> Tensor:
    """Return [T] phi = r^k exp(lambda (1 - r)), with k and lambda by the sign of A; 0 counts as positive.

    phi is 1 at r = 1, and falls to 0 at both ends (VESPO, arXiv 2602.10693, as the authors' code and TRL; there r is
    the product of the ratios of a response).

    Args:
        level: gives k and lambda.
        r: [T] ratio, without gradient.
        A: [T] advantage.
    """
    k = torch.where(A >= 0, level.k_positive, level.k_negative).to(r.dtype)
    lam = torch.where(A >= 0, level.lambda_positive, level.lambda_negative).to(r.dtype)
    return (k * r.log() + lam * (1 - r)).exp()


def flipped(level: f.FlippedRatio, r: Tensor, A: Tensor) -> Tensor:
    """Return [T] the weight of ASPO: min(1 / r, c_positive) where A > 0, min(r, c_negative) elsewhere."""
    return torch.where(A > 0, (1 / r).clamp_max(level.c_positive), r.clamp_max(level.c_negative))


def _beyond(level: f.GradientPreserving | f.FlippedRatio, r: Tensor, A: Tensor, old: Tensor) -> Tensor:
    """Return [T] where ppo_min with these bounds would stop a token."""
    low, high = bounds(level, old)
    return ((A < 0) & (r < low)) | ((A > 0) & (r > high))


def diverged(level: f.DppoTotalVariation | f.DppoBinaryKl, A: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return [T] where the policy has moved further than allowed, in the direction in which A would go on.

    With p the new and q the old probability, D is |p - q| or q log(q / p) + (1 - q) log((1 - q) / (1 - p)); a token is
    out where A > 0, p > q and D > high, or A < 0, p < q and D > low (DPPO, arXiv 2602.04879, binary approximations).

    Args:
        level: the divergence and its bounds.
        A: [T] advantage.
        new: [T] log-probability under the policy that is updated.
        old: [T] log-probability under the policy that sampled.
    """
    p, q = new.exp(), old.exp()
    if isinstance(level, f.DppoTotalVariation):
        D = (p - q).abs()
    else:
        D = q * (old - new) + (1 - q) * ((1 - q + BINARY_EPS) / (1 - p + BINARY_EPS)).log()
    return ((level.high < D) & (A > 0) & (p > q)) | ((level.low < D) & (A < 0) & (p < q))


def bounds(level: f.Clip, old: Tensor) -> tuple[Tensor, Tensor]:
    """Return lower and upper bound of the ratio that the rule looks at, each [T]; infinite where it has none.

    For ``log_clip`` that is the ratio of the token, for all others r.

    ``dynamic``, with q the old probability: 0.5 + 0.5 sqrt(max(1 - 4 low / q, 0)) and 0.5 + 0.5 sqrt(1 + 4 high / q),
    the latter at most ``cap`` (DCPO, arXiv 2509.02333).
    """
    if isinstance(level, f.DynamicBand):
        q = old.exp()
        low = 0.5 + 0.5 * (1 - 4 * level.low / q).clamp_min(0).sqrt()
        return low, (0.5 + 0.5 * (1 + 4 * level.high / q).sqrt()).clamp_max(level.cap)
    if isinstance(level, f.CappedWeight):
        edges = level.floor, level.cap
    elif isinstance(level, f.LogClip):
        edges = math.exp(-level.low), math.exp(level.high)
    elif isinstance(level, f.PpoMin | f.PpoDual | f.TwoSided | f.GradientPreserving | f.FlippedRatio):
        edges = 1 - level.low, 1 + level.high
    else:
        edges = -math.inf, math.inf
    return torch.full_like(old, edges[0]), torch.full_like(old, edges[1])


def cut(level: f.Clip, r: Tensor, A: Tensor, new: Tensor, old: Tensor) -> Cut:
    """Return where the rule cuts the gradient; without advantage a token has none to cut.

    ``two_sided``: for A > 0 the lower of ``delta`` and the upper bound acts, for A < 0 the higher one.

    Args:
        level: the clip rule.
        r: [T] the ratio that the rule looks at (:func:`bounds`).
        A: [T] advantage.
        new: [T] log-probability under the policy that is updated.
        old: [T] log-probability under the policy that sampled.
    """
    nowhere = torch.zeros_like(r, dtype=torch.bool)
    if isinstance(level, f.DppoTotalVariation | f.DppoBinaryKl):
        out = diverged(level, A, new, old)
        return Cut(out & (A < 0), out & (A > 0), nowhere, (A != 0) & ~out & (r > level.cap))
    low, high = bounds(level, old)
    if isinstance(level, f.TwoSided):
        return Cut((A < 0) & (r < low), (A > 0) & (r > high.clamp_max(level.delta)),
                   (A < 0) & (r > high.clamp_min(level.delta)), nowhere)  # fmt: skip
    if isinstance(level, f.FlippedRatio):
        raw = torch.where(A > 0, 1 / r, r)
        capped = (A != 0) & ~_beyond(level, r, A, old) & (flipped(level, r, A) < raw)
        return Cut((A < 0) & (r < low), (A > 0) & (r > high), nowhere, capped)
    if isinstance(level, f.GradientPreserving):
        return Cut((A < 0) & (r < low), (A > 0) & (r > high), nowhere, _beyond(level, r, A, old))
    dual = (A < 0) & (r > level.c) if isinstance(level, f.PpoDual) else nowhere
    capped = (A != 0) & ((r < low) | (r > high)) if isinstance(level, f.CappedWeight) else nowhere
    return Cut((A < 0) & (r < low), (A > 0) & (r > high), dual, capped)
