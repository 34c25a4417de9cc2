"""Sampled responses: the record from which everything later is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Responses:
    """N responses on the CPU, padded on the right with zeros.

    Attributes:
        ids: [N, M] tokens, the end mark included.
        logp: [N, M] log-probability of each token at the sampling temperature, nats.
        entropy: [N, M] entropy over the full vocabulary at the sampling temperature, nats.
        length: [N] tokens.
        truncated: [N] whether the length limit ended the response.
    """

    ids: Tensor
    logp: Tensor
    entropy: Tensor
    length: Tensor
    truncated: Tensor

    def __len__(self) -> int:
        return len(self.length)

    @property
    def mask(self) -> Tensor:
        """[N, M] True on generated tokens."""
        return torch.arange(self.ids.shape[1]) < self.length[:, None]

    def padded(self, flat: Tensor) -> Tensor:
        """Return [N, M] of the values ``flat`` [T] of all tokens, response after response; 0 past their ends."""
        return flat.new_zeros(self.ids.shape).masked_scatter(self.mask, flat)

    def tokens(self) -> list[list[int]]:
        """Return the tokens of each response."""
        lengths: list[int] = self.length.tolist()
        return [row[:n] for row, n in zip(self.ids.tolist(), lengths, strict=True)]

    def select(self, rows: Tensor) -> Responses:
        """Return the responses ``rows``."""
        return Responses(self.ids[rows], self.logp[rows], self.entropy[rows], self.length[rows], self.truncated[rows])

    @staticmethod
    def concat(parts: Sequence[Responses]) -> Responses:
        """Return the responses of all parts in order."""
        fields = ("ids", "logp", "entropy", "length", "truncated")
        return Responses(*(torch.cat([getattr(p, f) for p in parts]) for f in fields))
