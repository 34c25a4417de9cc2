"""Random numbers that depend on a name and a place in the run, never on history: arms with one seed share them."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def uniforms(rows: int, columns: int, *place: int | str) -> Tensor:
    """Return [rows, columns] numbers in [0, 1), float64, that belong to ``place``, e.g. seed, purpose, step, round."""
    digest = hashlib.sha256("/".join(map(str, place)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
    return torch.rand(rows, columns, dtype=torch.float64, generator=generator)
