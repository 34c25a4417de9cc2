"""Memory and time of the head in chunks against all logits at once, forward and backward, with entropy.

The vocabulary is that of Qwen 2.5 (151,936), the width that of its 0.5B model (896). Memory is the peak of resident
memory in a process of its own, above hidden states, weight and the weight's gradient, which every head needs. Time is
the median ratio of processor time of pairs of turns on one thread, at a number of tokens at which all logits still fit.

    python benchmarks/head.py --memory-below 1.0 --time-below 1.3
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from paribus_runners.native.head import Head

VOCABULARY, WIDTH = 151_936, 896
Scores = tuple[Tensor, Tensor | None]
Function = Callable[[Tensor, Tensor, Tensor], Scores]


def naive(hidden: Tensor, weight: Tensor, targets: Tensor) -> Scores:
    """Return log-probability and entropy from all logits at once."""
    logp = (hidden @ weight.T).log_softmax(-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1)


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Scores:
    """Return the same by the head of the native runner."""
    return Head(weight, None, 1.0, torch.float32).score(hidden, targets, 1.0, with_entropy=True)


def given(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, weight and targets; their logits have a standard deviation of 3."""
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, generator=g).to(dtype)
    weight = (torch.randn(VOCABULARY, WIDTH, generator=g) * 0.1).to(dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(VOCABULARY, (tokens,), generator=g)


def once(function: Function, hidden: Tensor, weight: Tensor, targets: Tensor, *, entropy: bool = True) -> list[Tensor]:
    """Go forward and backward; return log-probability, entropy, and the gradients of hidden states and weight."""
    hidden.grad = weight.grad = None
    logp, spread = function(hidden, weight, targets)
    assert spread is not None
    g = torch.linspace(-1, 1, len(targets), dtype=logp.dtype)
    (logp * g + (0.1 * spread if entropy else 0)).sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert weight.grad is not None
    return [logp.detach(), spread.detach(), hidden.grad, weight.grad]


def peak_gb(tokens: int) -> float:
    """Return the peak of this process above hidden states, weight and the weight's gradient, GB."""
    inputs = given(tokens)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])  # resident now, not the highest so far
    base = pages * resource.getpagesize() // 1024
    once(chunked, *inputs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak - base) * 1024 / 1e9 - VOCABULARY * WIDTH * 4 / 1e9


def ratios(tokens: int, pairs: int, *, entropy: bool) -> list[float]:
    """Return the seconds of the head in chunks over those of all logits at once, for each pair of turns."""
    inputs = given(tokens)
    found = []
    for _ in range(pairs + 1):
        seconds = []
        for function in (chunked, naive):
            start = time.process_time()
            once(function, *inputs, entropy=entropy)
            seconds.append(time.process_time() - start)
        found.append(seconds[0] / seconds[1])
    return found[1:]


def errors(tokens: int) -> tuple[float, float]:
    """Return the largest error of a value, and of a gradient relative to its norm, against float64."""
    ours = once(chunked, *given(tokens))
    exact = once(naive, *given(tokens, torch.float64))
    values = max(float((a - b).abs().max()) for a, b in zip(ours[:2], exact[:2], strict=True))
    return values, max(float((a - b).norm() / b.norm()) for a, b in zip(ours[2:], exact[2:], strict=True))


def main() -> int:
    """Measure, print a table, and return 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--memory-below", type=float, default=1.0, help="GB at 4,096 tokens")
    parser.add_argument("--time-below", type=float, default=1.3, help="ratio to all logits at once")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the comparison of times")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak:
        sys.stdout.write(f"{peak_gb(args.peak)}\n")
        return 0
    command = [sys.executable, __file__, "--peak", "4096"]
    memory = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    value, gradient = errors(128)
    sys.stdout.write(f"peak at 4,096 tokens: {memory:.2f} GB\n")
    sys.stdout.write(f"largest error against float64: values {value:.1e}, gradients {gradient:.1e} of their norm\n")
    slow = False
    for entropy in (True, False):
        found = sorted(ratios(args.tokens, args.pairs, entropy=entropy))
        middle = statistics.median(found)
        what = "with" if entropy else "without"
        sys.stdout.write(
            f"time at {args.tokens:,} tokens, {what} gradient of the entropy: {middle:.2f} ({found[0]:.2f} to "
            f"{found[-1]:.2f}, {len(found)} pairs) of all logits at once\n"
        )
        slow = slow or middle > args.time_below
    return int(memory > args.memory_below or slow or value > 1e-5 or gradient > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
