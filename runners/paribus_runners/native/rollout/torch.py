"""The sampler ``torch``: batched sampling by the code that trains, with a key-value cache.

Finished responses leave the batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from paribus_runners.native.attention import KeyCache, pack
from paribus_runners.native.head import Head
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Finished, Requests, number
from paribus_runners.native.support import Support, restricted, truncated

EVICT = 0.25
"""Finished responses are dropped when they make up this share of the batch."""
ROWS = {"cpu": 512, "cuda": 1024}
"""Responses that all processes together sample at once, by device: bounds the memory of the cache."""
_NONE = Responses(
    ids=torch.empty(0, dtype=torch.long),
    logp=torch.empty(0),
    entropy=torch.empty(0),
    length=torch.empty(0, dtype=torch.long),
    truncated=torch.empty(0, dtype=torch.bool),
)


@dataclass(frozen=True)
class TorchSampler:
    """Samples from the modules that are trained, so there is nothing to load; implements :class:`.sampler.Sampler`.

    Attributes:
        policy: the modules.
    """

    policy: Policy

    @property
    def all_at_once(self) -> bool:
        """False: what comes after the groups that are sampled together has not begun."""
        return False

    def sample(self, requests: Requests) -> Iterator[Finished]:
        """Yield as many groups at a time as are sampled at once, in the order of their prompts.

        Which ones go together follows from their places among all prompts, so that several processes, each with its
        share, have ended the same ones after each time as one process; of some a share may hold none.

        Each token is the inverse of the cumulative distribution at one uniform number, so what a response becomes
        depends on its own numbers only, not on the batch around it.
        """
        size = max(1, ROWS[self.policy.device.type] // requests.copies)
        numbers, places, end = _numbers(requests), requests.among_all, 0
        for before in range(0, places[-1] + 1 if places else 0, size):
            begin, end = end, bisect_left(places, before + size)
            if begin == end:
                yield Finished((), _NONE)
                continue
            prompts = requests.prompts[begin:end]
            table = torch.stack([next(numbers) for _ in range(len(prompts) * requests.copies)]).to(self.policy.device)
            responses = _sample(self.policy, prompts, requests, table)
            yield Finished(range(begin, end), responses)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """Do nothing: the weights are those of the policy."""
        return {}

    def rest(self) -> None:
        """Do nothing: the cache is freed after each batch."""


def _numbers(requests: Requests) -> Iterator[Tensor]:
    """Yield for each response [room] float64 numbers in [0, 1), one for each token that may be sampled."""
    generator = torch.Generator().manual_seed(number(*requests.place))
    for before, i in pairwise([-1, *requests.among_all]):
        for _ in range(0 if requests.apart else (i - before - 1) * requests.copies):  # those of prompts left out
            torch.rand(requests.room, dtype=torch.float64, generator=generator)
        for j in range(requests.copies):
            if requests.apart:
                generator.manual_seed(number(*requests.place, i, j))
            yield torch.rand(requests.room, dtype=torch.float64, generator=generator)


@torch.no_grad()
def _sample(policy: Policy, prompts: Sequence[Sequence[int]], requests: Requests, uniforms: Tensor) -> Responses:
    device, (total, room), copies = policy.device, uniforms.shape, requests.copies
    hidden, cache, positions = _prefill(policy, prompts, copies, room)
    drawn = _draw(policy.head, hidden, uniforms[:, 0], requests, copies)
    ends = torch.tensor(policy.ends, device=device)
    ids = torch.zeros(total, room, dtype=torch.long, device=device)
    logp = torch.zeros(total, room, device=device)
    entropy = torch.zeros(total, room, device=device)
    length = torch.full((total,), room, device=device)
    truncated = torch.ones(total, dtype=torch.bool, device=device)
    rows = torch.arange(total, device=device)
    alive = torch.ones(total, dtype=torch.bool, device=device)
    supports: list[tuple[Tensor, Support]] = []
    for t in range(room):
        token = drawn.token
        ids[rows, t], logp[rows, t], entropy[rows, t] = token, drawn.logp, drawn.entropy
        if drawn.support is not None:
            supports.append((rows * room + t, drawn.support))
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
        hidden = policy.hidden(token, positions[rows] + t, cache)
        drawn = _draw(policy.head, hidden, uniforms[rows, t + 1], requests)
    generated = torch.arange(room, device=device) < length[:, None]
    return Responses(
        ids=ids[generated].cpu(),
        logp=logp[generated].cpu(),
        entropy=entropy[generated].cpu(),
        length=length.cpu(),
        truncated=truncated.cpu(),
        support=_in_order(supports, generated.flatten()) if supports else None,
    )


def _in_order(parts: Sequence[tuple[Tensor, Support]], generated: Tensor) -> Support:
    """Return the supports of generated tokens, response after response, on the CPU.

    Args:
        parts: [n] places of tokens in the table of all, with their supports.
        generated: which places of this table hold tokens.
    """
    places, every = torch.cat([at for at, _ in parts]), Support.join([support for _, support in parts])
    order = places.argsort()
    order = order[generated[places[order]]]
    return every.select(order).to(torch.device("cpu"))


def _prefill(
    policy: Policy, prompts: Sequence[Sequence[int]], copies: int, room: int
) -> tuple[Tensor, KeyCache, Tensor]:
    """Return the last hidden states [P, H], cache, and prompt lengths [P * copies]."""
    device = policy.device
    lengths = [len(p) for p in prompts]
    layout = pack(lengths, [()] * len(prompts), device, keep_keys=True)
    ids = torch.tensor([x for p in prompts for x in p], device=device)
    last = torch.tensor(lengths, device=device).cumsum(0) - 1
    hidden = policy.hidden(ids, layout.positions, layout, at=last)
    cache = KeyCache(layout, lengths, copies, room)
    positions = torch.tensor(lengths, device=device).repeat_interleave(copies)
    return hidden, cache, positions


class Drawn(NamedTuple):
    """Tokens [n], their log-probability and entropy [n], nats, and what they were chosen from, if that is asked for."""

    token: Tensor
    logp: Tensor
    entropy: Tensor
    support: Support | None = None


def _draw(head: Head, hidden: Tensor, uniform: Tensor, requests: Requests, copies: int = 1) -> Drawn:
    """Return what :func:`draw` does for ``copies`` of each hidden state [n, H], few logits at a time."""
    size = max(1, head.rows() // copies)
    parts = []
    for i in range(0, len(hidden), size):
        logits = head.logits(hidden[i : i + size]).repeat_interleave(copies, 0)
        mine = uniform[i * copies :][: len(logits)]
        parts.append(
            draw(logits, mine, requests.temperature, requests.top_p, requests.top_k, record=requests.with_support)
        )
    supports = [p.support for p in parts if p.support is not None]
    token, logp, entropy = (torch.cat(x) for x in zip(*(p[:3] for p in parts), strict=True))
    return Drawn(token, logp, entropy, Support.join(supports) if supports else None)


def draw(
    logits: Tensor,
    uniform: Tensor,
    temperature: float,
    top_p: float = 1.0,
    top_k: int | None = None,
    *,
    record: bool = False,
) -> Drawn:
    """Return tokens drawn from logits [n, V].

    With ``top_p`` below 1, or ``top_k``, they come from the tokens that :func:`.support.truncated` leaves, and
    log-probability and entropy are those of the distribution over these. ``record`` says which they are.
    """
    scaled = logits / temperature
    logp = scaled.log_softmax(-1)
    p, support = logp.exp(), None
    if top_p == 1 and top_k is None:
        drawn = p
        entropy = -(p * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(-1)
    else:
        drawn = truncated(p, top_p, top_k)
        logp, entropy = restricted(scaled, drawn == 0)
        if record:
            kept = drawn > 0
            support = Support(kept.nonzero()[:, 1].int(), kept.sum(-1))
    cumulative = drawn.cumsum(-1, dtype=torch.float64)
    threshold = uniform[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, threshold, right=True).squeeze(1).clamp_max(logits.shape[1] - 1)
    return Drawn(token, logp.gather(1, token[:, None]).squeeze(1), entropy, support)
