"""F10: what corrects for a sampler that is not the policy at the start of the updates."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import segment
from paribus_runners.native.objective.ratio import LOG_LIMIT


def weight(level: f.Correction, old: Tensor, sampler: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return [T] the factor of the surrogate of each token after its clip; it leaves KL and auxiliary losses alone.

    With w = exp(old - sampler) of a token, W its product over the response and g its geometric mean: ``off``: 1.
    ``token_truncate``: min(w, cap) (TIS, Yao et al. 2025). ``token_mask``: w in [low, high], else 0 (IcePop).
    ``seq_truncate``: min(W, cap). ``seq_mask``: W in [low, high], else 0. ``geo_mask``: 1 if g in [low, high], else 0.

    Args:
        level: the correction.
        old: [T] log-probability under the policy at the start of the updates, nats.
        sampler: [T] log-probability under the policy that sampled, as the sampler computed it.
        row: [T] index of the response of each token; all tokens of a response are there.
        rows: number of responses.
    """
    if isinstance(level, f.NoCorrection):
        return torch.ones_like(old)
    raw = raw_weight(level, old, sampler, row, rows)
    if isinstance(level, f.TokenTruncate | f.SequenceTruncate):
        return raw.clamp_max(level.cap)
    inside = (~changed(level, raw)).to(raw.dtype)
    return inside if isinstance(level, f.GeometricMask) else raw * inside


def changed(level: f.Correction, raw: Tensor) -> Tensor:
    """Return [T] where a weight before truncation or masking, ``raw`` [T], is not kept."""
    if isinstance(level, f.TokenTruncate | f.SequenceTruncate):
        return raw > level.cap
    if isinstance(level, f.NoCorrection):
        return torch.zeros_like(raw, dtype=torch.bool)
    return (raw < level.low) | (raw > level.high)


def raw_weight(level: f.Correction, old: Tensor, sampler: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return [T] the weight before it is truncated or masked: w, W or g by ``level``."""
    d = old - sampler
    if isinstance(level, f.SequenceTruncate | f.SequenceMask):
        d = segment.total(d, row, rows)[row]
    elif isinstance(level, f.GeometricMask):
        d = segment.mean(d, row, rows)[row]
    return d.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
