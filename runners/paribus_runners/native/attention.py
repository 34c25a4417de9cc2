"""Attention without padding: responses of a group share their prompt and stand end to end in one row.

The functions here are registered with Transformers as the attention implementation ``paribus``. All other parts of a
model work on tokens one by one, so they never see padding; attention gathers the tokens of each sequence and scatters
them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paribus.errors import RunnerError
from paribus_runners.native import panels
from paribus_runners.native.experts import Choice

NAME = "paribus"
GROWTH = 4
"""Tokens by which the room of the sequences in a cache grows at least, on a CPU."""


def _kernel() -> Any:
    """Return PyTorch's attention for sequences of any length; ``None`` in versions without it, or without windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn as found
    except ImportError:
        return None
    return found if {"window_size", "enable_gqa"} <= signature(found).parameters.keys() else None


varlen_attn = _kernel()


class Layout(Protocol):
    """How the tokens of a forward pass attend to each other, and which experts they go to."""

    @property
    def choice(self) -> Choice | None:
        """Which experts of a mixture the tokens go to, and what notes it; ``None``: the routers choose."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None) -> Tensor:
        """Return the attention output, shaped as ``q`` with heads and tokens swapped: [1, T, heads, size].

        With a ``window``, a token sees the last so many tokens, itself among them.
        """


@dataclass(frozen=True)
class Packing:
    """Sequences end to end in one row; those of a group begin with the same prompt tokens.

    The row has each prompt once, then the responses to it. Each of these is a *segment* of the row; the sequences are
    the responses behind their prompts, and prompts without a response.

    Attributes:
        prompt: [S] place in the row of the first token of the prompt of each segment.
        before: [S] tokens of this prompt where the segment is a response; 0 where it is the prompt.
        first: [S] place of the first token of the segment.
        size: [S] tokens of the segment.
        device: where the row is computed.
        keys: keys and values by layer, each [T, heads, size]; None if they are not kept.
        choice: which experts the tokens go to; ``None``: the routers choose.
    """

    prompt: Tensor
    before: Tensor
    first: Tensor
    size: Tensor
    device: torch.device
    keys: list[tuple[Tensor, Tensor]] | None = field(default=None, compare=False)
    choice: Choice | None = field(default=None, compare=False)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None) -> Tensor:
        """Return causal attention inside each sequence."""
        kind = q.device.type
        if torch.is_autocast_enabled(kind):  # before keys are kept: a rotation leaves float32, and attention casts it
            q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
        if self.keys is not None:
            self.keys.append((k[0].transpose(0, 1), v[0].transpose(0, 1)))
        window = None if window is None or window >= self.width else window
        if _in_small_products(q) and window is None:
            return panels.attend(q, k, v, self._panels(q.shape[1], k.shape[1]), scale)
        if _is_ragged(q):
            return self._ragged.attend(q, k, v, scale, window)
        shape = (len(self.gather) // self.width, self.width, -1, q.shape[-1])
        qs, ks, vs = (F.embedding(self.gather, _flat(x)).view(shape).transpose(1, 2) for x in (q, k, v))
        mask = None if window is None else _band(self.width, window).to(q.device)
        out = F.scaled_dot_product_attention(
            qs, ks, vs, mask, is_causal=mask is None, scale=scale, enable_gqa=_grouped(q, k)
        )
        out = out.transpose(1, 2).reshape(len(self.gather), -1)
        return F.embedding(self.scatter, out).view(1, len(self.scatter), -1, q.shape[-1])

    @cached_property
    def width(self) -> int:
        """Tokens of the longest sequence."""
        return int((self.before + self.size).max())

    @cached_property
    def positions(self) -> Tensor:
        """[T] position of each token in its sequence."""
        return (self.before.repeat_interleave(self.size) + self._inside).to(self.device)

    @cached_property
    def gather(self) -> Tensor:
        """[sequences * width] place in the row of each token of each sequence; repeats past the end."""
        return self._tokens(self._ends.nonzero().squeeze(1), self.width).flatten().to(self.device)

    @cached_property
    def scatter(self) -> Tensor:
        """[T] where in the gathered sequences each token of the row is computed: a prompt in the first of its group."""
        sequence = self._ends.cumsum(0) - self._ends.long()
        row = sequence.repeat_interleave(self.size).to(self.device)
        return row * self.width + self.positions

    @cached_property
    def _ragged(self) -> Ragged:
        there = self.size > 0
        prompt, before, first, size = (x[there] for x in (self.prompt, self.before, self.first, self.size))
        seen = before + size
        column = torch.arange(int(seen.sum())) - (seen.cumsum(0) - seen).repeat_interleave(seen)
        prompt, before, first = (x.repeat_interleave(seen) for x in (prompt, before, first))
        places = torch.where(column < before, prompt + column, first + column - before)
        queries, keys = (F.pad(x.cumsum(0), (1, 0)).int().to(self.device) for x in (size, seen))
        return Ragged(places.to(self.device), queries, keys, int(size.max()), self.width)

    @property
    def _inside(self) -> Tensor:
        """[T] place of each token in its segment."""
        return torch.arange(int(self.size.sum())) - self.first.repeat_interleave(self.size)

    @property
    def _ends(self) -> Tensor:
        """[S] whether a sequence ends with the segment."""
        alone = torch.ones_like(self.before, dtype=torch.bool)
        alone[:-1] = self.before[1:] == 0
        return (self.before > 0) | alone

    def _tokens(self, segments: Tensor, width: int) -> Tensor:
        """Return [n, width] the place of each token of the sequences up to some segments; repeats past the end."""
        column, before = torch.arange(width), self.before[segments, None]
        own = self.first[segments, None] + torch.minimum(column - before, self.size[segments, None] - 1)
        return torch.where(column < before, self.prompt[segments, None] + column, own)

    @cached_property
    def _tables(self) -> list[panels.Table]:
        """All segments in tables of those that are about as long; prompts apart from responses."""
        ends, found = self.before + self.size, list[panels.Table]()
        for kind in (self.before == 0, self.before > 0):
            left = (kind & (self.size > 0)).nonzero().squeeze(1)
            left = left[ends[left].argsort(descending=True, stable=True)]
            while len(left):
                longest = int(ends[left[0]])
                here, left = left.tensor_split([int((2 * ends[left] > longest).sum())])
                found.append(panels.Table(self._tokens(here, longest), self.before[here], ends[here]))
        return found

    def _panels(self, heads: int, key_heads: int) -> panels.Panels:
        """Return the panels of the row; all layers of a model share them."""
        if (heads, key_heads) not in self._made:
            self._made[heads, key_heads] = panels.Panels.of(self._tables, heads, key_heads)
        return self._made[heads, key_heads]

    @cached_property
    def _made(self) -> dict[tuple[int, int], panels.Panels]:
        return {}


class Ragged(NamedTuple):
    """The segments of a row for a kernel that takes sequences of any length: the last queries of each one's keys.

    Attributes:
        places: [K] place in the row of each key, segment by segment, those of its prompt first.
        queries: [S + 1] where the queries of each segment begin in the row, and its end; int32.
        keys: the same of its keys.
        most: queries of the longest segment.
        width: keys of the longest.
    """

    places: Tensor
    queries: Tensor
    keys: Tensor
    most: int
    width: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """Return causal attention inside each sequence; a prompt is computed once, and nothing is padded."""
        ks, vs = (F.embedding(self.places, _flat(x)).view(len(self.places), -1, x.shape[-1]) for x in (k, v))
        rows = q[0].transpose(0, 1).contiguous()
        before = -1 if window is None else window - 1
        out: Tensor = varlen_attn(
            rows, ks, vs, self.queries, self.keys, self.most, self.width,
            scale=scale, window_size=(before, 0), enable_gqa=_grouped(q, k),
        )  # fmt: skip
        return out[None]


class KeyCache:
    """Keys and values of sequences that grow by one token each pass; short prompts are masked on the left.

    On a CPU a sequence has room for a few more tokens only, and all move when it is full: products that read a sequence
    after the other are several times as fast where they stand close together.

    Attributes:
        choice: which experts the newest tokens go to; of a pass.
    """

    choice: Choice | None = None

    def __init__(self, prefill: Packing, lengths: Sequence[int], copies: int, room: int) -> None:
        assert prefill.keys is not None
        device = prefill.device
        self.width = max(lengths)
        ends = torch.tensor(lengths, device=device).cumsum(0)
        columns = torch.arange(self.width, device=device)
        starts = ends - torch.tensor(lengths, device=device)
        places = ends[:, None] - self.width + columns
        seen = places >= starts[:, None]
        self._mask = None if bool(seen.all()) else seen.repeat_interleave(copies, 0)
        rows = places.clamp_min(0).repeat_interleave(copies, 0)
        self._most = self.width + room
        self._room = self._roomier(self.width) if device.type == "cpu" else self._most
        every = [x for pair in prefill.keys for x in pair]
        free = 1 if self._room < self._most else 0
        memory = len(rows) * max(x[0].numel() for x in every) * self._most
        self._memory = deque(every[0].new_empty(memory) for _ in range(len(every) + free))
        self._keys = [
            (self._filled(2 * i, k, rows), self._filled(2 * i + 1, v, rows)) for i, (k, v) in enumerate(prefill.keys)
        ]

    def _filled(self, i: int, flat: Tensor, rows: Tensor) -> Tensor:
        """Return [sequences, heads, room, size] in a piece of memory, with tokens [T, heads, size] up to the width."""
        heads, size = flat.shape[1:]
        tokens = F.embedding(rows, flat.flatten(1)).view(len(rows), self.width, heads, size)
        return self._placed(i, tokens.transpose(1, 2))

    def _placed(self, i: int, tokens: Tensor) -> Tensor:
        """Return tokens [sequences, heads, filled, size] in a piece of memory where they have room for more."""
        n, heads, filled, size = tokens.shape
        out = self._memory[i][: n * heads * self._room * size].view(n, heads, self._room, size)
        out[:, :, :filled] = tokens
        return out

    def _roomier(self, width: int) -> int:
        """Return how many tokens a sequence has room for after a move."""
        return min(width + max(GROWTH, width // 16), self._most)

    def keep(self, rows: Tensor) -> Tensor:
        """Drop all sequences but ``rows``, ascending; return these in the order in which they stand from now on.

        The last ones move to where others are dropped. All others stay where they are: copies of a long cache would
        take more time than what is computed with it.
        """
        order = torch.arange(len(rows), device=rows.device)
        stay = rows[rows < len(rows)]
        free = torch.ones_like(order, dtype=torch.bool).index_fill_(0, stay, False).nonzero().squeeze(1)
        moved = rows[len(stay) :]
        order[free] = moved
        for filled in (x[:, :, : self.width] for pair in self._keys for x in pair):
            filled.index_copy_(0, free, filled.index_select(0, moved))
        self._keys = [(k[: len(rows)], v[: len(rows)]) for k, v in self._keys]
        self._mask = None if self._mask is None else self._mask.index_select(0, order)
        return order

    def advance(self) -> None:
        """Make room for one more token of each sequence; call before each pass."""
        if self.width == self._room:
            self._room = self._roomier(self.width)
            self._memory.rotate(1)  # the last piece is free: each tensor moves to where the one before it was
            self._keys = [(self._placed(2 * i, k), self._placed(2 * i + 1, v)) for i, (k, v) in enumerate(self._keys)]
        self.width += 1
        if self._mask is not None:
            self._mask = F.pad(self._mask, (0, 1), value=True)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None) -> Tensor:
        """Return the attention of the newest token of each sequence over all of its tokens, or those of the window."""
        keys, values = self._keys[layer]
        first = 0 if window is None else max(0, self.width - window)
        keys[:, :, self.width - 1] = k[0].transpose(0, 1)
        values[:, :, self.width - 1] = v[0].transpose(0, 1)
        seen = keys[:, :, first : self.width], values[:, :, first : self.width]
        mask = None if self._mask is None else self._mask[:, None, None, first:]
        q = q[0].transpose(0, 1).unsqueeze(2)
        if _in_small_products(q):
            out = _attend_one(q, *seen, mask, scale)
        else:
            out = F.scaled_dot_product_attention(q, *seen, mask, scale=scale, enable_gqa=_grouped(q, seen[0]))
        return out.view(1, len(keys), -1, q.shape[-1])


def _attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the attention [n, heads, 1, size] of one query each, as two products.

    On a CPU this takes two thirds of the time of the fused kernel, which is made for many queries.
    """
    keys, values = k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.bmm((q * scale).reshape(len(keys), -1, q.shape[-1]), keys.transpose(1, 2))
    if mask is not None:
        scores.view(*k.shape[:2], -1, k.shape[2]).masked_fill_(~mask, -torch.inf)
    return scores.softmax(-1).bmm(values).view_as(q)


def pack(
    prompts: Sequence[int], groups: Sequence[Sequence[int]], device: torch.device, keep_keys: bool = False
) -> Packing:
    """Lay out sequences end to end: each prompt once, then the responses of its group.

    Args:
        prompts: tokens of each prompt.
        groups: tokens of each response, by prompt; a group without responses is its prompt alone.
        device: where the index tensors go.
        keep_keys: keep keys and values of each layer, for a :class:`KeyCache`.
    """
    of_prompt: list[int] = []
    before: list[int] = []
    size: list[int] = []
    place = 0
    for prompt, group in zip(prompts, groups, strict=True):
        of_prompt += [place] * (1 + len(group))
        before += [0, *[prompt] * len(group)]
        size += [prompt, *group]
        place += prompt + sum(group)
    sizes = torch.tensor(size)
    return Packing(
        torch.tensor(of_prompt),
        torch.tensor(before),
        sizes.cumsum(0) - sizes,
        sizes,
        device,
        [] if keep_keys else None,
    )


def _flat(x: Tensor) -> Tensor:
    """Return [1, heads, T, size] as [T, heads * size]."""
    return x[0].transpose(0, 1).reshape(x.shape[2], -1)


def _grouped(q: Tensor, k: Tensor) -> bool:
    return q.shape[1] != k.shape[1]


def _band(width: int, window: int) -> Tensor:
    """Return [width, width] which tokens (columns) each one sees of the last ones: so many, and no later one."""
    return torch.ones(width, width, dtype=torch.bool).tril().triu(1 - window)


def _is_ragged(q: Tensor) -> bool:
    """Return whether PyTorch's kernel for sequences of any length computes these queries."""
    if varlen_attn is None or q.device.type != "cuda" or q.dtype not in (torch.bfloat16, torch.float16):
        return False
    fits = q.shape[-1] <= 256 and q.shape[-1] % 8 == 0
    return fits and torch.cuda.get_device_capability(q.device) >= (8, 0)


def _in_small_products(q: Tensor) -> bool:
    """Return whether batches of small matrix products are faster here than a fused kernel."""
    return q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **extra: Any
) -> tuple[Tensor, None]:
    """Return the attention output [1, T, heads, size] of a layer, as Transformers asks for it.

    Raises:
        RunnerError: the layer asks for what is not computed here, or hands no layout on.
    """
    layout = extra.get("layout")
    if layout is None:
        raise RunnerError(f"{type(module).__name__} does not hand its arguments on to attention: it cannot be trained")
    refused = [k for k in ("softcap", "s_aux") if extra.get(k) is not None]
    if refused:
        raise RunnerError(f"{type(module).__name__}: attention with {', '.join(refused)} cannot be trained here")
    scale = extra.get("scaling") or query.shape[-1] ** -0.5
    handed = "sliding_window" in extra  # some models do not hand it on; others do so in some of the layers that have it
    window = extra["sliding_window"] if handed else getattr(module, "sliding_window", None)
    return layout.attend(module.layer_idx, query, key, value, scale, window), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
