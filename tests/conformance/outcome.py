"""What an objective made of a batch, and how far two of them are apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PARTS = ("advantage", "loss", "gradient")


@dataclass(frozen=True)
class Outcome:
    """Advantages, loss and gradient.

    Attributes:
        advantage: [N, W] A of each token, 0 behind the end of a response.
        loss: the loss of the optimizer batch.
        gradient: [N, W] derivative of the loss by the log-probability of each token.
    """

    advantage: Tensor
    loss: float
    gradient: Tensor


def error(ours: Outcome, theirs: Outcome, part: str) -> float:
    """Return the relative error of ``advantage``, ``loss`` or ``gradient``.

    The loss is relative to the sum of the absolute gradients, which bounds it where positive and negative terms cancel.
    The others are relative to their largest value in the same response, or 1/1000 of that in the batch if larger.
    """
    if part == "loss":
        return abs(ours.loss - theirs.loss) / max(abs(theirs.loss), float(theirs.gradient.abs().sum()))
    mine, other = getattr(ours, part), getattr(theirs, part)
    size = other.abs().amax(1)
    return float(((mine - other).abs().amax(1) / size.clamp_min(1e-3 * size.max())).max())


def padded(values: Tensor, mask: Tensor) -> Tensor:
    """Return ``values``, [N] or [N, W], on the tokens of ``mask`` [N, W], and 0 elsewhere."""
    values = values[:, None] if values.dim() == 1 else values
    return torch.where(mask, values.expand(mask.shape), 0.0).double()
