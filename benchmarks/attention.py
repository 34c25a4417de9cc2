"""Causal attention of ragged sequences on one CPU core, forward and backward: panels against PyTorch's fused kernel.

The fused kernel gets each sequence padded to the longest, with its own copy of the prompt, as it needs them; gathering
them from the row and scattering the output back count on both sides. Prints the fastest of some calls, and the ratio.

    make -C benchmarks attention
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest.mock import patch

import torch

from paribus_runners.native import attention


class Case(NamedTuple):
    """Groups of 8 responses: prompts, their tokens, mean and most tokens of a response, heads and their channels."""

    prompts: int
    prompt: int
    mean: float
    most: int
    heads: int
    size: int

    def responses(self) -> list[list[int]]:
        """Return the tokens of each response: those of a text that may end at each token, up to the limit."""
        draw = random.Random(0)
        return [
            [min(self.most, 1 + int(draw.expovariate(1 / self.mean))) for _ in range(8)] for _ in range(self.prompts)
        ]


CASES = {
    "up to 64 tokens": Case(8, 12, 28, 64, 4, 32),
    "up to 512 tokens, mean about 30": Case(8, 12, 31, 512, 4, 32),
    "up to 64 tokens, 12 heads of 64": Case(4, 100, 28, 64, 12, 64),
    "half of them 500 tokens, 12 heads of 64": Case(1, 100, 700, 500, 12, 64),
    "all 1,000 tokens, 12 heads of 64": Case(1, 100, 1e9, 1000, 12, 64),
}


def fastest(call: Callable[[], object], calls: int) -> float:
    """Return the milliseconds of the fastest of some calls."""
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds[2:]) * 1000


def compare(case: Case, calls: int) -> tuple[float, float, float]:
    """Return milliseconds in panels and padded, and the largest difference of the outputs."""
    groups = case.responses()
    layout = attention.pack([case.prompt] * case.prompts, groups, torch.device("cpu"))
    tokens = len(layout.positions)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, tokens, case.heads, case.size, generator=generator) for _ in range(4)]
    q, k, v = (x.requires_grad_().transpose(1, 2) for x in drawn[:3])

    def forward() -> torch.Tensor:
        return layout.attend(0, q, k, v, case.size**-0.5)

    def both() -> Sequence[torch.Tensor]:
        return torch.autograd.grad(forward(), drawn[:3], drawn[3])

    ours, here = fastest(both, calls), forward().detach()
    with patch.object(attention, "_in_small_products", lambda _: False):
        padded, there = fastest(both, calls), forward().detach()
    return ours, padded, float((here - there).abs().max())


def main() -> int:
    """Print a row for each case; exit 1 if ragged sequences gain less than demanded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--at-least", type=float, default=0.0, help="exit 1 if `up to 512` has a lower ratio")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    ratios = {}
    for name, case in CASES.items():
        ours, padded, difference = compare(case, options.calls)
        ratios[name] = padded / ours
        print(
            f"| {name} | {ours:.1f} | {padded:.1f} | {padded / ours:.2f} |   largest difference {difference:.0e}",
            flush=True,
        )
    return 0 if ratios["up to 512 tokens, mean about 30"] >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
