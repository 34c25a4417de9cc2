"""F1: from the verifier's verdict to the scalar reward of a response."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.recipe.factors import Reward


def parts(
    level: Reward, score: Tensor, correct: Tensor, formatted: Tensor, rewards: Tensor | None = None
) -> dict[str, tuple[float, Tensor]]:
    """Return the rewards that count by name, each as its weight and r [N].

    With x in {0, 1}, the correctness or whether there is an answer: ``binary01``: x. ``pm1``: 2x - 1 (DAPO, arXiv
    2503.14476, Eq. 7). ``scalar``: the task's own score, for the form of the answer 2x - 1. A function of the study
    gives r itself. Times ``level.factor``.

    Args:
        level: the reward map.
        score: [N] the task's own score.
        correct: [N] correctness.
        formatted: [N] whether the response ended by itself and holds an answer.
        rewards: [N, F] what the functions of the study returned, in the order of their names; ``None`` without any.
    """
    found = {}
    for name, weight, x, own in (
        ("correct", level.weights.correct, correct, score),
        ("format", level.weights.format, formatted, 2 * formatted.to(score.dtype) - 1),
    ):
        if weight:
            y = x.to(score.dtype)
            found[name] = weight, level.factor * {"binary01": y, "pm1": 2 * y - 1, "scalar": own}[level.map]
    for place, (name, function) in enumerate(level.functions.items()):
        assert rewards is not None
        if function.weight:
            found[name] = function.weight, level.factor * rewards[:, place]
    return found


def reward(level: Reward, score: Tensor, correct: Tensor, formatted: Tensor, rewards: Tensor | None = None) -> Tensor:
    """Return R [N], the weighted sum of the rewards that count; arguments as in :func:`parts`."""
    total = torch.zeros_like(score)
    for weight, r in parts(level, score, correct, formatted, rewards).values():
        total = total + weight * r
    return total
