"""F6: the ratio of new to old probability."""

from __future__ import annotations

from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import segment

LOG_LIMIT = 20.0
"""log r is kept in [-20, 20] before it is exponentiated."""


def ratio(level: f.Ratio, d: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return r [T] for each token, with its gradient with respect to ``d``.

    ``token``: exp(d) (PPO, GRPO). ``none``: value 1, gradient of log pi (REINFORCE). ``seq_geo``: exp of the mean of d
    over the response (GSPO, arXiv 2507.18071, Eq. 7). ``seq_geo_token``: the same value, gradient on the token itself
    (Eq. 14). ``seq_product``: exp of the sum of d over the response. ``geo_clipped``: as ``seq_geo``, of d that was
    clipped token by token before (GMPO, arXiv 2507.20673; :func:`.clip.clip_log_ratio`).

    Args:
        level: the ratio.
        d: [T] new minus old log-probability, nats.
        row: [T] index of the response of each token; all tokens of a response are there.
        rows: number of responses.
    """
    if isinstance(level, f.NoRatio):
        return (d - d.detach()).exp()
    if isinstance(level, f.TokenRatio):
        return d.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
    reduce = segment.total if isinstance(level, f.SequenceProduct) else segment.mean
    sequence = reduce(d, row, rows).clamp(-LOG_LIMIT, LOG_LIMIT).exp()[row]
    if isinstance(level, f.SequenceGeometricToken):
        return sequence.detach() * (d - d.detach()).exp()
    return sequence
