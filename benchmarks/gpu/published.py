"""Figures that others publish of their trainers on GPUs, for the page docs/reference/performance.md.

Read from the sources themselves as they were on 2026-08-22. prime-rl dates its file 2026-02-01, verl its first page
2025-08-20.
"""

from __future__ import annotations

from typing import NamedTuple

PRIME_RL = "[prime-rl](https://github.com/PrimeIntellect-ai/prime-rl/blob/main/benchmarks/results/BENCHMARKS.md)"
VERL = "[verl](https://github.com/verl-project/verl/blob/main/docs/perf/dpsk.md)"
VERL_ASYNC = "[verl](https://github.com/verl-project/verl/blob/main/docs/advance/v1_async_trainer.md)"


class Figure(NamedTuple):
    """A published figure; ``None`` where its source says nothing.

    Attributes:
        source: who publishes it, linked.
        what: model, work and tokens of a pass.
        devices: what it ran on.
        tokens_per_s: of all devices together.
        mfu: share of the devices' FLOP/s, as the source counts it.
        peak_gib: memory of a device.
        beside: the row of ``update`` that is closest to it, if one is.
    """

    source: str
    what: str
    devices: str
    tokens_per_s: int | None = None
    mfu: float | None = None
    peak_gib: float | None = None
    beside: str | None = None


SMALL = "0.5B, 32,768 tokens, blocks computed again"
LARGE = "7B, adapters, 32,768 tokens, blocks computed again"
FIGURES = (
    Figure(PRIME_RL, "update, Qwen3-0.6B, 16,384 tokens", "1 H100", 11_900, 0.111, 12.5, SMALL),
    Figure(PRIME_RL, "update, Qwen3-0.6B, 65,536 tokens", "1 H100", 10_150, 0.268, 19.6, SMALL),
    Figure(PRIME_RL, "update, Qwen3-4B, adapters, 16,384 tokens", "1 H100", 6_230, 0.217, 23.3, LARGE),
    Figure(PRIME_RL, "update, Qwen3-4B, adapters, 65,536 tokens", "1 H100", 4_160, 0.374, 42.0, LARGE),
    Figure(PRIME_RL, "update, Qwen3-4B, 65,536 tokens", "8 H100", 28_970, 0.354, 36.1),
    Figure(PRIME_RL, "update, Qwen3-30B-A3B, 65,536 tokens", "8 H200", 12_750, 0.154, 105.4),
    Figure(VERL, "GRPO, Qwen3-30B-A3B", "8 GPUs", mfu=0.4),
    Figure(VERL, "GRPO, DeepSeek-V3 671B", "96 GPUs", mfu=0.19),
    Figure(VERL_ASYNC, "whole steps, Qwen3.5-35B-A3B, up to 32,768 tokens", "4 nodes", 12_053),
    Figure(VERL_ASYNC, "the same, sampling while it trains", "4 nodes", 18_852),
)
