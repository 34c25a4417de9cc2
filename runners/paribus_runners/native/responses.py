"""Sampled responses: the record from which everything later is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paribus_runners.native.support import Support, stretches


@dataclass(frozen=True)
class Responses:
    """N responses on the CPU, their T tokens end to end.

    Attributes:
        ids: [T] tokens, the end marks included.
        logp: [T] log-probability of each token at the sampling temperature, as the sampler computed it, nats.
        entropy: [T] entropy of the distribution that was sampled from, nats; ``None`` if the sampler gives none.
        length: [N] tokens.
        truncated: [N] whether the length limit ended the response.
        support: what each token was chosen from; ``None``: the whole vocabulary.
    """

    ids: Tensor
    logp: Tensor
    entropy: Tensor | None
    length: Tensor
    truncated: Tensor
    support: Support | None = None

    def __len__(self) -> int:
        return len(self.length)

    @property
    def first(self) -> Tensor:
        """[N] place of the first token of each response."""
        return self.length.cumsum(0) - self.length

    @property
    def row(self) -> Tensor:
        """[T] index of the response of each token."""
        return torch.arange(len(self)).repeat_interleave(self.length)

    @property
    def mask(self) -> Tensor:
        """[N, longest] True on tokens, where responses stand one below the other."""
        return self._mask(int(self.length.max()))

    def _mask(self, width: int) -> Tensor:
        return torch.arange(width) < self.length[:, None]

    def padded(self, flat: Tensor, width: int | None = None) -> Tensor:
        """Return [N, width] of the values ``flat`` [T], by default as wide as the longest; 0 past the ends."""
        mask = self.mask if width is None else self._mask(width)
        return flat.new_zeros(mask.shape).masked_scatter(mask, flat)

    def places(self, rows: Tensor) -> Tensor:
        """Return the places of the tokens of the responses ``rows``, a mask or indices, in their order."""
        return stretches(self.length, rows)

    def tokens(self) -> list[list[int]]:
        """Return the tokens of each response."""
        ids, ends = self.ids.tolist(), self.length.cumsum(0).tolist()
        return [ids[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    def select(self, rows: Tensor) -> Responses:
        """Return the responses ``rows``, a mask or indices."""
        at = self.places(rows)
        entropy = None if self.entropy is None else self.entropy[at]
        support = None if self.support is None else self.support.select(at)
        return Responses(self.ids[at], self.logp[at], entropy, self.length[rows], self.truncated[rows], support)

    @staticmethod
    def concat(parts: Sequence[Responses]) -> Responses:
        """Return the responses of all parts in order; entropies and supports only if all parts have them."""
        names = ("ids", "logp", "length", "truncated")
        values: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in names}
        entropies = [p.entropy for p in parts if p.entropy is not None]
        full = [p for p in parts if len(p)]
        supports = [p.support for p in full if p.support is not None]
        return Responses(
            **values,
            entropy=torch.cat(entropies) if len(entropies) == len(parts) else None,
            support=Support.join(supports) if supports and len(supports) == len(full) else None,
        )
