"""How all pages write numbers, names and texts."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

STATUSES: Mapping[str, tuple[str, str]] = {
    "ok": ("●", "ok"),
    "note": ("◇", "note"),
    "warn": ("▲", "warn"),
    "critical": ("■", "critical"),
    "unknown": ("○", "not judged"),
    "not_applicable": ("–", "not applicable"),
}
"""Health status to its shape and its word. The stylesheet adds the colour, as ``.health-status.warn``."""


def hours(seconds: float, unit: str) -> str:
    """Return a duration such as ``3.4 GPU-h`` or ``12 CPU-min``; empty if it is 0.

    Args:
        seconds: device seconds.
        unit: ``GPU`` or ``CPU``.
    """
    if seconds <= 0:
        return ""
    size, name = next(((s, n) for s, n in ((3600.0, "h"), (60.0, "min")) if seconds >= s), (1.0, "s"))
    return f"{seconds / size:.2g} {unit}-{name}" if seconds / size < 100 else f"{seconds / size:,.0f} {unit}-{name}"


def spaced(name: str) -> str:
    """Return the name of a detector or a state in lower case with spaces, e.g. ``entropy collapse``."""
    return name.lower().replace("_", " ")


def one_line(text: str, most: int) -> str:
    """Return the beginning of a text on one line of at most ``most`` characters; ``…`` marks a cut."""
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most and len(text) <= 4 * most else words[: most - 1] + "\u2026"


def quoted(text: str) -> str:
    """Return a text as one segment of an address."""
    return quote(text, safe="")
