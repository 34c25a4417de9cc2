"""Batched sampling with a key-value cache; finished responses leave the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from paribus_runners.native.attention import KeyCache, pack
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses

EVICT = 0.25
"""Finished responses are dropped when they make up this share of the batch."""
ROWS = {"cpu": 512, "cuda": 1024}
"""Responses that are sampled at once, by device: bounds the memory of the cache."""


def uniforms(rows: int, columns: int, *place: int | str) -> Tensor:
    """Return [rows, columns] float64 numbers in [0, 1) that depend on ``place`` alone, e.g. seed, purpose, step, round.

    They never depend on history, so arms with the same seed share them.
    """
    digest = hashlib.sha256("/".join(map(str, place)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
    return torch.rand(rows, columns, dtype=torch.float64, generator=generator)


def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    copies: int,
    uniforms: Tensor,
    temperature: float,
    top_p: float = 1.0,
) -> Responses:
    """Sample ``copies`` responses to each prompt.

    Each token is the inverse of the cumulative distribution at one uniform number, so what a response becomes depends
    on its own numbers only, not on the batch around it.

    Args:
        policy: the model.
        prompts: tokens of each of P prompts.
        copies: responses to each prompt; they lie next to each other.
        uniforms: [P * copies, M] numbers in [0, 1), one for each token that may be generated.
        temperature: logits are divided by it.
        top_p: see :func:`nucleus`; below 1 in evaluations alone, because log-probabilities are those of the whole
            distribution.
    """
    size = max(1, ROWS[policy.device.type] // copies)
    parts = []
    for i in range(0, len(prompts), size):
        numbers = uniforms[i * copies : (i + size) * copies].to(policy.device)
        parts.append(_sample(policy, prompts[i : i + size], copies, numbers, temperature, top_p))
    return Responses.concat(parts)


@torch.no_grad()
def _sample(
    policy: Policy, prompts: Sequence[Sequence[int]], copies: int, uniforms: Tensor, temperature: float, top_p: float
) -> Responses:
    device, (total, room) = policy.device, uniforms.shape
    logits, cache, positions = _prefill(policy, prompts, copies, room)
    ends = torch.tensor(policy.ends, device=device)
    ids = torch.zeros(total, room, dtype=torch.long, device=device)
    logp = torch.zeros(total, room, device=device)
    entropy = torch.zeros(total, room, device=device)
    length = torch.full((total,), room, device=device)
    truncated = torch.ones(total, dtype=torch.bool, device=device)
    rows = torch.arange(total, device=device)
    alive = torch.ones(total, dtype=torch.bool, device=device)
    for t in range(room):
        token, token_logp, token_entropy = draw(logits, uniforms[rows, t], temperature, top_p)
        ids[rows, t], logp[rows, t], entropy[rows, t] = token, token_logp, token_entropy
        ended = alive & torch.isin(token, ends)
        length[rows[ended]], truncated[rows[ended]] = t + 1, False
        alive = alive & ~ended
        left = int(alive.sum())
        if left == 0 or t + 1 == room:
            break
        if left <= (1 - EVICT) * len(rows):
            keep = alive.nonzero().squeeze(1)
            rows, alive, token = rows[keep], alive[keep], token[keep]
            cache.keep(keep)
        cache.advance()
        logits = policy.logits(token, positions[rows] + t, cache)
    generated = torch.arange(room, device=device) < length[:, None]
    values = (ids * generated, logp * generated, entropy * generated, length, truncated)
    return Responses(*(x.cpu() for x in values))


def _prefill(
    policy: Policy, prompts: Sequence[Sequence[int]], copies: int, room: int
) -> tuple[Tensor, KeyCache, Tensor]:
    """Return first logits [P * copies, V], cache, and prompt lengths [P * copies]."""
    device = policy.device
    lengths = [len(p) for p in prompts]
    layout = pack(lengths, [()] * len(prompts), device, keep_keys=True)
    ids = torch.tensor([x for p in prompts for x in p], device=device)
    last = torch.tensor(lengths, device=device).cumsum(0) - 1
    logits = policy.logits(ids, layout.positions, layout, at=last)
    cache = KeyCache(layout, lengths, copies, room)
    positions = torch.tensor(lengths, device=device).repeat_interleave(copies)
    return logits.repeat_interleave(copies, 0), cache, positions


def draw(logits: Tensor, uniform: Tensor, temperature: float, top_p: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return token, its log-probability and the entropy of the distribution, each [n], from logits [n, V].

    With ``top_p`` below 1 the token comes from the :func:`nucleus`; the two others are of the whole distribution.
    """
    logp = (logits / temperature).log_softmax(-1)
    p = logp.exp()
    entropy = -(p * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(-1)
    drawn = p if top_p == 1 else nucleus(p, top_p)
    cumulative = drawn.cumsum(-1, dtype=torch.float64)
    threshold = uniform[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, threshold, right=True).squeeze(1).clamp_max(logits.shape[1] - 1)
    return token, logp.gather(1, token[:, None]).squeeze(1), entropy


def nucleus(p: Tensor, top_p: float) -> Tensor:
    """Return probabilities [n, V] with 0 for all but the fewest tokens that add up to ``top_p``; not renormalised.

    Of equally likely tokens the first ones stay. Source: Holtzman et al. 2020, arXiv 1904.09751, section 3.1.
    """
    ordered, places = p.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered
    return torch.zeros_like(p).scatter(-1, places, ordered * (before < top_p))
