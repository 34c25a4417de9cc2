"""Writes what a benchmark has measured into docs/reference/health.md, between marks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "health.md"


def written(page: str, script: str, lines: Sequence[str]) -> str:
    """Return the page with these lines in place of what the script has written before, or at its end."""
    begin, end = f"<!-- Written by benchmarks/{script}. -->\n", f"<!-- End of what benchmarks/{script} writes. -->"
    before, mark, rest = page.partition(begin)
    after = rest.partition(end)[2] if mark else "\n"
    return (before if mark else before.rstrip("\n") + "\n\n") + begin + "\n" + "\n".join(lines) + "\n\n" + end + after


def write(script: str, lines: Sequence[str]) -> None:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(), script, lines))
