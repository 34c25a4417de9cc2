"""The tokens that sampling with top-k and top-p left to choose from, which the learner takes its probabilities over.

The sampler's probabilities are those of the truncated distribution, pi(y) / pi(S) with S the tokens that are left. A
learner with pi(y) in their place finds a ratio of pi(S) where nothing has changed (trl#6789). With the
sampler's S in both, ratio, KL and entropy are those of one distribution (DeepSeek-V3.2, arXiv 2512.02556, section 3.1,
"Keep Sampling Mask"). S stays as it was sampled: what a later policy would leave out is another set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Support:
    """For each of T tokens, which ones it was chosen from.

    Attributes:
        ids: [K] those tokens, place after place, each set in ascending order.
        size: [T] how many they are at each place.
    """

    ids: Tensor
    size: Tensor

    def select(self, places: Tensor) -> Support:
        """Return the sets at these places, indices or a mask [T], in their order."""
        return Support(self.ids[stretches(self.size, places)], self.size[places])

    def between(self, first: int, end: int) -> Support:
        """Return the sets of the places ``first`` to ``end``."""
        before, length = int(self.size[:first].sum()), int(self.size[first:end].sum())
        return Support(self.ids[before : before + length], self.size[first:end])

    def to(self, device: torch.device) -> Support:
        """Return the same on ``device``."""
        return Support(self.ids.to(device), self.size.to(device))

    @staticmethod
    def join(parts: Sequence[Support]) -> Support:
        """Return the sets of all parts, one part after the other."""
        return Support(torch.cat([p.ids for p in parts]), torch.cat([p.size for p in parts]))

    def outside(self, words: int) -> Tensor:
        """Return [T, words] True on the tokens that were left out."""
        out = torch.ones(len(self.size), words, dtype=torch.bool, device=self.size.device)
        rows = torch.arange(len(self.size), device=self.size.device).repeat_interleave(self.size)
        out[rows, self.ids.long()] = False
        return out


def stretches(length: Tensor, rows: Tensor) -> Tensor:
    """Return the places of what stands in the rows ``rows``, a mask or indices, of things ``length`` [N] end to end."""
    chosen, first = length[rows], (length.cumsum(0) - length)[rows]
    inner = torch.arange(int(chosen.sum()), device=length.device)
    return inner + (first - chosen.cumsum(0) + chosen).repeat_interleave(chosen)


def restricted(logits: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [n, V] without the tokens ``outside`` [n, V], nats, and the entropy [n].

    log pi_S(y) = z_y - log sum over S of exp z; tokens outside have -inf, and nothing in the entropy.
    """
    logp = logits.masked_fill(outside, -math.inf).log_softmax(-1)
    return logp, -(logp.exp() * logp.masked_fill(outside, 0.0)).sum(-1)


def truncated(p: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """Return probabilities [n, V] with 0 for the tokens that top-k and then top-p leave out; not renormalised.

    ``top_k`` keeps the k most likely tokens (Fan et al. 2018, arXiv 1805.04833, section 5.1), ``top_p`` of what is left
    the fewest that add up to this share of it (Holtzman et al. 2020, arXiv 1904.09751, section 3.1). Of equally likely
    tokens the first ones stay.
    """
    ordered, places = p.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        ordered = ordered * (torch.arange(p.shape[-1], device=p.device) < top_k)
    running = ordered.cumsum(-1, dtype=torch.float64)
    share = top_p if top_k is None else top_p * running[..., -1:]
    kept = ordered if top_p == 1 else ordered * (running - ordered < share)
    return torch.zeros_like(p).scatter(-1, places, kept)
