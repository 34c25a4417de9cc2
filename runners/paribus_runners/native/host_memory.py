"""Weights of a network that are in host memory while it does not compute (``compute.offload: [reference]``).

Where the device is a CPU nothing moves, and nothing is gained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class HostMemory:
    """Keeps the weights of a network that never change.

    Args:
        model: the network; those of its weights that are trained, or shared with another one, stay where they are.
        other: the network that it may share weights with.
    """

    def __init__(self, model: nn.Module, other: nn.Module) -> None:
        shared = {id(p) for p in other.parameters()}
        self._own = [p for p in model.parameters() if id(p) not in shared and not p.requires_grad]
        self._devices = [p.device for p in self._own]
        self._kept = [p.data.cpu() for p in self._own]
        self._rest()

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Have the weights on their devices for the duration."""
        for parameter, kept, device in zip(self._own, self._kept, self._devices, strict=True):
            parameter.data = kept.to(device)
        try:
            yield
        finally:
            self._rest()

    def _rest(self) -> None:
        for parameter in self._own:
            parameter.data = parameter.data.new_empty(0)
