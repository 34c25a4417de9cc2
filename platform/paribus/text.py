"""How times, durations, sizes and texts of strangers are written for people: in terminals, reports and pages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime


def time_text(seconds: float) -> str:
    """Return seconds since 1970 as ``2026-11-24 03:10 UTC``; empty for a time that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return ""


def duration(seconds: float) -> str:
    """Return ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size_text(size: float) -> str:
    """Return e.g. ``1.5 GiB``; sizes below one KiB in bytes."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "bytes" else f"{size:.0f} bytes"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(n: float, noun: str, many: str = "") -> str:
    """Return a number with its noun, e.g. ``1 run``, ``2,000 runs``, ``0.5 GPUs`` or ``1 run is``.

    Args:
        n: the number.
        noun: what follows the number 1; with a verb, if ``many`` has one.
        many: what follows every other number; empty: the regular plural of ``noun``.
    """
    number = f"{n:,}" if isinstance(n, int) else f"{n:g}"
    return f"{number} {noun if n == 1 else many or _plural_of(noun)}"


def every(n: int, noun: str) -> str:
    """Return e.g. ``every step`` or ``every 20 steps``."""
    return f"every {noun}" if n == 1 else f"every {plural(n, noun)}"


def _plural_of(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeou" else f"{noun}s"


def listed(items: Iterable[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``; ``nothing`` for none."""
    found = list(items)
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + f" and {found[-1]}" if found else "nothing"


def printable(text: str, instead: str = "?") -> str:
    """Return a text with ``instead`` for characters that end lines or control a terminal."""
    return "".join(c if c.isprintable() else instead for c in text)
