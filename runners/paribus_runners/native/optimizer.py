"""AdamW on the weights of a network, of which each process of a run may step a share (ZeRO-1, arXiv 1910.02054).

All processes hold all weights and, in an update, all gradients. Moments are larger, with 8 bytes a number, and 4 more
take float32 copies (*masters*) of bfloat16 weights, in which most steps would vanish. With ``compute.sharding:
optimizer`` a process holds moments and masters of its share alone, steps it, and sends the others its new weights. With
``compute.sharding: weights`` it holds no more of weights and gradients, either (:mod:`.sharded_weights`). With
``compute.offload: [optimizer]`` moments and masters are in host memory, and the CPU steps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paribus.recipe.compute import Compute
from paribus.recipe.recipe import Optimizer as Settings
from paribus_runners.native.sharded_weights import ShardedWeights, first_of, own_part
from paribus_runners.native.wide_gradients import gradient_holder, widen
from paribus_runners.native.world import World

ALIGNED = 64
"""Numbers of a weight are dealt out in multiples of this many, so that a CPU's vector instructions round them alike."""


@dataclass(frozen=True)
class Piece:
    """A run of numbers of one weight: which weight, the first number, and the one behind the last."""

    weight: int
    first: int
    end: int


def deal(sizes: Sequence[int], processes: int) -> list[list[Piece]]:
    """Return which numbers of weights of some ``sizes`` each process steps: neighbours, about as many each."""
    total, begin, found = sum(sizes), 0, [list[Piece]() for _ in range(processes)]
    for index, size in enumerate(sizes):
        cuts = [min(max(total * r // processes - begin, 0), size) for r in range(processes + 1)]
        cuts = [cut if cut == size else cut - cut % ALIGNED for cut in cuts]
        for rank, (first, end) in enumerate(pairwise(cuts)):
            if first < end:
                found[rank].append(Piece(index, first, end))
        begin += size
    return found


class Adam:
    """AdamW on all weights of a network that are trained.

    Args:
        model: the network.
        settings: of the recipe.
        rate: the first learning rate.
        compute: what is dealt out, and what is in host memory.
        world: the processes that hold the same network.
        shared: the weights as these processes share them; ``None``: each holds all.

    Attributes:
        weights: those that are trained.
        sharded: whether other processes hold a part of its state.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        rate: float,
        compute: Compute | None = None,
        world: World | None = None,
        shared: ShardedWeights | None = None,
    ) -> None:
        compute, self._world, self._shared = compute or Compute(), world or World(), shared
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._names, self.weights = [*named], [*named.values()]
        for weight in self.weights:
            widen(weight)
        self._gradients = [gradient_holder(weight) for weight in self.weights]
        self._firsts = [first_of(weight) for weight in self.weights]
        self.sharded = compute.sharding != "none" and self._world.size > 1
        if shared is None:
            self._shares = deal([p.numel() for p in self.weights], self._world.size if self.sharded else 1)
            self._pieces = self._shares[self._world.rank if self.sharded else 0]
        else:
            self._shares = []
            ends = (first + own_part(w).numel() for first, w in zip(self._firsts, self.weights, strict=True))
            every = [Piece(i, first, end) for i, (first, end) in enumerate(zip(self._firsts, ends, strict=True))]
            self._pieces = [piece for piece in every if piece.first < piece.end]
        self._host = "optimizer" in compute.offload
        self._stepped = [self._master(piece) for piece in self._pieces]
        self._adam = torch.optim.AdamW(
            self._stepped or [torch.zeros(0)],  # more processes than numbers: AdamW wants one
            lr=rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @property
    def rate(self) -> float:
        """The learning rate."""
        found: float = self._adam.param_groups[0]["lr"]
        return found

    @rate.setter
    def rate(self, rate: float) -> None:
        self._adam.param_groups[0]["lr"] = rate

    @property
    def gradients(self) -> list[Tensor]:
        """The gradient of each weight as far as it is summed; 0 where there is none."""
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._gradients]

    def room(self) -> list[Tensor]:
        """Return memory as large as the moments that are not there yet."""
        return [torch.empty_like(x) for x in self._stepped if not self._adam.state.get(x) for _ in range(2)]

    def zero(self) -> None:
        """Free the gradients."""
        for holder in (*self.weights, *self._gradients):
            holder.grad = None

    def step(self, limit: float | None) -> float:
        """Sum the gradients of all processes, scale them down to the global norm ``limit``, and step.

        Returns:
            The norm of the sum before it was scaled.
        """
        if self._shared is None:
            self._world.sum_gradients(self._gradients)
            norm = float(torch.nn.utils.clip_grad_norm_(self._gradients, math.inf if limit is None else limit))
        else:
            norm = self._scale_shares(limit)
        for piece, stepped in zip(self._pieces, self._stepped, strict=True):
            gradient = self._gradients[piece.weight].grad
            if stepped is not self.weights[piece.weight] and gradient is not None:
                own = self._numbers(own_part(gradient), piece).view(stepped.shape)
                stepped.grad = own.to(stepped.device)
        self._adam.step()
        self._take_over()
        return norm

    def _scale_shares(self, limit: float | None) -> float:
        """Scale gradients of which each process has its share of the sum, and return the norm before."""
        shares = [own_part(p.grad) for p in self._gradients if p.grad is not None]
        square = sum(float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2 for x in shares)
        norm = math.sqrt(sum(self._world.gather(square)))
        if limit is not None and not norm <= limit:
            for x in shares:
                x.mul_(limit / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def _take_over(self) -> None:
        """Give the weights what was stepped for them, here and by the other processes."""
        for piece, stepped in zip(self._pieces, self._stepped, strict=True):
            if stepped is not self.weights[piece.weight]:
                stepped.grad = None
                if self._copied(piece):
                    self._view(piece).copy_(stepped.view(-1))
        for owner, pieces in enumerate(self._shares if self.sharded else ()):
            for piece in pieces:
                if self._gradients[piece.weight].grad is not None:
                    self._world.send(self._view(piece), owner)

    def state(self) -> dict[str, Tensor]:
        """Return moments and masters of this process's share.

        The keys are the weight's name and, behind slashes, what it is (``exp_avg``, ``exp_avg_sq``, ``step``,
        ``master``) and, for a part of a weight, its first number.
        """
        found = dict[str, Tensor]()
        for piece, stepped in zip(self._pieces, self._stepped, strict=True):
            values: dict[str, Any] = {**self._adam.state.get(stepped, {})}
            narrow = self._shared is not None and self._shared.narrow
            if values and (narrow or self.weights[piece.weight].dtype != stepped.dtype):
                values["master"] = stepped.detach()
            behind = "" if self._whole(piece) else f"/{piece.first}"
            found |= {f"{self._names[piece.weight]}/{k}{behind}": v.contiguous() for k, v in values.items()}
        return found

    @torch.no_grad()
    def load(self, parts: Iterable[Mapping[str, Tensor]]) -> None:
        """Take over what :meth:`state` gave in processes of any number, after the weights were loaded.

        Raises:
            ValueError: a part of a weight is missing.
        """
        by_name = dict[str, list[_Entry]]()
        for entry in (entry for part in parts for entry in _entries(part)):
            by_name.setdefault(entry.name, []).append(entry)
        for piece, stepped in zip(self._pieces, self._stepped, strict=True):
            if self._copied(piece):
                stepped.copy_(self._view(piece).view(stepped.shape))
            name = self._names[piece.weight]
            saved = by_name.get(name, [])
            state = {x.kind: x.values.clone().to(stepped.device) for x in saved if x.kind == "step"}
            for kind in sorted({x.kind for x in saved} - {"step"}):
                target = stepped if kind == "master" else torch.empty_like(stepped)
                filled = sum(x.copy_to(target, piece) for x in saved if x.kind == kind)
                if filled != stepped.numel():
                    raise ValueError(f"{kind} of {name} is there for {filled} of {stepped.numel()} numbers")
                if kind != "master":
                    state[kind] = target.detach()
            if state:
                self._adam.state[stepped] = state

    def _master(self, piece: Piece) -> Tensor:
        """Return what AdamW steps for a piece: the weight, a part of it, or a float32 copy."""
        weight = self.weights[piece.weight]
        if self._copied(piece):
            device = torch.device("cpu") if self._host else weight.device
            dtype = torch.promote_types(weight.dtype, torch.float32)
            copied = self._view(piece).to(device, dtype, copy=True)
            return nn.Parameter(copied.view(weight.shape) if self._whole(piece) else copied)
        return weight if self._whole(piece) and self._shared is None else nn.Parameter(self._view(piece))

    def _copied(self, piece: Piece) -> bool:
        return self._host or self.weights[piece.weight].dtype.itemsize < 4

    def _whole(self, piece: Piece) -> bool:
        return piece.end - piece.first == self.weights[piece.weight].numel()

    def _view(self, piece: Piece) -> Tensor:
        return self._numbers(own_part(self.weights[piece.weight].detach()), piece)

    def _numbers(self, own: Tensor, piece: Piece) -> Tensor:
        """Return the numbers of a piece, flat, of what this process has of a weight or of its gradient."""
        first = self._firsts[piece.weight]
        return own.view(-1)[piece.first - first : piece.end - first]


@dataclass(frozen=True)
class _Entry:
    """A tensor of a saved state: of which weight, what it is, its first number there, and the numbers, flat."""

    name: str
    kind: str
    first: int
    values: Tensor

    def copy_to(self, target: Tensor, piece: Piece) -> int:
        """Copy what belongs to a piece; return how many numbers that was."""
        first, end = max(self.first, piece.first), min(self.first + self.values.numel(), piece.end)
        if first >= end:
            return 0
        flat = target.detach().view(-1)
        flat[first - piece.first : end - piece.first].copy_(self.values.view(-1)[first - self.first : end - self.first])
        return end - first


def _entries(part: Mapping[str, Tensor]) -> Iterator[_Entry]:
    for key, values in part.items():
        name, kind, *first = key.split("/")
        yield _Entry(name, kind, int(first[0]) if first else 0, values)
