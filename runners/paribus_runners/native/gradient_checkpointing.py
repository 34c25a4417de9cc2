"""Blocks whose activations are computed again in the backward pass, not kept (Chen et al. 2016, arXiv 1604.06174).

A pass then keeps the input of each block, one number a channel and token, and inside of one block at a time whatever
that computes; it takes about a third longer.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from paribus.errors import RunnerError


def switch_on(model: nn.Module) -> None:
    """Let the blocks of a Transformers model keep nothing but their inputs for the backward pass.

    Transformers' own switch acts in training mode alone, in which a model may drop activations at random.

    Raises:
        RunnerError: the model has no blocks that Transformers calls fit for it.
    """
    for block in blocks_of(model, "compute.gradient_checkpointing"):
        block.__class__ = _again(type(block))  # type: ignore[arg-type] # of the class: copies of the model have it, too


def blocks_of(model: nn.Module, field: str) -> list[nn.Module]:
    """Return the blocks of a Transformers model, from the first to the last; ``field`` of a recipe needs them.

    Raises:
        RunnerError: the model has no blocks that Transformers calls fit for it.
    """
    blocks: list[nn.Module] = [block for block in model.modules() if isinstance(block, GradientCheckpointingLayer)]
    if not blocks:
        raise RunnerError(f"`{field}`: {type(model).__name__} has no blocks that can be computed one by one")
    return blocks


@cache
def _again(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *arguments, **named)
        return checkpoint(partial(kind.forward, self), *arguments, use_reentrant=False, **named)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
