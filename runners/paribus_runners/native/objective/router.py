"""F11, ``router_shift``: how far the routing of each token has moved since the updates began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paribus.recipe import factors as f


@dataclass(frozen=True)
class Routing:
    """Which experts each token went to before the updates, without gradient.

    Attributes:
        experts: [T, layers, K] the K experts with the highest probability.
        logp: [T, layers, K] log of their probabilities among all experts, nats.
    """

    experts: Tensor
    logp: Tensor

    @classmethod
    def of(cls, logp: Tensor, k: int) -> Routing:
        """Return what a router with the log-probabilities [T, layers, experts] chose at ``k`` experts a token."""
        top = logp.detach().topk(k, dim=-1)
        return cls(top.indices, top.values)

    def select(self, tokens: Tensor) -> Routing:
        """Return the routing of the tokens at these places, or where a mask [T] holds."""
        return Routing(self.experts[tokens], self.logp[tokens])

    @staticmethod
    def join(parts: Sequence[Routing]) -> Routing:
        """Return the routing of the tokens of all parts, one part after the other."""
        return Routing(torch.cat([p.experts for p in parts]), torch.cat([p.logp for p in parts]))

    def to(self, device: torch.device) -> Routing:
        """Return the same on ``device``."""
        return Routing(self.experts.to(device), self.logp.to(device))


def shift(level: f.RouterShift, old: Routing, new_logp: Tensor) -> Tensor:
    """Return gamma [T] in [floor, 1], without gradient (RSPO, arXiv 2510.23027).

    gamma = max(floor, exp(-(1 / (layers K)) sum over layers and the old top-K experts of |log g_new - log g_old|)).

    Args:
        level: the floor; what gamma multiplies is up to the caller.
        old: routing before the updates.
        new_logp: [T, layers, experts] log-probabilities of the router now, nats.
    """
    now = new_logp.detach().gather(-1, old.experts)
    return (now - old.logp).abs().mean((-2, -1)).neg().exp().clamp_min(level.floor)
