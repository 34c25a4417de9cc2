"""F12, ``value``: the loss of the critic."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe.factors import ValueLoss


def loss(level: ValueLoss, new: Tensor, old: Tensor, returns: Tensor) -> Tensor:
    """Return the loss of each token [T]: half the squared distance of its value to its return.

    With ``clip``, the larger one of that and of the same with the value kept within ``clip`` of the old one (the
    clipped value loss of the code of PPO, arXiv 2005.12729, section 3).

    Args:
        level: the critic's settings.
        new: [T] values under the critic that is updated.
        old: [T] values before the updates.
        returns: [T] targets.
    """
    squared = (new - returns) ** 2
    if level.clip is not None:
        near = old + (new - old).clamp(-level.clip, level.clip)
        squared = torch.maximum(squared, (near - returns) ** 2)
    return squared / 2
