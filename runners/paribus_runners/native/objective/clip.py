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
        low: A < 0 and the ratio below the lower bound.
        high: A > 0 and the ratio above the upper bound.
        dual: A < 0 and the ratio above ``c`` or ``delta``; no gradient, as ``low`` and ``high`` except with a capped
            weight.
        capped: the weight is not the ratio but the cap or the floor, for either sign of A; the gradient stays. These
            include all that are ``low`` or ``high`` under this rule.
    """

    low: Tensor
    high: Tensor
    dual: Tensor
    capped: Tensor


def surrogate(level: f.Clip, r: Tensor, A: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return the objective of each token [T], to be maximised.

    ``none``: r A. ``ppo_min``: min(r A, clip(r) A) (PPO, arXiv 1707.06347, Eq. 7; separate bounds: DAPO, Eq. 8).
    ``ppo_dual``: for A < 0 not below c A (arXiv 1912.09729). ``two_sided``: min(min(r, delta) A, clip(r) A)
    (INTELLECT-2, arXiv 2505.07291). ``is_cap_sg``: sg(clip(r, floor, cap)) A log pi (CISPO, arXiv 2506.13585, Eq. 4).
    ``soft_gate``: (4 / tau) sigmoid(tau (r - 1)) A with tau by the sign of A (SAPO, arXiv 2511.20347). ``dynamic``:
    ppo_min with bounds that widen for rare tokens (DCPO, arXiv 2509.02333). ``log_clip``: r A, for an r that was made
    of clipped log ratios (:func:`clip_log_ratio`).

    Args:
        level: the clip rule.
        r: [T] ratio.
        A: [T] advantage.
        new: [T] log-probability under the policy that is updated; only ``is_cap_sg`` reads it.
        old: [T] log-probability under the policy that sampled; only ``dynamic`` reads it.
    """
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
    elif isinstance(level, f.PpoMin | f.PpoDual | f.TwoSided):
        edges = 1 - level.low, 1 + level.high
    else:
        edges = -math.inf, math.inf
    return torch.full_like(old, edges[0]), torch.full_like(old, edges[1])


def cut(level: f.Clip, r: Tensor, A: Tensor, old: Tensor) -> Cut:
    """Return where the rule cuts the gradient; without advantage a token has none to cut.

    ``two_sided``: for A > 0 the lower of ``delta`` and the upper bound acts, for A < 0 the higher one.

    Args:
        level: the clip rule.
        r: [T] the ratio that the rule looks at (:func:`bounds`).
        A: [T] advantage.
        old: [T] log-probability under the policy that sampled.
    """
    low, high = bounds(level, old)
    nowhere = torch.zeros_like(r, dtype=torch.bool)
    if isinstance(level, f.TwoSided):
        return Cut((A < 0) & (r < low), (A > 0) & (r > high.clamp_max(level.delta)),
                   (A < 0) & (r > high.clamp_min(level.delta)), nowhere)  # fmt: skip
    dual = (A < 0) & (r > level.c) if isinstance(level, f.PpoDual) else nowhere
    capped = (A != 0) & ((r < low) | (r > high)) if isinstance(level, f.CappedWeight) else nowhere
    return Cut((A < 0) & (r < low), (A > 0) & (r > high), dual, capped)
