"""F1: from the verifier's verdict to the scalar reward of a response."""

from __future__ import annotations

from torch import Tensor

from paribus.recipe.factors import Reward


def reward(level: Reward, score: Tensor, correct: Tensor) -> Tensor:
    """Return R [N] from the task's score [N] and correctness y [N].

    ``binary01``: y. ``pm1``: 2y - 1 (DAPO, arXiv 2503.14476, Eq. 7). ``scalar``: the score. Times ``level.factor``.
    """
    y = correct.to(score.dtype)
    return level.factor * {"binary01": y, "pm1": 2 * y - 1, "scalar": score}[level.map]
