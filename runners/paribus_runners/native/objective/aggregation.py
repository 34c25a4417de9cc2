"""F8: how tokens add up to the loss of an optimizer batch."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import segment


def token_weight(level: f.Aggregation, length: Tensor, group: Tensor, rows: int, limit: int) -> Tensor:
    """Return [n] the weight of each token of each response in the loss of one optimizer batch.

    The weights need no policy, so they are fixed before the batch is split for memory, and the gradient does not
    depend on the split. With N responses, P groups and T tokens in the loss, and L the length of a response:
    ``seq_mean`` 1/(N L) (GRPO). ``token_group`` 1/(P tokens of the group) (DAPO, arXiv 2503.14476, Eq. 8).
    ``token_batch`` 1/T (DAPO's code). ``token_micro`` 1/(m tokens of the micro-batch) with m micro-batches (TRL
    ``bnpo``). ``const`` 1/(N C) (Dr. GRPO, arXiv 2503.20783). ``seq_sum`` 1/N. ``seq_meansum``
    1/L (DCPO).

    Args:
        level: the aggregation.
        length: [n] tokens of each response in the loss.
        group: [n] index of the group of each response, every index below the largest in use.
        rows: N; larger than n where masked responses are counted.
        limit: generation limit in tokens, the default of C.
    """
    L = length.to(torch.float64)
    if isinstance(level, f.SequenceMean):
        return 1 / (rows * L)
    if isinstance(level, f.TokenGroup):
        groups = int(group.max()) + 1
        return (1 / (groups * segment.total(L, group, groups)))[group]
    if isinstance(level, f.TokenBatch):
        return torch.full_like(L, 1 / float(L.sum()))
    if isinstance(level, f.TokenMicro):
        count = min(level.microbatches, len(L))
        micro = torch.arange(len(L)) * count // len(L)
        return (1 / (count * segment.total(L, micro, count)))[micro]
    if isinstance(level, f.ConstantLength):
        return torch.full_like(L, 1 / (rows * (level.length or limit)))
    if isinstance(level, f.SequenceSum):
        return torch.full_like(L, 1 / rows)
    assert isinstance(level, f.SequenceMeanSum)
    return 1 / L
