"""A display that remembers what it was told."""

from __future__ import annotations


class Lines:
    """Takes the place of the live display; the lines are in ``said``."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        """Remember a line."""
        self.said.append(line)

    def show(self, view: object) -> None:
        """Show nothing."""
