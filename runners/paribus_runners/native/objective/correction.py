"""F10: what corrects for a sampler that is not the policy at the start of the updates."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import segment
from paribus_runners.native.objective.ratio import LOG_LIMIT

_Weight = f.TokenTruncate | f.TokenMask | f.SequenceTruncate | f.SequenceMask | f.GeometricMask


def weight(level: f.Correction, old: Tensor, sampler: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return [T] the factor of the surrogate of each token after its clip; it leaves KL and auxiliary losses alone.

    With w = exp(old - sampler) of a token, W its product over the response and g its geometric mean: ``off``: 1.
    ``token_truncate``: min(w, cap) (TIS, Yao et al. 2025). ``token_mask``: w in [low, high], else 0 (IcePop).
    ``seq_truncate``: min(W, cap). ``seq_mask``: W in [low, high], else 0. ``geo_mask``: 1 if g in [low, high], else 0.
    ``off_policy_mask``: 1; what it masks depends on the policy in each update (:func:`off_policy`). ``chain``: the
    product of the two.

    Args:
        level: the correction.
        old: [T] log-probability under the policy at the start of the updates, nats.
        sampler: [T] log-probability under the policy that sampled, as the sampler computed it.
        row: [T] index of the response of each token; all tokens of a response are there.
        rows: number of responses.
    """
    if isinstance(level, f.NoCorrection | f.OffPolicyMask):
        return torch.ones_like(old)
    if isinstance(level, f.Chain):
        return weight(level.mask, old, sampler, row, rows) * weight(level.weight, old, sampler, row, rows)
    raw = raw_weight(level, old, sampler, row, rows)
    if isinstance(level, f.TokenTruncate | f.SequenceTruncate):
        return raw.clamp_max(level.cap)
    inside = (~_outside(level, raw)).to(raw.dtype)
    return inside if isinstance(level, f.GeometricMask) else raw * inside


def off_policy_mask(level: f.Correction) -> f.OffPolicyMask | None:
    """Return the mask by the sign of the advantage that is in a correction, if one is."""
    mask = level.mask if isinstance(level, f.Chain) else level
    return mask if isinstance(mask, f.OffPolicyMask) else None


def off_policy(level: f.OffPolicyMask, A: Tensor, new: Tensor, sampler: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return [T] where an update leaves a token out: A < 0, and the policy has left the response.

    That is where the mean of log(pi_sampler / pi) over the response is above delta (DeepSeek-V3.2, arXiv 2512.02556,
    Eq. 9; pi_sampler is the sampler's own log-probability, so that staleness and mismatch both count).

    Args:
        level: the mask.
        A: [T] advantage.
        new: [T] log-probability under the policy that is updated, nats; the mask has no gradient.
        sampler: [T] log-probability under the policy that sampled, as the sampler computed it.
        row: [T] index of the response of each token; all tokens of a response are there.
        rows: number of responses.
    """
    left = segment.mean(sampler - new.detach(), row, rows) > level.delta
    return left[row] & (A < 0)


def changed(level: f.Correction, old: Tensor, sampler: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return [T] where the weight is truncated or masked; arguments as for :func:`weight`."""
    if isinstance(level, f.Chain):
        return changed(level.mask, old, sampler, row, rows) | changed(level.weight, old, sampler, row, rows)
    if isinstance(level, f.NoCorrection | f.OffPolicyMask):
        return torch.zeros_like(old, dtype=torch.bool)
    return _outside(level, raw_weight(level, old, sampler, row, rows))


def _outside(level: _Weight, raw: Tensor) -> Tensor:
    if isinstance(level, f.TokenTruncate | f.SequenceTruncate):
        return raw > level.cap
    return (raw < level.low) | (raw > level.high)


def raw_weight(level: _Weight, old: Tensor, sampler: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return [T] the weight before it is truncated or masked: w, W or g by ``level``."""
    d = old - sampler
    if isinstance(level, f.SequenceTruncate | f.SequenceMask):
        d = segment.total(d, row, rows)[row]
    elif isinstance(level, f.GeometricMask):
        d = segment.mean(d, row, rows)[row]
    return d.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
