"""F11: which tokens count, and how much."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f


def weight(level: f.TokenWeight, entropy: Tensor | None, old: Tensor) -> Tensor:
    """Return [T] what multiplies the advantage of each token in the loss of one optimizer batch.

    ``uniform``: 1. ``top_entropy``: 1 on exactly the given fraction of the tokens, those with the highest sampling
    entropy, 0 on the others; of tokens with equal entropy the earlier ones of the batch. The denominators of the
    aggregation still count all (arXiv 2506.01939, Eq. 5). ``advantage_reweight``: alpha p_old + 1 - alpha (arXiv
    2505.12929, Eq. 8).

    Args:
        level: the weighting.
        entropy: [T] entropy at each token when it was sampled, nats; only ``top_entropy`` reads it.
        old: [T] log-probability under the policy that sampled.
    """
    if isinstance(level, f.TopEntropy):
        assert entropy is not None
        count = max(1, round(level.fraction * len(entropy)))
        kept = entropy.argsort(descending=True, stable=True)[:count]
        return torch.zeros_like(entropy).index_fill(0, kept, 1.0)
    if isinstance(level, f.AdvantageReweight):
        return level.alpha * old.exp() + 1 - level.alpha
    return torch.ones_like(old)
