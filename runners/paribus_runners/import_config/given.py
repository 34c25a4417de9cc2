"""The options of a trainer's configuration as they are read, and the study that comes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paribus.errors import ParibusError
from paribus.text import printable

MOST = 1e15
"""No whole number of a training is as large."""


@dataclass
class Translated:
    """What became of the options.

    Attributes:
        recipe: the patch of the preset ``grpo``.
        study: further sections of the study.
        lost: option to what is lost of it, in words.
    """

    recipe: dict[str, Any] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


class Given:
    """Options by name, with a note of which were read.

    Args:
        values: all of them.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.used: set[str] = set()

    def optional(self, name: str) -> Any:
        """Return a value; ``None`` if it is not given."""
        self.used.add(name)
        return self._values.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return a value as text."""
        value = self.optional(name)
        return default if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        return self.text(name).lower() in ("true", "1", "yes", "on")

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number.

        Raises:
            ParibusError: it is no number.
        """
        value = self.optional(name)
        if value is None and default is not None:
            return default
        return number_of(name, value)

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a number without its fraction.

        Raises:
            ParibusError: it is no number, or as large as none of a training.
        """
        if abs(value := self.number(name, default)) < MOST:  # also false for one that is not finite
            return int(value)
        raise ParibusError(f"`{name}: {value:g}` is not a number below {MOST:.0e}")


def brief(value: object) -> str:
    """Return a value of a file as a message shows it."""
    text = str(value)
    return printable(text[:200]) + ("..." if len(text) > 200 else "")


def number_of(name: str, value: object) -> float:
    """Return the number that an option has.

    Raises:
        ParibusError: it is no number.
    """
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        shell = f": a variable that the script does not set. Write `{name}=...` behind it" if "$" in str(value) else ""
        raise ParibusError(f"`{name}: {brief(value)}` is no number{shell}") from None
