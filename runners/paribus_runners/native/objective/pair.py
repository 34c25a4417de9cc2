"""The loss family beside the policy gradient: the best against the worst response of each group."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from paribus.recipe.factors import PairDpo
from paribus_runners.native.objective import segment


def extremes(reward: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return [N] 1 for the best response of each group, -1 for the worst, 0 for all others.

    Of equals the first counts; a group without spread has neither.

    Args:
        reward: [N] R.
        group: [N] index of the group of each response.
        groups: number of groups.
    """
    A = torch.zeros_like(reward)
    spread = segment.spread(reward, group, groups)
    for g in (spread > 0).nonzero().squeeze(1).tolist():
        rows = (group == g).nonzero().squeeze(1)
        A[rows[reward[rows].argmax()]] = 1
        A[rows[reward[rows].argmin()]] = -1
    return A


def loss(level: PairDpo, new: Tensor, reference: Tensor, side: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return the loss of each pair [rows / 2]: -log sigmoid(beta margin) (DPO, arXiv 2305.18290, Eq. 7).

    The margin is the sum of log pi - log reference over the better response minus that over the worse one.

    Args:
        level: gives beta.
        new: [T] log-probability under the policy that is updated, nats.
        reference: [T] log-probability under the reference.
        side: [T] 1 in the better response, -1 in the worse one.
        row: [T] index of the response of each token; responses 2k and 2k + 1 are a pair.
        rows: number of responses.
    """
    margin = segment.total(side * (new - reference), row // 2, rows // 2)
    return -F.logsigmoid(level.beta * margin)
