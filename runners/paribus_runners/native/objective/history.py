"""F4 and F5, ``history``: advantages from all visits to a prompt (DCPO, arXiv 2509.02333)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import segment


@dataclass(frozen=True)
class Visits:
    """Statistics of a prompt's rewards over all visits.

    Attributes:
        count: visits.
        mean: mean reward over all visits.
        var: variance over all visits.
    """

    count: int = 0
    mean: float = 0.0
    var: float = 0.0

    def after(self, mean: float, var: float) -> Visits:
        """Return the statistics after one more visit, of a group with this ``mean`` and ``var``.

        With i visits: mean_i = ((i-1) mean_{i-1} + mean) / i and var_i = ((i-1) var_{i-1} + var + ((i-1)/i) (mean -
        mean_{i-1})^2) / i: exact where all groups are of one size and ``var`` is that of the population.
        """
        i, before = self.count + 1, self.count
        shift = before / i * (mean - self.mean) ** 2
        return Visits(i, (before * self.mean + mean) / i, (before * self.var + var + shift) / i)


def visit(
    history: Mapping[str, Visits], level: f.HistorySmooth, prompts: Sequence[str], reward: Tensor, group: Tensor
) -> list[Visits]:
    """Return the statistics of each group's prompt after this visit; a prompt that comes twice is visited twice.

    Args:
        history: statistics of the prompts that were visited before.
        level: gives ``ddof`` of a group's variance.
        prompts: identity of the prompt of each of P groups.
        reward: [N] R.
        group: [N] index of the group of each response; a group without responses is no visit.
    """
    groups = len(prompts)
    mean = segment.mean(reward, group, groups)
    var = segment.variance(reward, group, groups, level.ddof)
    there = group.bincount(minlength=groups) > 0
    now = dict(history)
    found = []
    for i, prompt in enumerate(prompts):
        if there[i]:
            now[prompt] = now.get(prompt, Visits()).after(float(mean[i]), float(var[i]))
        found.append(now.get(prompt, Visits()))
    return found


def smooth(level: f.HistorySmooth, reward: Tensor, group: Tensor, visits: Sequence[Visits]) -> Tensor:
    """Return A [N]: of two mixtures of the group's and the whole history's standardised reward, the smaller one.

    With i visits, this one included, A_new from mean and std of the group and A_tot from those of all visits: (i-1)/i
    A_new + 1/i A_tot and 1/i A_new + (i-1)/i A_tot; the one with the smaller absolute value. On the first visit A_new.

    Args:
        level: gives ``ddof`` and ``eps``.
        reward: [N] R.
        group: [N] index of the group of each response.
        visits: statistics of each group's prompt after this visit.
    """
    groups = len(visits)
    mean = segment.mean(reward, group, groups)
    std = segment.variance(reward, group, groups, level.ddof).sqrt()
    spread = segment.spread(reward, group, groups)[group] > 0
    new = torch.where(spread, (reward - mean[group]) / (std[group] + level.eps), torch.zeros_like(reward))
    total_mean, total_std, i = (
        reward.new_tensor(values)[group]
        for values in ([v.mean for v in visits], [v.var**0.5 for v in visits], [max(1, v.count) for v in visits])
    )
    divisor = total_std + level.eps
    total = torch.where((total_std > 0) & (divisor > 0), (reward - total_mean) / divisor, torch.zeros_like(reward))
    first, second = ((i - 1) * new + total) / i, (new + (i - 1) * total) / i
    return torch.where(i > 1, torch.where(first.abs() <= second.abs(), first, second), new)
