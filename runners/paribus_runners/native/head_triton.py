"""What the head computes between its matrix products, as two kernels in Triton (``compute.head: triton``).

The operations of torch read and write the logits of a chunk six times or more, in float32. Here one kernel reads them
once, and another writes their gradient in their place; both compute in float32, whatever the type of the products is.
So a chunk has one room, and with bfloat16 no float32 logit is ever in memory.

The forward kernel goes through a row once, with a running maximum (Milakov and Gimelshein 2018, arXiv 1805.02867). That
the backward pass computes logits again is as in "Cut Your Losses" (Wijmans et al. 2024, arXiv 2411.09009); there the
products are in the kernels, too, and here they are cuBLAS's.

Imported only where it is used: builds of PyTorch for CPUs come without Triton. Under ``TRITON_INTERPRET=1`` a CPU runs
the kernels line by line, for tests.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS, WARPS = 8192, 16
"""Logits that a program has in its registers while it goes through a row, 16 a thread, and its warps of 32 threads."""
PART, PART_WARPS = 4096, 8
"""The same where each program has a part of a row."""


class Kernels:
    """What stands between the matrix products of a chunk; logits [n, V] have their type, all else is float32."""

    def __init__(self, x: Tensor, weight: Tensor, rows: int) -> None:
        self._room = x.new_empty(min(rows, len(x)), len(weight))

    def logits(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return logits [n, V], not divided yet, in the memory of the chunk before."""
        z = self._room[: len(x)]
        if bias is None:
            return torch.mm(x, weight.t(), out=z)
        return torch.addmm(bias, x, weight.t(), out=z)

    def reduce(
        self, z: Tensor, targets: Tensor, divisor: float, outside: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and log-sum-exp, [n] each, nats.

        Args:
            z: [n, V] logits, not divided yet.
            targets: [n] tokens.
            divisor: logits are divided by it.
            outside: [n, V] tokens that count as impossible; ``None``: none.
        """
        if outside is not None:
            z.masked_fill_(outside, -math.inf)
        chosen, entropy, total = torch.empty(3, len(z), dtype=torch.float32, device=z.device)
        block = _block(COLUMNS, z.shape[1])
        _reduce[(len(z),)](
            z, targets.contiguous(), chosen, entropy, total, z.stride(0), z.shape[1], divisor,
            BLOCK=block, num_warps=WARPS,
        )  # fmt: skip
        return chosen, entropy, total

    def differentiate(
        self,
        z: Tensor,
        targets: Tensor,
        total: Tensor,
        entropy: Tensor,
        g: Tensor,
        ge: Tensor | None,
        divisor: float,
        outside: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of the undivided logits [n, V], in their place, twice.

        Args:
            z: [n, V] logits, not divided yet.
            targets: [n] tokens.
            total: [n] log-sum-exp of the divided logits.
            entropy: [n].
            g: [n] gradient of the log-probabilities.
            ge: [n] gradient of the entropies; ``None``: zero.
            divisor: logits are divided by it.
            outside: [n, V] tokens that count as impossible; ``None``: none.
        """
        if outside is not None:
            z.masked_fill_(outside, -math.inf)
        g = g.contiguous()  # the gradient of a sum is one number, n times
        of_entropy = g if ge is None else ge.contiguous()
        block = _block(PART, z.shape[1])
        _differentiate[(len(z), triton.cdiv(z.shape[1], block))](
            z, targets.contiguous(), total, entropy, g, of_entropy, z.stride(0), z.shape[1], divisor,
            WITH_ENTROPY=ge is not None, BLOCK=block, num_warps=PART_WARPS,
        )  # fmt: skip
        return z, z


def _block(most: int, words: int) -> int:
    return min(most, int(triton.next_power_of_2(words)))


# Triton takes annotations for code. A logit of -inf (what is left out, and what fills the last block) has p = 0, and
# 0 log 0 = 0; a nan is equal to nothing, so it reaches the results.


@triton.jit  # type: ignore[untyped-decorator]
def _reduce(  # type: ignore[no-untyped-def]
    z, targets, chosen, entropy, total, stride, words, divisor, BLOCK: tl.constexpr
) -> None:
    """Go once through a row of logits; with m its maximum so far, keep sum e^(z-m) and sum e^(z-m) (z-m)."""
    row = tl.program_id(0).to(tl.int64)  # n V may be above 2^31
    z += row * stride
    top = -1e30  # finite, so that its difference to itself is a number
    mass = 0.0
    moment = 0.0
    for first in range(0, words, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(z + column, mask=column < words, other=float("-inf")).to(tl.float32) / divisor
        higher = tl.maximum(top, tl.max(x, 0))
        x -= higher
        e = tl.exp(x)
        shrink = tl.exp(top - higher)
        moment = shrink * (moment + (top - higher) * mass) + tl.sum(tl.where(e == 0.0, 0.0, x) * e, 0)
        mass = shrink * mass + tl.sum(e, 0)
        top = higher
    log_mass = tl.log(mass)
    x = tl.load(z + tl.load(targets + row)).to(tl.float32) / divisor
    tl.store(chosen + row, x - top - log_mass)
    tl.store(entropy + row, log_mass - moment / mass)
    tl.store(total + row, top + log_mass)


@triton.jit  # type: ignore[untyped-decorator]
def _differentiate(  # type: ignore[no-untyped-def]
    z, targets, total, entropy, g, ge, stride, words, divisor, WITH_ENTROPY: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Put the gradient in the place of a part of a row: (g (onehot - p) - ge p (log p + H)) / divisor."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z += row * stride + column
    x = tl.load(z, mask=column < words, other=float("-inf")).to(tl.float32) / divisor - tl.load(total + row)
    p = tl.exp(x)
    of_target = tl.load(g + row)
    d = tl.where(column == tl.load(targets + row), of_target, 0.0) - of_target * p
    if WITH_ENTROPY:
        d -= tl.load(ge + row) * tl.where(p == 0.0, 0.0, x + tl.load(entropy + row)) * p
    tl.store(z, (d / divisor).to(z.dtype.element_ty), mask=column < words)
