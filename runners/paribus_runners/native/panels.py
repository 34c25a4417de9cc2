"""Causal attention of sequences of all lengths on a CPU, in panels of a few queries.

A panel holds the queries at some neighbouring positions of sequences that are about as long, and all keys up to the
last of these positions. So the work follows the lengths and the causal mask, half a square a sequence, where a padded
kernel computes squares of the longest. A panel is a batch of small matrix products, which a CPU is fast at.

The backward pass computes the probabilities again. Autograd keeps queries, keys, values and the output, once a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SIZE, MOST = 32, 8
"""Fewest positions of a panel, and most panels of sequences as long: in small panels products are small and keys are
read often, in large ones the mask takes away more of the products."""
SCORES = 2**20
"""Scores that exist at once, so that they stay in the cache of a CPU."""


class Block(NamedTuple):
    """What is computed at once: queries at the same positions, of some heads of some sequences.

    Attributes:
        queries: which of all queries these are.
        stack: which of all keys belong to the sequences of the stack.
        width: keys of each sequence of the stack.
        heads: which heads of keys of the stack, sequence by sequence.
        first: position of the first query; ``end``: behind the last one, and keys that are seen.
    """

    queries: slice
    stack: slice
    width: int
    heads: slice
    first: int
    end: int

    def batch(self, of_queries: Tensor) -> Tensor:
        """Return the rows of this block among those of all queries, a batch of heads of keys."""
        return of_queries[self.queries].view(self.heads.stop - self.heads.start, -1, of_queries.shape[1])

    def seen(self, of_keys: Tensor) -> Tensor:
        """Return the rows that this block sees among those of all keys, a batch of heads of keys."""
        return of_keys[self.stack].view(-1, self.width, of_keys.shape[1])[self.heads, : self.end]


@dataclass(frozen=True)
class Panels:
    """All panels of a row of T tokens.

    The *place* of a head of a token is token * heads + head.

    Attributes:
        queries: [R] place of each query of each panel, sequence by sequence and head by head.
        own: [R, 1] 1 where the row takes the output of this query, 0 where not: it pads the panel, or is of a prompt.
        found: [T * heads] which of the R queries has the output of a place.
        keys: [S] place of each key, stack by stack, sequence by sequence and head by head.
        blocks: what is computed.
    """

    queries: Tensor
    own: Tensor
    found: Tensor
    keys: Tensor
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, tables: Sequence[Table], heads: int, key_heads: int) -> Panels:
        """Return the panels of some sequences, of which none is empty; each token is some sequence's own once."""
        queries, own, keys, blocks = list[Tensor](), list[Tensor](), list[Tensor](), list[Block]()
        of_queries, of_keys = torch.arange(heads)[:, None], torch.arange(key_heads)[:, None]
        done = known = 0
        for table in tables:
            size, width = table.tokens.shape
            stack = slice(known, known + size * key_heads * width)
            known = stack.stop
            keys.append((table.tokens[:, None] * key_heads + of_keys).flatten())
            positions = max(SIZE, math.ceil(width / MOST))
            for first in range(int(table.begin.min()), width, positions):
                end = min(first + positions, width)
                there = int((table.end > first).sum())
                at = torch.arange(first, end)
                mine = (at >= table.begin[:there, None]) & (at < table.end[:there, None])
                queries.append((table.tokens[:there, None, first:end] * heads + of_queries).flatten())
                own.append(mine[:, None].expand(-1, heads, -1).flatten())
                rows = heads // key_heads * (end - first)
                most = max(1, SCORES // (rows * end))
                for i in range(0, there * key_heads, most):
                    part = slice(i, min(i + most, there * key_heads))
                    found = slice(done, done + (part.stop - i) * rows)
                    blocks.append(Block(found, stack, width, part, first, end))
                    done = found.stop
        every, mine = torch.cat(queries), torch.cat(own)
        found_at = torch.empty(int(mine.sum()), dtype=torch.long)
        found_at[every[mine]] = mine.nonzero().squeeze(1)
        return cls(every, mine[:, None], found_at, torch.cat(keys), tuple(blocks))


class Table(NamedTuple):
    """Sequences about as long, the longest first.

    Attributes:
        tokens: [n, width] place in the row of each token; repeats past the end.
        begin: [n] position of the first token whose output the row takes from this sequence.
        end: [n] position behind the last token, descending.
    """

    tokens: Tensor
    begin: Tensor
    end: Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, panels: Panels, scale: float) -> Tensor:
    """Return the attention output [1, T, heads, size] of queries [1, heads, T, size], keys and values."""
    found: Tensor = _Attention.apply(q, k, v, panels, scale)  # type: ignore[no-untyped-call]
    return found


class _Attention(torch.autograd.Function):
    """With P the probabilities, O = P V and S the scores: dV = P' dO, dS = P (dO V' - dO O), dQ = dS K, dK = dS' Q."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, panels: Panels, scale: float) -> Tensor:
        queries, keys, values = _gathered(q, k, v, panels, scale)
        out, room = values.new_empty(len(queries), values.shape[1]), _room(panels, queries)
        for block in panels.blocks:
            p = _probabilities(block, queries, keys, room)
            torch.bmm(p, block.seen(values), out=block.batch(out))
        result = out.index_select(0, panels.found).view(1, q.shape[2], q.shape[1], -1)
        ctx.save_for_backward(q, k, v, result)
        ctx.panels, ctx.scale = panels, scale
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, result = ctx.saved_tensors
        panels, scale = ctx.panels, ctx.scale
        queries, keys, values = _gathered(q, k, v, panels, scale)
        wanted = g.reshape(-1, g.shape[-1]).index_select(0, panels.queries).mul_(panels.own)
        inner = (g * result).sum(-1).view(-1, 1).index_select(0, panels.queries).mul_(panels.own)
        dq, dk, dv = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        room, other = _room(panels, queries), _room(panels, queries)
        for block in panels.blocks:
            p = _probabilities(block, queries, keys, room)
            block.seen(dv).add_(torch.bmm(p.transpose(1, 2), block.batch(wanted)))
            ds = other[: p.numel()].view_as(p)
            torch.bmm(block.batch(wanted), block.seen(values).transpose(1, 2), out=ds)
            ds.sub_(block.batch(inner)).mul_(p)
            torch.bmm(ds, block.seen(keys), out=block.batch(dq))
            block.seen(dk).add_(torch.bmm(ds.transpose(1, 2), block.batch(queries)))
        of_q = dq.index_select(0, panels.found).mul_(scale).view(1, q.shape[2], q.shape[1], -1).transpose(1, 2)
        return of_q, _summed(dk, panels, k), _summed(dv, panels, v), None, None


def _room(panels: Panels, like: Tensor) -> Tensor:
    """Return memory for the scores of a block."""
    return like.new_empty(max((b.queries.stop - b.queries.start) * b.end for b in panels.blocks))


def _probabilities(block: Block, queries: Tensor, keys: Tensor, room: Tensor) -> Tensor:
    """Return what each query of a block gives to each key [heads, queries, keys], in ``room``."""
    mine, seen = block.batch(queries), block.seen(keys)
    shape = (*mine.shape[:2], block.end)
    scores = room[: math.prod(shape)].view(shape)
    torch.bmm(mine, seen.transpose(1, 2), out=scores)
    size = block.end - block.first
    scores.view(len(scores), -1, size, block.end)[..., block.first :].add_(_later(size))  # 7 times as fast as a fill
    return torch.softmax(scores, -1, out=scores)


@cache
def _later(size: int) -> Tensor:
    """Return [size, size] for each of so many tokens minus infinity at those that come after it, else 0."""
    return torch.full((size, size), -math.inf).triu(1)


def _gathered(q: Tensor, k: Tensor, v: Tensor, panels: Panels, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return all queries, scaled, keys and values, one row a place."""
    queries = _flat(q).index_select(0, panels.queries).mul_(scale)
    return queries, _flat(k).index_select(0, panels.keys), _flat(v).index_select(0, panels.keys)


def _flat(x: Tensor) -> Tensor:
    """Return [1, heads, T, size] as [T * heads, size]."""
    return x.transpose(1, 2).reshape(-1, x.shape[-1])


def _summed(gradient: Tensor, panels: Panels, of: Tensor) -> Tensor:
    """Return the gradient of keys or values, summed over the sequences that share a token, in their shape."""
    _, heads, tokens, size = of.shape
    total = gradient.new_zeros(tokens * heads, size).index_add_(0, panels.keys, gradient)
    return total.view(1, tokens, heads, size).transpose(1, 2)
