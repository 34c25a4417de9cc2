"""Numbers in words, the same on all pages."""

from __future__ import annotations


def hours(seconds: float, unit: str) -> str:
    """Return e.g. ``3.4 GPU-hours`` or ``12 CPU-minutes``; empty for nothing.

    Args:
        seconds: device seconds.
        unit: ``GPU`` or ``CPU``.
    """
    if seconds <= 0:
        return ""
    size, name = next(((s, n) for s, n in ((3600.0, "h"), (60.0, "min")) if seconds >= s), (1.0, "s"))
    return f"{seconds / size:.2g} {unit}-{name}" if seconds / size < 100 else f"{seconds / size:,.0f} {unit}-{name}"
