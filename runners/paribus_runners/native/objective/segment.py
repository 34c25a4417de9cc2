"""Sums and means of tokens by response, and of responses by group: flat tensors with an index, never padding."""

from __future__ import annotations

from torch import Tensor


def total(x: Tensor, index: Tensor, count: int) -> Tensor:
    """Return [count] sums of ``x`` [n] over equal ``index`` [n]."""
    return x.new_zeros(count).index_add(0, index, x)


def size(index: Tensor, count: int) -> Tensor:
    """Return [count] how often each index occurs, at least 1 so that it can divide."""
    return index.bincount(minlength=count).clamp_min(1)


def mean(x: Tensor, index: Tensor, count: int) -> Tensor:
    """Return [count] means of ``x`` [n] over equal ``index`` [n]; 0 where there are none."""
    return total(x, index, count) / size(index, count)


def variance(x: Tensor, index: Tensor, count: int, ddof: int) -> Tensor:
    """Return [count] variances of ``x`` [n] over equal ``index`` [n]; ``ddof`` is taken off their numbers, to 1."""
    freedom = (size(index, count) - ddof).clamp_min(1)
    return total((x - mean(x, index, count)[index]) ** 2, index, count) / freedom


def spread(x: Tensor, index: Tensor, count: int) -> Tensor:
    """Return [count] largest minus smallest ``x`` [n] over equal ``index`` [n]; exactly 0 where all are equal."""
    high = x.new_zeros(count).scatter_reduce(0, index, x, "amax", include_self=False)
    low = x.new_zeros(count).scatter_reduce(0, index, x, "amin", include_self=False)
    return high - low
