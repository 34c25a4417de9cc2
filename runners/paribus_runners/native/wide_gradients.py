"""Gradients of bfloat16 weights that are summed in float32.

A backward pass gives a weight a gradient of its own type. bfloat16 has 8 bits: a sum of many passes would lose what the
later ones add. So the gradient of each pass is added to a float32 sum as soon as it is whole, and is freed.

The sum is the ``.grad`` of a tensor that has the shape of the weight and occupies no memory; of float32 weights it is
that of the weight itself, and nothing here does anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SUM = "paribus_gradient_sum"


def widen(weight: Tensor) -> None:
    """Let the gradients of a weight be summed in float32 from now on."""
    if weight.dtype.itemsize >= 4 or hasattr(weight, _SUM):
        return
    holder = torch.zeros((), dtype=torch.float32, device=weight.device).expand(weight.shape)
    setattr(weight, _SUM, holder)
    weight.register_post_accumulate_grad_hook(_add)  # type: ignore[no-untyped-call]


def gradient_holder(weight: Tensor) -> Tensor:
    """Return the tensor whose ``.grad`` is the sum of the gradients of a weight."""
    found: Tensor = getattr(weight, _SUM, weight)
    return found


def sum_in_place(weight: Tensor) -> Tensor | None:
    """Return the sum of the gradients of a weight, to add to.

    ``None`` if there is none yet, of a float32 weight: autograd then makes it.
    """
    holder = gradient_holder(weight)
    if holder.grad is None and holder is not weight:
        holder.grad = torch.zeros_like(weight, dtype=torch.float32)
    return holder.grad


def _add(weight: Tensor) -> None:
    holder = gradient_holder(weight)
    assert weight.grad is not None
    holder.grad = weight.grad.float() if holder.grad is None else holder.grad.add_(weight.grad)
    weight.grad = None
