"""Memory and error of a score with a large vocabulary, and time of the head in chunks against all logits at once.

The vocabulary is that of Qwen 2.5 (151,936), the width that of its 0.5B model (896); 4,096 response tokens get their
log-probabilities and entropies, forward and backward.

* Memory: the peak of resident memory, in a process of its own, of a whole score by the code that trains (a Qwen2 of one
  block, its head, a loss), above the model and one gradient of each parameter. The first pass of an update finds no
  gradients, a later one those of the passes before; embeddings are the head's weight, or not.
* Error: values, and gradients in their norm, of the head against all logits of 256 tokens at a time in float64.
* Time: the median ratio of processor time of pairs of turns on one thread, at a number of tokens at which all logits
  still fit.

    python benchmarks/head.py --memory-below 1.0 --time-below 1.3 --error-below 1e-5
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

VOCABULARY, WIDTH, TOKENS = 151_936, 896, 4096
PROMPT = 16
AT_ONCE = 256
"""Tokens whose logits the reference in float64 holds at once: 0.3 GB, and as much for each step to the loss."""
PARTS = ("memory", "error", "time")
Scores = tuple[Tensor, Tensor | None]
Function = Callable[[Tensor, Tensor, Tensor], Scores]


def naive(hidden: Tensor, weight: Tensor, targets: Tensor) -> Scores:
    """Return log-probability and entropy from all logits at once."""
    logp = (hidden @ weight.T).log_softmax(-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1)


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Scores:
    """Return the same by the head of the native runner, as its learner calls it."""
    return Head(weight, None, 1.0, torch.float32).score(hidden, targets, 1.0, with_entropy=True, accumulate=True)


def given(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, weight and targets; their logits have a standard deviation of 3."""
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, generator=g).to(dtype)
    weight = (torch.randn(VOCABULARY, WIDTH, generator=g) * 0.1).to(dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(VOCABULARY, (tokens,), generator=g)


def once(
    function: Function, hidden: Tensor, weight: Tensor, targets: Tensor, g: Tensor, *, entropy: bool = True
) -> list[Tensor]:
    """Go forward and backward; return log-probability and entropy, and add to the gradients of the loss with ``g``."""
    logp, spread = function(hidden, weight, targets)
    assert spread is not None
    (logp * g.to(logp.dtype) + (0.1 * spread if entropy else 0)).sum().backward()  # type: ignore[no-untyped-call]
    return [logp.detach(), spread.detach()]


def peak_gb(*, tied: bool, later: bool) -> float:
    """Return the peak of this process in a score with its backward pass, above model and gradients, GB."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    from paribus_runners.native import attention
    from paribus_runners.native.log_probabilities import score
    from paribus_runners.native.policy import Policy

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4864,
        num_hidden_layers=1,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME).float().eval()
    policy = Policy(model, None, torch.float32, (0,), 0, torch.device("cpu"))
    if later:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    g = torch.Generator().manual_seed(0)
    prompt, text = (torch.randint(VOCABULARY, (n,), generator=g).tolist() for n in (PROMPT, TOKENS))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])  # resident now, not the highest so far
    base = pages * resource.getpagesize() + (0 if later else sum(4 * p.numel() for p in model.parameters()))
    scores = score(policy, [prompt], [[text]], 1.0, with_entropy=True, accumulate=True)
    assert scores.entropy is not None
    (scores.logp.sum() + 0.1 * scores.entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base) / 1e9


def errors() -> tuple[float, float]:
    """Return the largest error of a value, and of a gradient relative to its norm, against float64."""
    hidden, weight, targets = given(TOKENS)
    weight.grad = torch.zeros_like(weight)  # as in a later pass
    g = torch.linspace(-1, 1, TOKENS)
    values = once(chunked, hidden, weight, targets, g)
    exact_hidden, exact_weight, _ = given(TOKENS, torch.float64)
    parts = [slice(i, i + AT_ONCE) for i in range(0, TOKENS, AT_ONCE)]
    exact = [once(naive, exact_hidden[here], exact_weight, targets[here], g[here]) for here in parts]
    found = max(float((a - torch.cat(b)).abs().max()) for a, b in zip(values, zip(*exact, strict=True), strict=True))
    wrong = []
    for mine, theirs in ((hidden.grad, exact_hidden.grad), (weight.grad, exact_weight.grad)):
        assert mine is not None
        assert theirs is not None
        wrong.append(float((mine - theirs).norm() / theirs.norm()))
    return found, max(wrong)


def ratios(tokens: int, pairs: int, *, entropy: bool) -> list[float]:
    """Return the seconds of the head in chunks over those of all logits at once, for each pair of turns."""
    hidden, weight, targets = given(tokens)
    g, found = torch.linspace(-1, 1, tokens), []
    for _ in range(pairs + 1):
        seconds = []
        for function in (chunked, naive):
            hidden.grad = weight.grad = None
            start = time.process_time()
            once(function, hidden, weight, targets, g, entropy=entropy)
            seconds.append(time.process_time() - start)
        found.append(seconds[0] / seconds[1])
    return found[1:]


def show(what: str, found: str, bound: float, *, holds: bool) -> bool:
    """Print a row of the table; return whether the bound holds."""
    sys.stdout.write(f"| {what} | {found} | {bound:g} |{'' if holds else ' too much'}\n")
    sys.stdout.flush()
    return holds


def main() -> int:
    """Measure, print a table, and return 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--memory-below", type=float, default=1.0, help="GB above model and gradients")
    parser.add_argument("--time-below", type=float, default=1.3, help="ratio to all logits at once")
    parser.add_argument("--error-below", type=float, default=1e-5, help="of values, and of gradients in their norm")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the comparison of times")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, help="measure this alone")
    parser.add_argument("--peak", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak:
        sys.stdout.write(f"{peak_gb(tied=bool(args.peak[0]), later=bool(args.peak[1]))}\n")
        return 0
    parts, good = PARTS if args.only is None else (args.only,), []
    sys.stdout.write("| measured | found | allowed |\n|---|---|---|\n")
    for tied, later in ((1, 1), (0, 1), (1, 0), (0, 0)) if "memory" in parts else ():
        command = [sys.executable, __file__, "--peak", str(tied), str(later)]
        memory = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        what = f"{'a later' if later else 'the first'} pass, embeddings {'tied' if tied else 'not tied'}"
        holds = memory <= args.memory_below
        good.append(show(f"memory of {what}, GB", f"{memory:.2f}", args.memory_below, holds=holds))
    if "error" in parts:
        for what, error in zip(("values", "gradients"), errors(), strict=True):
            good.append(show(f"error of {what}", f"{error:.1e}", args.error_below, holds=error <= args.error_below))
    for entropy in (True, False) if "time" in parts else ():
        found = sorted(ratios(args.tokens, args.pairs, entropy=entropy))
        middle = statistics.median(found)
        what = f"time at {args.tokens:,} tokens, {'with' if entropy else 'without'} gradient of the entropy"
        text = f"{middle:.2f} ({found[0]:.2f} to {found[-1]:.2f}, {len(found)} pairs)"
        good.append(show(what, text, args.time_below, holds=middle <= args.time_below))
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
