"""Options as overrides of Hydra, which its parser reads back as the same values.

A key is never written with ``++``, which accepts any misspelt one: Hydra refuses a key that its configuration lacks,
and ``+`` stands only before those that the capability file lists.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from paribus.errors import ParibusError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS = frozenset({"null", "none", "true", "false", "nan", "inf"})


def overrides(options: Mapping[str, Any], added: Collection[str]) -> list[str]:
    """Return options as arguments, e.g. ``data.seed=3``, in the order of their names.

    Args:
        options: value by dotted name.
        added: those that the configuration has no place for.

    Raises:
        ParibusError: a value can't be written down.
    """
    return [f"{'+' if name in added else ''}{name}={written(options[name], name)}" for name in sorted(options)]


def written(value: Any, name: str = "") -> str:
    """Return a value in Hydra's grammar.

    Raises:
        ParibusError: it can't be written: a reference that would be resolved, a line break, or another type.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(str(k), name)}:{written(v, name)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(v, name) for v in value) + "]"
    raise ParibusError(f"`{name}`: a value of type {type(value).__name__} is no option of verl")


def _text(value: str, name: str) -> str:
    if "${" in value:
        raise ParibusError(f"`{name}`: verl's configuration would read `${{` in {value!r} as a reference: leave it out")
    if any(ord(c) < 32 for c in value):
        raise ParibusError(f"`{name}`: {value!r} holds a line break or another control character: leave it out")
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # In quotes a backslash stands for itself, but before a quote or at the end it would hide it.
    return '"' + re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ("\\" + m[2] if m[2] else ""), value) + '"'
