"""How much memory a run may fill, and how much it computes at once. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is computed at once: it bounds memory, and changes numbers by rounding alone.

    Attributes:
        responses_at_a_time: responses that all processes together sample at once; at least those to one prompt are.
        tokens_a_pass: tokens of a forward pass of each process, unless a sequence, or a pair of them, has more.
    """

    responses_at_a_time: int
    tokens_a_pass: int


USUAL = {
    "cpu": Limits(responses_at_a_time=512, tokens_a_pass=4096),
    "cuda": Limits(responses_at_a_time=1024, tokens_a_pass=32768),
}
"""Where memory suffices, by device."""
USABLE = 0.9
"""Share of a device's memory that a run may fill by the arithmetic: libraries and the allocator's gaps need some."""


def usable(memory: int) -> int:
    """Return how many bytes of a device with so many a run may fill."""
    return int(USABLE * memory)


def in_words(size: float) -> str:
    """Return bytes in words, e.g. ``1.5 GB``."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
