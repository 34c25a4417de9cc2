"""Attention without padding: responses of a group share their prompt and stand end to end in one row.

The functions here are registered with Transformers as the attention implementation ``paribus``. All other parts of a
model work on tokens one by one, so they never see padding; attention gathers the tokens of each sequence and scatters
them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paribus.errors import RunnerError
from paribus_runners.native.experts import Choice

NAME = "paribus"


class Layout(Protocol):
    """How the tokens of a forward pass attend to each other, and which experts they go to."""

    @property
    def choice(self) -> Choice | None:
        """Which experts of a mixture the tokens go to, and what notes it; ``None``: the routers choose."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return the attention output, shaped as ``q`` with heads and tokens swapped: [1, T, heads, size]."""


@dataclass(frozen=True)
class Packing:
    """Sequences end to end in one row; those of a group begin with the same prompt tokens.

    Attributes:
        gather: [sequences * width] place in the row of each token of each sequence; repeats past the end.
        scatter: [T] where in the gathered sequences each token of the row is computed.
        sequences: number of sequences.
        width: tokens of the longest sequence.
        positions: [T] position of each token in its sequence.
        keys: keys and values by layer, each [T, heads, size]; None if they are not kept.
        choice: which experts the tokens go to; ``None``: the routers choose.
    """

    gather: Tensor
    scatter: Tensor
    sequences: int
    width: int
    positions: Tensor
    keys: list[tuple[Tensor, Tensor]] | None = field(default=None, compare=False)
    choice: Choice | None = field(default=None, compare=False)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return causal attention inside each sequence."""
        flat = [_flat(x) for x in (q, k, v)]
        if self.keys is not None:
            self.keys.append((k[0].transpose(0, 1), v[0].transpose(0, 1)))
        size = q.shape[-1]
        shape = (self.sequences, self.width, -1, size)
        qs, ks, vs = (F.embedding(self.gather, x).view(shape).transpose(1, 2) for x in flat)
        out = F.scaled_dot_product_attention(qs, ks, vs, is_causal=True, scale=scale, enable_gqa=_grouped(q, k))
        out = out.transpose(1, 2).reshape(self.sequences * self.width, -1)
        return F.embedding(self.scatter, out).view(1, len(self.scatter), -1, size)


class KeyCache:
    """Keys and values of sequences that grow by one token each pass; short prompts are masked on the left.

    Attributes:
        choice: which experts the newest tokens go to; of a pass.
    """

    choice: Choice | None = None

    def __init__(self, prefill: Packing, lengths: Sequence[int], copies: int, room: int) -> None:
        assert prefill.keys is not None
        device = prefill.gather.device
        self.width = max(lengths)
        ends = torch.tensor(lengths, device=device).cumsum(0)
        columns = torch.arange(self.width, device=device)
        starts = ends - torch.tensor(lengths, device=device)
        places = ends[:, None] - self.width + columns
        seen = places >= starts[:, None]
        self._mask = None if bool(seen.all()) else seen.repeat_interleave(copies, 0)
        rows = places.clamp_min(0).repeat_interleave(copies, 0)
        self._keys = [(self._room(k, rows, room), self._room(v, rows, room)) for k, v in prefill.keys]

    def _room(self, flat: Tensor, rows: Tensor, room: int) -> Tensor:
        """Return [sequences, heads, width + room, size], filled up to the width."""
        heads, size = flat.shape[1:]
        out = flat.new_empty(len(rows), heads, self.width + room, size)
        filled = F.embedding(rows, flat.flatten(1)).view(len(rows), self.width, heads, size)
        out[:, :, : self.width] = filled.transpose(1, 2)
        return out

    def keep(self, rows: Tensor) -> None:
        """Drop all sequences but ``rows``."""
        self._keys = [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self._keys]
        self._mask = None if self._mask is None else self._mask.index_select(0, rows)

    def advance(self) -> None:
        """Make room for one more token of each sequence; call before each pass."""
        self.width += 1
        if self._mask is not None:
            self._mask = F.pad(self._mask, (0, 1), value=True)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return the attention of the newest token of each sequence over all of its tokens."""
        keys, values = self._keys[layer]
        keys[:, :, self.width - 1] = k[0].transpose(0, 1)
        values[:, :, self.width - 1] = v[0].transpose(0, 1)
        seen = keys[:, :, : self.width], values[:, :, : self.width]
        mask = None if self._mask is None else self._mask[:, None, None]
        q = q[0].transpose(0, 1).unsqueeze(2)
        if q.device.type == "cpu" and q.dtype == torch.float32:
            out = _attend_one(q, *seen, mask, scale)
        else:
            out = F.scaled_dot_product_attention(q, *seen, mask, scale=scale, enable_gqa=_grouped(q, seen[0]))
        return out.view(1, len(keys), -1, q.shape[-1])


def _attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the attention [n, heads, 1, size] of one query each, as two products.

    On a CPU this takes two thirds of the time of the fused kernel, which is made for many queries.
    """
    grouped = q.view(len(q), k.shape[1], -1, q.shape[-1])
    scores = (grouped * scale) @ k.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).matmul(v).view_as(q)


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
    width = max(p + max(g, default=0) for p, g in zip(prompts, groups, strict=True))
    gather: list[int] = []
    scatter: list[int] = []
    positions: list[int] = []
    row = place = 0
    for prompt, group in zip(prompts, groups, strict=True):
        start = place
        scatter += range(row * width, row * width + prompt)
        positions += range(prompt)
        place += prompt
        for response in group or (0,):
            line = [*range(start, start + prompt), *range(place, place + response)]
            gather += line + line[-1:] * (width - len(line))
            scatter += range(row * width + prompt, row * width + prompt + response)
            positions += range(prompt, prompt + response)
            place += response
            row += 1
    index = [torch.tensor(x, device=device) for x in (gather, scatter, positions)]
    return Packing(index[0], index[1], row, width, index[2], [] if keep_keys else None)


def _flat(x: Tensor) -> Tensor:
    """Return [1, heads, T, size] as [T, heads * size]."""
    return x[0].transpose(0, 1).reshape(x.shape[2], -1)


def _grouped(q: Tensor, k: Tensor) -> bool:
    return q.shape[1] != k.shape[1]


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **extra: Any
) -> tuple[Tensor, None]:
    layout = extra.get("layout")
    if layout is None:
        raise RunnerError(f"{type(module).__name__} does not hand its arguments on to attention: it cannot be trained")
    refused = [k for k in ("softcap", "s_aux") if extra.get(k) is not None]
    window = extra.get("sliding_window") or getattr(module, "sliding_window", None)  # some models do not hand it on
    if window is not None and layout.width > window:
        refused.append(f"sliding_window={window} at {layout.width} tokens")
    if refused:
        raise RunnerError(f"{type(module).__name__}: attention with {', '.join(refused)} cannot be trained here")
    scale = extra.get("scaling") or query.shape[-1] ** -0.5
    return layout.attend(module.layer_idx, query, key, value, scale), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
