"""Sampled responses: the record from which everything later is computed.

The tokens of a response are those that the model wrote. What an environment wrote between its turns (:class:`Given`) is
kept apart: a forward pass reads it, and nothing else knows of it, so that no ratio, mean or length can count it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from paribus_runners.native.experts import Experts
from paribus_runners.native.support import Support, stretches


class Whole(list[int]):
    """All tokens of a response as the model reads them, with those that an environment wrote.

    As with :class:`paribus_runners.tasks.Rendered`, the type says what the tokens are.

    Attributes:
        written: places of the tokens that the model wrote, ascending; the last token is one of them.
    """

    __slots__ = ("written",)

    def __init__(self, tokens: Iterable[int], written: Sequence[int]) -> None:
        super().__init__(tokens)
        self.written = tuple(written)


def written(tokens: Sequence[int]) -> Sequence[int]:
    """Return the places of the tokens of a response that the model wrote: all, unless an environment wrote, too."""
    return tokens.written if isinstance(tokens, Whole) else range(len(tokens))


@dataclass(frozen=True)
class Given:
    """What an environment wrote into N responses, its S tokens end to end. None stands behind the model's last token.

    Attributes:
        ids: [S] tokens.
        at: [S] how many tokens of its response the model had written before each.
        size: [N] how many of them each response has.
        answers: [N] answers that each response got; an empty one counts.
        failed: [N] whether the response ended because a call of the environment failed.
    """

    ids: Tensor
    at: Tensor
    size: Tensor
    answers: Tensor
    failed: Tensor

    def select(self, rows: Tensor) -> Given:
        """Return what stands in the responses ``rows``, a mask or indices."""
        at = stretches(self.size, rows)
        return Given(self.ids[at], self.at[at], self.size[rows], self.answers[rows], self.failed[rows])

    @staticmethod
    def concat(parts: Sequence[Given]) -> Given:
        """Return what stands in the responses of all parts in order."""
        return Given(**{x.name: torch.cat([getattr(p, x.name) for p in parts]) for x in fields(Given)})


@dataclass(frozen=True)
class Responses:
    """N responses on the CPU, their T tokens end to end.

    Attributes:
        ids: [T] tokens, the end marks included.
        logp: [T] log-probability of each token at the sampling temperature, as the sampler computed it, nats.
        entropy: [T] entropy of the distribution that was sampled from, nats; ``None`` if the sampler gives none.
        length: [N] tokens.
        truncated: [N] whether a limit ended the response.
        support: what each token was chosen from; ``None``: the whole vocabulary.
        given: what an environment wrote into them; ``None`` without one.
        experts: which experts their tokens went to, as they are to be replayed; ``None``: routers choose.
    """

    ids: Tensor
    logp: Tensor
    entropy: Tensor | None
    length: Tensor
    truncated: Tensor
    support: Support | None = None
    given: Given | None = None
    experts: Experts | None = None

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
        """Return the tokens of each response as a model reads them: :class:`Whole` where an environment wrote, too."""
        own = _rows(self.ids, self.length)
        if self.given is None:
            return own
        inserted, at = _rows(self.given.ids, self.given.size), _rows(self.given.at, self.given.size)
        return [_whole(*row) if row[1] else row[0] for row in zip(own, inserted, at, strict=True)]

    @property
    def read(self) -> Tensor:
        """[N] tokens that a model reads of each response: its own, and those that an environment wrote."""
        return self.length if self.given is None else self.length + self.given.size

    def select(self, rows: Tensor) -> Responses:
        """Return the responses ``rows``, a mask or indices."""
        at = self.places(rows)
        entropy = None if self.entropy is None else self.entropy[at]
        support = None if self.support is None else self.support.select(at)
        given = None if self.given is None else self.given.select(rows)
        experts = None if self.experts is None else self.experts.select(rows)
        return Responses(
            self.ids[at], self.logp[at], entropy, self.length[rows], self.truncated[rows], support, given, experts
        )

    @staticmethod
    def concat(parts: Sequence[Responses]) -> Responses:
        """Return the responses of all parts in order; entropies, supports and experts only if all parts have them."""
        names = ("ids", "logp", "length", "truncated")
        values: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in names}
        entropies = [p.entropy for p in parts if p.entropy is not None]
        full = [p for p in parts if len(p)]
        supports = [p.support for p in full if p.support is not None]
        given = [p.given for p in parts if p.given is not None]
        experts = [p.experts for p in full if p.experts is not None]
        return Responses(
            **values,
            entropy=torch.cat(entropies) if len(entropies) == len(parts) else None,
            support=Support.join(supports) if supports and len(supports) == len(full) else None,
            given=Given.concat(given) if given else None,
            experts=Experts.concat(experts) if experts and len(experts) == len(full) else None,
        )


def _rows(values: Tensor, length: Tensor) -> list[list[int]]:
    flat, ends = values.tolist(), length.cumsum(0).tolist()
    return [flat[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _whole(own: list[int], given: list[int], at: list[int]) -> Whole:
    """Return a response with each given token behind the ``at`` first ones of its own."""
    tokens: list[int] = []
    places: list[int] = []
    waiting = deque(zip(at, given, strict=True))
    for count, token in enumerate(own):
        while waiting and waiting[0][0] == count:
            tokens.append(waiting.popleft()[1])
        places.append(len(tokens))
        tokens.append(token)
    return Whole(tokens, places)
