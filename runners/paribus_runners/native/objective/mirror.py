"""The loss family ``opmd``: the distance to the old policy that stands beside the policy gradient."""

from __future__ import annotations

from torch import Tensor

from paribus.recipe.factors import MirrorDescent
from paribus_runners.native.objective import segment


def distance(level: MirrorDescent, d: Tensor, weight: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return tau/2 times the sum of weighed squared log-ratios, a scalar.

    With l = sum of d over the tokens of a response, ``sequence``: l^2, so that the coefficient of log pi is A - tau l
    (Kimi k1.5, arXiv 2501.12599, Eq. 3). ``token``: the sum of d^2, and A - tau d (DRO as verl has it).

    Args:
        level: gives tau and unit.
        d: [T] new minus old log-probability, nats.
        weight: [T] weight of each token in the loss, the same for all tokens of a response.
        row: [T] index of the response of each token.
        rows: number of responses.
    """
    if level.unit == "token":
        return level.tau / 2 * (weight * d**2).sum()
    of_row = weight.new_zeros(rows).scatter(0, row, weight)
    return level.tau / 2 * (of_row * segment.total(d, row, rows) ** 2).sum()
